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

from typing import Any

import torch

from .._convert import attend, combine, refuse_given, whole, window_or_none

__all__ = ["__version__", "flash_attn_combine", "flash_attn_func", "flash_attn_varlen_func"]
__version__ = "4.0.0b36"


def _wants_lse(return_lse: bool, *inputs: torch.Tensor | None) -> bool:
    return return_lse or any(t is not None and t.requires_grad for t in inputs)


def flash_attn_func(
    q,
    k,
    v,
    qv=None,
    gather_kv_indices=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    aux_tensors=None,
    aux_scalars=None,
    block_sparse_tensors=None,
    block_sparse_tensors_bwd=None,
    return_lse=False,
    gather_bwd_recompute_p=False,
    gather_bwd_token_chunk=None,
):
    """q [batch, seqlen_q, heads, dim]; k [batch, seqlen_k, heads_kv, dim]; v [.., dim_v] -> (o, lse).

    Errors: ValueError, TypeError (shapes, types), NotImplementedError (the options named above, what
    the device does not do)."""
    refuse_given(
        qv=qv, gather_kv_indices=gather_kv_indices, score_mod=score_mod, score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod, aux_tensors=aux_tensors or None, aux_scalars=aux_scalars or None,
        block_sparse_tensors=block_sparse_tensors, block_sparse_tensors_bwd=block_sparse_tensors_bwd,
    )  # fmt: skip
    o, lse = attend(
        q, k, v, causal=causal, window_edges=window_or_none(window_size, causal),
        softmax_scale=softmax_scale, softcap=softcap, sink=learnable_sink,
    )  # fmt: skip
    return o, lse if _wants_lse(return_lse, q, k, v, learnable_sink) else None


def flash_attn_varlen_func(
    q,
    k,
    v,
    qv=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    min_seqlen_k=None,
    seqused_q=None,
    seqused_k=None,
    gather_kv_indices=None,
    page_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    block_sparse_tensors=None,
    aux_tensors=None,
    aux_scalars=None,
    return_lse=False,
    scheduler_metadata=None,
    seqlen_k_per_split=None,
    disable_scheduler_metadata=False,
    gather_bwd_recompute_p=False,
    gather_bwd_token_chunk=None,
):
    """q [total_q, heads, dim] with cu_seqlens_q or dense; k, v likewise with cu_seqlens_k, or pages
    [num_pages, page_size, heads_kv, dim] with page_table [batch, max_pages] and seqused_k. -> (o, lse).

    seqlen_k_per_split: keys per split, rounded up to 64, so that a sequence's bits depend on itself
    alone. max_seqlen_*: int or 0-dim tensor."""
    refuse_given(
        qv=qv, gather_kv_indices=gather_kv_indices, score_mod=score_mod, score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod, aux_tensors=aux_tensors or None, aux_scalars=aux_scalars or None,
        block_sparse_tensors=block_sparse_tensors,
    )  # fmt: skip
    if page_table is not None and cu_seqlens_k is not None:
        raise ValueError("cu_seqlens_k is given beside page_table: pages take seqused_k")
    o, lse = attend(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, seqused_q=seqused_q, seqused_k=seqused_k, page_table=page_table,
        causal=causal, window_edges=window_or_none(window_size, causal), softmax_scale=softmax_scale,
        softcap=softcap, sink=learnable_sink,
        fixed_split=whole(seqlen_k_per_split, "seqlen_k_per_split") or 0,
    )  # fmt: skip
    return o, lse if _wants_lse(return_lse, q, k, v, learnable_sink) else None


def flash_attn_combine(
    out_partial,
    lse_partial,
    out=None,
    out_dtype=None,
    cu_seqlens=None,
    seqused=None,
    virtual_batch_idx=None,
    return_lse=True,
):
    """Merges out_partial [splits, batch, seqlen, heads, dim] or [splits, total_q, heads, dim] and
    lse_partial (the same without dim: heads last) of disjoint keys -> (o, lse) with lse [batch,
    seqlen, heads] or [total_q, heads], None without return_lse. cu_seqlens changes nothing: every row
    is merged by itself."""
    refuse_given(seqused=seqused, virtual_batch_idx=virtual_batch_idx)
    o, lse = combine(out_partial, lse_partial, out, out_dtype)
    return o, lse if return_lse else None
