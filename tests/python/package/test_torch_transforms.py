# SPDX-License-Identifier: Apache-2.0
"""Derivatives that do not exist yet never come out as zero, and meta tensors give shapes without a warning."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
tegula_torch = pytest.importorskip("tegula.torch")

from torch.autograd import forward_ad  # noqa: E402


def _operands(device: str = "cpu") -> list:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 5, 4, 16, generator=generator).to(device) for _ in range(3)]


def test_operator_refuses_forward_mode_by_name() -> None:
    q, k, v = _operands()
    with forward_ad.dual_level():
        torch.ops.tegula.attention(q, k, v)  # no tangent: computed
        for i in range(3):
            inputs = [q, k, v]
            inputs[i] = forward_ad.make_dual(inputs[i], torch.ones_like(q))
            with pytest.raises(NotImplementedError, match=r"tegula::attention: .*jvp"):
                torch.ops.tegula.attention(*inputs)


def test_operator_refuses_torch_func_grad_by_name() -> None:
    q, k, v = _operands()
    with pytest.raises(NotImplementedError, match=r"tegula::attention: .*torch\.func"):
        torch.func.grad(lambda x: torch.ops.tegula.attention(x, k, v)[0].sum())(q)


@pytest.mark.parametrize("mask", [False, True])
def test_meta_tensors(mask: bool) -> None:
    q, k, v = (x.transpose(1, 2) for x in _operands("meta"))
    attn_mask = torch.ones(5, 5, dtype=torch.bool, device="meta") if mask else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        o = tegula_torch.scaled_dot_product_attention(q, k, v, attn_mask)
    assert o.shape == (2, 4, 5, 16) and o.device.type == "meta" and o.dtype == torch.float32
