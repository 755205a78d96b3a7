# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4 (4.0.0b36): names, parameters, defaults and return values of
flash_attn.cute.interface.

Layouts as in flash-attn 2. Every function returns (o, lse); lse is None unless return_lse or an
input requires grad. window_size: None is an edge without limit; a negative edge beside another one
is refused (it shifts the window there). learnable_sink [heads]: fp32, fp16 or bf16.

Refused by name, because they change the result: qv, gather_kv_indices, score_mod, mask_mod,
aux_tensors, aux_scalars, block_sparse_tensors. Hints: num_splits, pack_gqa, deterministic,
min_seqlen_k, scheduler_metadata, gather_bwd_* (backward).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._convert import Window, attend, combine, refuse_given, whole, window_or_none

__all__ = ["__version__", "flash_attn_combine", "flash_attn_func", "flash_attn_varlen_func"]
__version__ = "4.0.0b36"


def _wants_lse(return_lse: bool, *inputs: torch.Tensor | None) -> bool:
    return return_lse or any(t is not None and t.requires_grad for t in inputs)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qv: torch.Tensor | None = None,
    gather_kv_indices: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (None, None),
    learnable_sink: torch.Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Callable | None = None,
    score_mod_bwd: Callable | None = None,
    mask_mod: Callable | None = None,
    aux_tensors: list | None = None,
    aux_scalars: tuple | None = None,
    block_sparse_tensors: Any = None,
    block_sparse_tensors_bwd: Any = None,
    return_lse: bool = False,
    gather_bwd_recompute_p: bool = False,
    gather_bwd_token_chunk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q [batch, seqlen_q, heads, dim]; k [batch, seqlen_k, heads_kv, dim]; v [.., dim_v] -> (o,
    lse).

    Errors: ValueError, TypeError (shapes, types), NotImplementedError (the options named above,
    what the device does not do)."""
    refuse_given(
        qv=qv, gather_kv_indices=gather_kv_indices, score_mod=score_mod,
        score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod, aux_tensors=aux_tensors or None, aux_scalars=aux_scalars or None,
        block_sparse_tensors=block_sparse_tensors,
        block_sparse_tensors_bwd=block_sparse_tensors_bwd,
    )
    o, lse = attend(
        q, k, v, causal=causal, window_edges=window_or_none(window_size, causal),
        softmax_scale=softmax_scale, softcap=softcap, sink=learnable_sink,
    )
    return o, lse if _wants_lse(return_lse, q, k, v, learnable_sink) else None


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qv: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | torch.Tensor | None = None,
    max_seqlen_k: int | torch.Tensor | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    gather_kv_indices: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (None, None),
    learnable_sink: torch.Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Callable | None = None,
    score_mod_bwd: Callable | None = None,
    mask_mod: Callable | None = None,
    block_sparse_tensors: Any = None,
    aux_tensors: list | None = None,
    aux_scalars: tuple | None = None,
    return_lse: bool = False,
    scheduler_metadata: torch.Tensor | None = None,
    seqlen_k_per_split: int | None = None,
    disable_scheduler_metadata: bool = False,
    gather_bwd_recompute_p: bool = False,
    gather_bwd_token_chunk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q [total_q, heads, dim] with cu_seqlens_q or dense; k, v likewise with cu_seqlens_k, or pages
    [num_pages, page_size, heads_kv, dim] with page_table [batch, max_pages] and seqused_k. -> (o,
    lse).

    seqlen_k_per_split: keys per split, rounded up to 64, so that a sequence's bits depend on itself
    alone. max_seqlen_*: int or 0-dim tensor."""
    refuse_given(
        qv=qv, gather_kv_indices=gather_kv_indices, score_mod=score_mod,
        score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod, aux_tensors=aux_tensors or None, aux_scalars=aux_scalars or None,
        block_sparse_tensors=block_sparse_tensors,
    )
    if page_table is not None and cu_seqlens_k is not None:
        raise ValueError("cu_seqlens_k is given beside page_table: pages take seqused_k")
    o, lse = attend(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, seqused_q=seqused_q, seqused_k=seqused_k, page_table=page_table,
        causal=causal, window_edges=window_or_none(window_size, causal),
        softmax_scale=softmax_scale,
        softcap=softcap, sink=learnable_sink,
        fixed_split=whole(seqlen_k_per_split, "seqlen_k_per_split") or 0,
    )
    return o, lse if _wants_lse(return_lse, q, k, v, learnable_sink) else None


def flash_attn_combine(
    out_partial: torch.Tensor,
    lse_partial: torch.Tensor,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    cu_seqlens: torch.Tensor | None = None,
    seqused: torch.Tensor | None = None,
    virtual_batch_idx: torch.Tensor | None = None,
    return_lse: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Merges out_partial [splits, batch, seqlen, heads, dim] or [splits, total_q, heads, dim] and
    lse_partial (the same without dim: heads last) of disjoint keys -> (o, lse) with lse [batch,
    seqlen, heads] or [total_q, heads], None without return_lse. cu_seqlens changes nothing: every
    row is merged by itself."""
    refuse_given(seqused=seqused, virtual_batch_idx=virtual_batch_idx)
    o, lse = combine(out_partial, lse_partial, out, out_dtype)
    return o, lse if return_lse else None
