# SPDX-License-Identifier: Apache-2.0
"""flash_attn.layers.rotary and flash_attn.ops.triton.rotary, as far as others import them with the
attention: vLLM takes apply_rotary as soon as a module flash_attn can be found.

Plain differentiable PyTorch, no kernel: products and sums in fp32, rounded once to x's type.
"""

from __future__ import annotations

import torch

__all__ = ["apply_rotary", "apply_rotary_emb", "apply_rotary_emb_func"]


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | torch.Tensor | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> torch.Tensor:
    """Rotates the first 2 * cos.shape[-1] of x's last dimension.

    x [batch, seqlen, heads, dim], or [total, heads, dim] with cu_seqlens int32 [batch + 1]; cos,
    sin [positions, rotary_dim / 2], row i of sequence b taking position seqlen_offsets (int or
    [batch]) + i. Pairs are (2 i, 2 i + 1) if interleaved, else (i, i + rotary_dim / 2); conjugate
    turns the other way. -> like x, x itself with inplace. max_seqlen is a hint."""
    half = cos.shape[-1]
    if cos.shape != sin.shape or 2 * half > x.shape[-1]:
        raise ValueError(
            f"cos: {tuple(cos.shape)}, sin: {tuple(sin.shape)} do not fit x: {tuple(x.shape)}"
        )
    position = _positions(x, seqlen_offsets, cu_seqlens)
    cos = cos[position].unsqueeze(-2).float()
    sin = sin[position].unsqueeze(-2).float() * (-1 if conjugate else 1)
    turning = x[..., : 2 * half].float()
    first, second = (
        (turning[..., 0::2], turning[..., 1::2]) if interleaved else turning.chunk(2, dim=-1)
    )
    pair = (first * cos - second * sin, first * sin + second * cos)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    if inplace:
        x[..., : 2 * half] = turned.to(x.dtype)
        return x
    return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), -1)


def _positions(
    x: torch.Tensor, seqlen_offsets: int | torch.Tensor, cu_seqlens: torch.Tensor | None
) -> torch.Tensor:
    """int64 [batch or 1, seqlen], or [total]: row of the tables for each row of x."""
    if cu_seqlens is None:
        row = torch.arange(x.shape[1], device=x.device)
        if isinstance(seqlen_offsets, torch.Tensor):
            return seqlen_offsets.long().reshape(-1, 1) + row
        return (row + seqlen_offsets).unsqueeze(0)
    row = torch.arange(x.shape[0], device=x.device)
    starts = cu_seqlens.long()
    sequence = torch.searchsorted(starts[1:], row, right=True).clamp_(max=starts.numel() - 2)
    position = row - starts[sequence]
    if isinstance(seqlen_offsets, torch.Tensor):
        position = position + seqlen_offsets.long()[sequence]
    else:
        position = position + seqlen_offsets
    return torch.where(row < starts[-1], position, 0)  # rows past the last sequence: not used


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """apply_rotary with the parameters of flash_attn.layers.rotary."""
    return apply_rotary(
        x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace
    )


apply_rotary_emb_func = apply_rotary_emb
