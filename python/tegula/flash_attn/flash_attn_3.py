# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3 (3.0): names, parameters, defaults and return values of flash_attn_interface.

Layouts as in flash-attn 2. o of 8-bit q is bf16. return_attn_probs gives (o, lse);
return_softmax_lse of flash_attn_with_kvcache gives four values, (o, lse, o_partial, lse_partial): the
partial results of splits stay inside here, so the last two are empty tensors (there too, unless it
splits). lse of a row without visible key is -inf.

One name more than in the package: s_aux (keyword only, fp32, fp16 or bf16 [heads]), the attention
sink of the builds that vLLM and the kernels hub distribute. transformers looks for that parameter
and drops a model's sinks if it is absent.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ._convert import attend, combine, refuse_given, window, whole

__all__ = [
    "__version__",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]
__version__ = "3.0.0"


def flash_attn_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
    *,
    s_aux=None,
):
    """q [batch, seqlen_q, heads, dim]; k [batch, seqlen_k, heads_kv, dim]; v [.., dim_v] -> o, or
    (o, lse) with return_attn_probs. *_descale fp32 [batch, heads_kv].

    num_splits, pack_gqa, sm_margin and deterministic are hints. Errors: ValueError, TypeError (shapes,
    types), NotImplementedError (qv, what the device does not do)."""
    refuse_given(qv=qv)
    o, lse = attend(
        q, k, v, causal=causal, window_edges=window(window_size, causal), softmax_scale=softmax_scale,
        descale_q=q_descale, descale_k=k_descale, descale_v=v_descale,
        attention_chunk=whole(attention_chunk, "attention_chunk"), softcap=softcap, sink=s_aux,
    )  # fmt: skip
    return (o, lse) if return_attn_probs else o


def flash_attn_qkvpacked_func(
    qkv,
    softmax_scale=None,
    causal=False,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    deterministic=False,
    num_heads_q=None,
    sm_margin=0,
    return_attn_probs=False,
    *,
    s_aux=None,
):
    """flash_attn_func of qkv [batch, seqlen, 3, heads, dim], or of [batch, seqlen, heads + 2 heads_kv,
    dim] with num_heads_q = heads."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(-3)
    else:
        heads_q = whole(num_heads_q, "num_heads_q")
        rest = -1 if heads_q is None else qkv.shape[2] - heads_q
        if rest < 2 or rest % 2:
            raise ValueError(
                f"num_heads_q: {num_heads_q} does not divide qkv's {qkv.shape[2]} heads into q, k, v"
            )
        q, k, v = qkv.split([heads_q, rest // 2, rest // 2], dim=2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size,
        attention_chunk, softcap, deterministic=deterministic, sm_margin=sm_margin,
        return_attn_probs=return_attn_probs, s_aux=s_aux,
    )  # fmt: skip


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
    *,
    s_aux=None,
):
    """q [total_q, heads, dim] with cu_seqlens_q, or dense if that is None; k, v likewise with
    cu_seqlens_k. seqused_q, seqused_k [batch] shorten sequences inside their slots. -> o, or (o, lse).
    max_seqlen_*: int or 0-dim tensor."""
    refuse_given(qv=qv)
    o, lse = attend(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q,
        seqused_k=seqused_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, causal=causal,
        window_edges=window(window_size, causal), softmax_scale=softmax_scale, descale_q=q_descale,
        descale_k=k_descale, descale_v=v_descale,
        attention_chunk=whole(attention_chunk, "attention_chunk"), softcap=softcap, sink=s_aux,
    )  # fmt: skip
    return (o, lse) if return_attn_probs else o


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
    *,
    s_aux=None,
):
    """Appends k, v [batch, seqlen_new, heads_kv, dim] (or ragged with cu_seqlens_k_new) to the caches
    in place, rotated if rotary_cos and rotary_sin are given (from position rotary_seqlens, else
    cache_seqlens, on), then attends with q (rotated too; ragged with cu_seqlens_q) to all of it.

    Caches [rows, capacity, ...] with cache_batch_idx, or pages [num_pages, page_size, ...] with
    page_table, whose rows cache_batch_idx selects if both are given. -> o, or (o, lse, o_partial,
    lse_partial), the last two empty. scheduler_metadata, pack_gqa and sm_margin are hints."""
    refuse_given(qv=qv)
    o, lse = attend(
        q, k_cache, v_cache, k_new=k, v_new=v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, rotary_seqlens=rotary_seqlens,
        seqused_k=cache_seqlens, batch_index=cache_batch_idx, leftpad_k=cache_leftpad,
        page_table=page_table, cu_seqlens_q=cu_seqlens_q, cu_seqlens_new=cu_seqlens_k_new,
        max_seqlen_q=max_seqlen_q, descale_q=q_descale, descale_k=k_descale, descale_v=v_descale,
        causal=causal, window_edges=window(window_size, causal), softmax_scale=softmax_scale,
        attention_chunk=whole(attention_chunk, "attention_chunk"), softcap=softcap, sink=s_aux,
        num_splits=int(num_splits == 1), is_cache=True,
    )  # fmt: skip
    if not return_softmax_lse:
        return o
    return o, lse, lse.new_empty(0), lse.new_empty(0)


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Merges out_partial [splits, batch, seqlen, heads, dim] and lse_partial [splits, batch, seqlen,
    heads] (heads last, unlike every other lse) of disjoint keys -> (o, lse [batch, seqlen, heads]).
    o has out_dtype, else out_partial's type."""
    return combine(out_partial, lse_partial, out, out_dtype)


def get_scheduler_metadata(
    batch_size,
    max_seqlen_q,
    max_seqlen_k,
    num_heads_q,
    num_heads_kv,
    headdim,
    cache_seqlens,
    qkv_dtype=torch.bfloat16,
    headdim_v=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    cache_leftpad=None,
    page_size=None,
    max_seqlen_k_new=0,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    has_softcap=False,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
):
    """An opaque int32 tensor for scheduler_metadata, where it is a hint: work is scheduled inside the
    call, from the lengths. Here one element, 0, on the device of cache_seqlens."""
    return torch.zeros(1, dtype=torch.int32, device=cache_seqlens.device)


# Private there, imported by TransformerEngine and others.


def _flash_attn_forward(
    q,
    k,
    v,
    k_new=None,
    v_new=None,
    qv=None,
    out_=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    cu_seqlens_k_new=None,
    seqused_q=None,
    seqused_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    page_table=None,
    kv_batch_idx=None,
    leftpad_k=None,
    rotary_cos=None,
    rotary_sin=None,
    seqlens_rotary=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size_left=-1,
    window_size_right=-1,
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=1,
    pack_gqa=None,
    sm_margin=0,
):
    """Everything that the functions above do -> (o, lse, o_partial, lse_partial), the last two empty."""
    refuse_given(qv=qv)
    o, lse = attend(
        q, k, v, k_new=k_new, v_new=v_new, out=out_, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, cu_seqlens_new=cu_seqlens_k_new, seqused_q=seqused_q,
        seqused_k=seqused_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        page_table=page_table, batch_index=kv_batch_idx, leftpad_k=leftpad_k, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, rotary_seqlens=seqlens_rotary,
        descale_q=q_descale, descale_k=k_descale, descale_v=v_descale, softmax_scale=softmax_scale,
        causal=causal, window_edges=window((window_size_left, window_size_right), causal),
        attention_chunk=whole(attention_chunk, "attention_chunk"), softcap=softcap,
    )  # fmt: skip
    return o, lse, lse.new_empty(0), lse.new_empty(0)


def _flash_attn_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError("the backward of attention is not supported by tegula yet")
