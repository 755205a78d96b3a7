# SPDX-License-Identifier: Apache-2.0
"""bert_padding and rotary: the helpers that come with flash-attn 2."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import flash_attn_reference as reference  # noqa: E402

from tegula.flash_attn import bert_padding, rotary  # noqa: E402


def test_unpad_and_pad(device):
    hidden = torch.arange(2 * 4 * 3.0, device=device).reshape(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]], device=device)
    tokens, indices, cu, longest, used = bert_padding.unpad_input(hidden, mask)
    assert indices.tolist() == [0, 1, 5, 6, 7]
    assert cu.tolist() == [0, 2, 5] and cu.dtype == torch.int32
    assert longest == 3 and isinstance(longest, int)
    assert used.tolist() == [2, 3] and used.dtype == torch.int32
    assert torch.equal(tokens, hidden.flatten(0, 1)[indices])
    back = bert_padding.pad_input(tokens, indices, 2, 4)
    assert torch.equal(back, hidden * mask[..., None])
    same = bert_padding.unpad_input(hidden, mask.bool())
    assert torch.equal(same[0], tokens) and torch.equal(same[2], cu)


def test_unpad_with_tokens_that_have_room_but_are_unused(device):
    hidden = torch.arange(8.0, device=device).reshape(2, 4, 1)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]], device=device)
    unused = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 0]], device=device)
    tokens, indices, cu, longest, used = bert_padding.unpad_input(hidden, mask, unused)
    assert tokens.flatten().tolist() == [0, 1, 2, 4, 5, 6]
    assert (cu.tolist(), longest, used.tolist()) == ([0, 3, 6], 3, [2, 1])


def test_unpad_concatenated_sequences(device):
    hidden = torch.arange(12.0, device=device).reshape(2, 6, 1)
    in_length = torch.tensor([[2, 3, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0]], device=device)
    tokens, indices, cu, longest = bert_padding.unpad_input_for_concatenated_sequences(
        hidden, in_length
    )
    assert indices.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert tokens.flatten().tolist() == indices.tolist()
    assert (cu.tolist(), longest) == ([0, 2, 5, 9], 4)


def test_padding_functions_are_differentiable(device):
    hidden = torch.randn(2, 3, 4, device=device, requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]], device=device)
    tokens, indices, *_ = bert_padding.unpad_input(hidden, mask)
    bert_padding.pad_input(tokens * 2, indices, 2, 3).sum().backward()
    assert torch.equal(hidden.grad, mask[..., None] * torch.full_like(hidden, 2))


def test_index_functions(device):
    rows = torch.arange(6.0, device=device).reshape(3, 2)
    at = torch.tensor([2, 0], device=device)
    assert torch.equal(bert_padding.index_first_axis(rows, at), rows[at])
    picked, residual = bert_padding.index_first_axis_residual(rows, at)
    assert torch.equal(picked, rows[at]) and torch.equal(residual, rows)
    placed = bert_padding.index_put_first_axis(rows[at], at, 4)
    assert placed.tolist() == [[0, 1], [0, 0], [4, 5], [0, 0]]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("offsets", [0, 3, (2, 5)])
def test_rotary(device, interleaved, conjugate, offsets):
    x, angle = torch.randn(2, 4, 3, 16, device=device), torch.randn(12, 5, device=device)
    cos, sin = angle.cos(), angle.sin()
    given = torch.tensor(offsets, device=device) if isinstance(offsets, tuple) else offsets
    turned = rotary.apply_rotary(
        x, cos, sin, given, interleaved=interleaved, conjugate=conjugate
    )
    first = offsets if isinstance(offsets, tuple) else (offsets, offsets)
    tables = reference.to_numpy(cos), reference.to_numpy(sin) * (-1 if conjugate else 1)
    for b in range(2):
        want = reference.rotate(
            reference.to_numpy(x[b]), *tables, first[b] + np.arange(4), interleaved
        )
        np.testing.assert_allclose(reference.to_numpy(turned[b]), want, atol=1e-5)


def test_rotary_of_ragged_rows_and_in_place(device):
    x, angle = torch.randn(7, 3, 16, device=device), torch.randn(12, 8, device=device)
    cu = torch.tensor([0, 2, 6], dtype=torch.int32, device=device)  # one row belongs to nobody
    offsets = torch.tensor([4, 1], dtype=torch.int32, device=device)
    before = x.clone()
    turned = rotary.apply_rotary_emb(
        x, angle.cos(), angle.sin(), inplace=True, seqlen_offsets=offsets, cu_seqlens=cu,
        max_seqlen=4,
    )
    assert turned is x
    want = reference.rotate(
        reference.to_numpy(before), *(reference.to_numpy(t) for t in (angle.cos(), angle.sin())),
        np.array([4, 5, 1, 2, 3, 4, 0]), False,
    )
    np.testing.assert_allclose(reference.to_numpy(x)[:6], want[:6], atol=1e-5)
    with pytest.raises(ValueError, match="cos: .* do not fit x"):
        rotary.apply_rotary(x, torch.zeros(3, 9), torch.zeros(3, 9))
