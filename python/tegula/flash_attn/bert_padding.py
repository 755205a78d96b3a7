# SPDX-License-Identifier: Apache-2.0
"""flash_attn.bert_padding: between padded [batch, seqlen, ...] and ragged [total, ...] tensors.

Plain differentiable PyTorch. The number of tokens is data, so these functions wait for the device.
"""

from __future__ import annotations

import torch

__all__ = [
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The rows `indices` [n] of input [rows, ...] -> [n, ...]."""
    return input.index_select(0, indices)


def index_put_first_axis(
    values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int
) -> torch.Tensor:
    """values [n, ...] as the rows `indices` [n] of a tensor of zeros -> [first_axis_dim, ...]."""
    zeros = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return zeros.index_copy(0, indices, values)


def index_first_axis_residual(
    input: torch.Tensor, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(index_first_axis(input, indices), input): the second for a residual connection."""
    return index_first_axis(input, indices), input.view_as(input)


def _ragged(
    hidden_states: torch.Tensor, lengths: torch.Tensor, is_token: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """(tokens, indices, cu_seqlens, max_seqlen) of sequences of these lengths and a mask of
    tokens."""
    indices = is_token.flatten().nonzero().flatten()
    cu_seqlens = torch.zeros(lengths.numel() + 1, dtype=torch.int32, device=lengths.device)
    torch.cumsum(lengths, 0, dtype=torch.int32, out=cu_seqlens[1:])
    tokens = index_first_axis(hidden_states.flatten(0, 1), indices)
    return tokens, indices, cu_seqlens, int(lengths.max()) if lengths.numel() else 0


def unpad_input(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    unused_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Takes the tokens out of hidden_states [batch, seqlen, ...] that attention_mask [batch,
    seqlen] (bool or 0/1), or unused_mask, marks: those of the latter have room but are not used.

    -> (tokens [total, ...], indices [total] in the flattened input, cu_seqlens int32 [batch + 1],
    max_seqlen (int), seqused int32 [batch]: tokens of attention_mask alone)."""
    has_room = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = has_room.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    return (*_ragged(hidden_states, lengths, has_room), used)


def unpad_input_for_concatenated_sequences(
    hidden_states: torch.Tensor, attention_mask_in_length: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Like unpad_input for rows that hold several sequences end to end: row b of
    attention_mask_in_length [batch, seqlen] begins with their lengths, then zeros.

    -> (tokens, indices, cu_seqlens int32 [sequences + 1], max_seqlen)."""
    per_row = attention_mask_in_length.sum(-1, keepdim=True)
    column = torch.arange(attention_mask_in_length.shape[1], device=per_row.device)
    lengths = attention_mask_in_length.flatten()
    return _ragged(hidden_states, lengths[lengths != 0], column < per_row)


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """The inverse: tokens [total, ...] back into [batch, seqlen, ...], zeros elsewhere."""
    rows = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return rows.unflatten(0, (batch, seqlen))
