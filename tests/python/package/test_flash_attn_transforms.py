# SPDX-License-Identifier: Apache-2.0
"""The dialects under torch.compile, forward-mode derivatives, torch.func: same or refused."""

import pytest

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad  # noqa: E402

import tegula.flash_attn as fa2  # noqa: E402
import tegula.flash_attn.cute as fa4  # noqa: E402
import tegula.flash_attn.flash_attn_3 as fa3  # noqa: E402


@pytest.fixture
def qkv(device):
    generator = torch.Generator().manual_seed(3)
    shape, dtype = (2, 6, 2, 32), torch.float16
    return [torch.randn(*shape, generator=generator).to(device, dtype) for _ in range(3)]


@pytest.fixture
def cu(device):
    return torch.tensor([0, 5, 12], dtype=torch.int32, device=device)


def fa2_dense(q, k, v, cu):
    return fa2.flash_attn_func(q, k, v, causal=True, window_size=(3, 3), softcap=2.0)


def fa2_ragged(q, k, v, cu):
    flat = (t.flatten(0, 1) for t in (q, k, v))
    return fa2.flash_attn_varlen_func(*flat, cu, cu, 7, 7, causal=True)


def fa3_ragged(q, k, v, cu):
    flat = (t.flatten(0, 1) for t in (q, k, v))
    return fa3.flash_attn_varlen_func(*flat, cu, cu, 7, 7, causal=True, return_attn_probs=True)


def fa4_sink(q, k, v, cu):
    sink = q[0, 0, :, 0].bfloat16()
    return fa4.flash_attn_func(q, k, v, causal=True, learnable_sink=sink, return_lse=True)


@pytest.mark.parametrize("function", [fa2_dense, fa2_ragged, fa3_ragged, fa4_sink])
def test_compiles_as_one_graph(qkv, cu, function):
    with torch.no_grad():
        want = function(*qkv, cu)
        got = torch.compile(function, fullgraph=True, backend="aot_eager")(*qkv, cu)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want))):
        assert torch.equal(a, b)


@pytest.mark.parametrize("which", range(3))
def test_forward_mode_derivatives_are_refused(qkv, which):
    """Never a constant in silence."""
    with forward_ad.dual_level():
        qkv[which] = forward_ad.make_dual(qkv[which], torch.ones_like(qkv[which]))
        for call in (fa2.flash_attn_func, fa3.flash_attn_func, fa4.flash_attn_func):
            with pytest.raises(NotImplementedError, match="forward-mode"):
                call(*qkv)


def test_forward_mode_derivatives_of_a_16_bit_sink_are_refused(qkv):
    sink = torch.zeros(2, dtype=torch.bfloat16, device=qkv[0].device)
    fa4.flash_attn_func(*qkv, learnable_sink=sink)  # its cast is kept now
    with forward_ad.dual_level():
        sink = forward_ad.make_dual(sink, torch.ones_like(sink))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            fa4.flash_attn_func(*qkv, learnable_sink=sink)


def test_torch_func_is_refused(qkv):
    q, k, v = qkv
    with pytest.raises(NotImplementedError, match="torch.func"):
        torch.func.grad(lambda x: fa2.flash_attn_func(x, k, v).sum())(q)
