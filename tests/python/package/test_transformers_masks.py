# SPDX-License-Identifier: Apache-2.0
"""Every mask that transformers can describe: which keys a row sees, asked of the attention itself.

Queries of zero make a flat softmax, values of a unit matrix make its weights the output: output
[row, key] > 0 is visibility. transformers' own evaluation of the same description has to agree.
"""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import masking_utils

import tegula.transformers


class Module(torch.nn.Module):
    is_causal = True


def seen(mask, batch, seqlen_q, seqlen_k):
    """bool [batch, seqlen_q, seqlen_k] by a call of attention with the mask."""
    query = torch.zeros(batch, 1, seqlen_q, 8)
    key = torch.zeros(batch, 1, seqlen_k, 8)
    value = torch.eye(seqlen_k).expand(batch, 1, seqlen_k, seqlen_k).contiguous()
    out, _ = tegula.transformers.attention_forward(Module(), query, key, value, mask)
    return out[:, :, 0] > 0


def custom(batch, head, query, key):
    return (query + key) % 3 != 1


@st.composite
def descriptions(draw):
    """Arguments of a mask function, as transformers' create_*_mask make them."""
    batch, seqlen_q = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    room, past = draw(st.integers(0, 4)), draw(st.integers(0, 9))
    dropped = draw(st.integers(0, past))  # keys that a sliding cache no longer holds
    seqlen_k = past - dropped + seqlen_q + room
    causal = draw(st.booleans())
    parts = [
        masking_utils.causal_mask_function if causal else masking_utils.bidirectional_mask_function
    ]
    kind = draw(st.sampled_from(["none", "window", "two-sided", "chunk", "custom", "or"]))
    if kind == "window":
        parts.append(masking_utils.sliding_window_overlay(draw(st.integers(1, 9))))
    elif kind == "two-sided":
        parts.append(masking_utils.sliding_window_bidirectional_overlay(draw(st.integers(0, 9))))
    elif kind == "custom":
        parts.append(custom)
    padding = None
    if draw(st.booleans()):
        total = past + seqlen_q
        padding = torch.ones(batch, total, dtype=torch.bool)
        for row in range(batch):
            left, right = draw(st.integers(0, total)), draw(st.integers(0, 3))
            padding[row, :left] = False
            if right:
                padding[row, total - right :] = False
            if draw(st.integers(0, 3)) == 0:
                padding[row, draw(st.integers(0, total - 1))] = draw(st.booleans())
    if kind == "chunk":
        left = torch.zeros(batch, dtype=torch.int64)
        if padding is not None:
            left = (padding.cumsum(-1) == 0).sum(-1)
        parts.append(masking_utils.chunked_overlay(draw(st.integers(1, 6)), left))
    function = masking_utils.and_masks(*reversed(parts)) if len(parts) > 1 else parts[0]
    if kind == "or":
        function = masking_utils.or_masks(function, custom)
    offset = torch.tensor(past) if draw(st.booleans()) else past
    return dict(
        batch_size=batch, q_length=seqlen_q, kv_length=seqlen_k, q_offset=offset,
        kv_offset=dropped, mask_function=function, attention_mask=padding,
    )  # fmt: skip


@settings(deadline=None, max_examples=300, derandomize=True)
@given(descriptions())
def test_what_a_row_sees(description):
    expected = masking_utils.sdpa_mask(
        **description, allow_is_causal_skip=False, allow_is_bidirectional_skip=False
    )[:, 0]
    mask = tegula.transformers.mask_function(**description)
    sizes = [description[name] for name in ("batch_size", "q_length", "kv_length")]
    assert torch.equal(seen(mask, *sizes), expected.expand(*sizes))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.lists(st.lists(st.integers(1, 5), min_size=3, max_size=3), min_size=1, max_size=3),
    st.sampled_from(["none", "window", "chunk"]),
    st.integers(0, 2),
)
def test_packed_rows(lengths, kind, start):
    """Rows of 15 tokens hold sequences; the first one of a row may begin at a later position."""
    positions = torch.stack(
        [torch.cat([torch.arange(n) for n in (*row, 15 - sum(row)) if n]) for row in lengths]
    )
    for row, (first, *_) in enumerate(lengths):
        positions[row, :first] += start
    number = masking_utils.find_packed_sequence_indices(positions)
    assume(number is not None)
    base = masking_utils.causal_mask_function
    if kind == "window":
        base = masking_utils.sliding_window_causal_mask_function(3)
    elif kind == "chunk":
        base = masking_utils.chunked_causal_mask_function(2, torch.zeros(len(lengths), dtype=int))
    function = masking_utils.and_masks(
        masking_utils.remap_positions_for_packed_sequence(base, positions),
        masking_utils.packed_sequence_mask_function(number),
    )
    description = dict(batch_size=len(lengths), q_length=15, kv_length=15, mask_function=function)
    mask = tegula.transformers.mask_function(**description)
    if kind != "chunk" or start % 2 == 0:  # else a sequence begins inside a chunk
        assert mask.visible is None
    expected = masking_utils.sdpa_mask(**description, allow_is_causal_skip=False)[:, 0]
    assert torch.equal(seen(mask, len(lengths), 15, 15), expected)


def test_what_is_native():
    """The descriptions above that need no bias tensor do without one."""
    make, causal = tegula.transformers.mask_function, masking_utils.causal_mask_function
    left = torch.ones(2, 9, dtype=torch.bool)
    left[1, :3] = False
    for named in (
        {},
        {"q_offset": 4, "q_length": 5},
        {"attention_mask": left},
        {"mask_function": masking_utils.sliding_window_causal_mask_function(4)},
        {"mask_function": masking_utils.sliding_window_bidirectional_mask_function(4)},
        {"mask_function": masking_utils.chunked_causal_mask_function(4, torch.tensor([0, 3])),
         "attention_mask": left},
        {"mask_function": masking_utils.bidirectional_mask_function,
         "attention_mask": left.flip(1)},
    ):  # fmt: skip
        arguments = {"q_length": 9, "kv_length": 9, "mask_function": causal} | named
        assert make(2, **arguments).visible is None, named
