# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3 (3.0): names, parameters, defaults and return values of flash_attn_interface.

Layouts as in flash-attn 2. o of 8-bit q is bf16. return_attn_probs gives (o, lse);
return_softmax_lse of flash_attn_with_kvcache gives four values, (o, lse, o_partial, lse_partial):
the partial results of splits stay inside here, so the last two are empty tensors (there too, unless
it splits). lse of a row without visible key is -inf.

One name more than in the package: s_aux (keyword only, fp32, fp16 or bf16 [heads]), the attention
sink of the builds that vLLM and the kernels hub distribute. transformers looks for that parameter
and drops a model's sinks if it is absent.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ._convert import Window, attend, combine, refuse_given, window, whole

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
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """q [batch, seqlen_q, heads, dim]; k [batch, seqlen_k, heads_kv, dim]; v [.., dim_v] -> o, or
    (o, lse) with return_attn_probs. *_descale fp32 [batch, heads_kv].

    num_splits, pack_gqa, sm_margin and deterministic are hints. Errors: ValueError, TypeError
    (shapes, types), NotImplementedError (qv, what the device does not do)."""
    refuse_given(qv=qv)
    o, lse = attend(
        q, k, v, causal=causal, window_edges=window(window_size, causal),
        softmax_scale=softmax_scale,
        descale_q=q_descale, descale_k=k_descale, descale_v=v_descale,
        attention_chunk=attention_chunk, softcap=softcap, sink=s_aux,
    )
    return (o, lse) if return_attn_probs else o


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """flash_attn_func of qkv [batch, seqlen, 3, heads, dim], or of [batch, seqlen, heads + 2
    heads_kv, dim] with num_heads_q = heads."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(-3)
    else:
        heads_q = whole(num_heads_q, "num_heads_q")
        rest = -1 if heads_q is None else qkv.shape[2] - heads_q
        if rest < 2 or rest % 2:
            raise ValueError(
                f"num_heads_q: {num_heads_q} does not part qkv's {qkv.shape[2]} heads into q, k, v"
            )
        q, k, v = qkv.split([heads_q, rest // 2, rest // 2], dim=2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size,
        attention_chunk, softcap, deterministic=deterministic, sm_margin=sm_margin,
        return_attn_probs=return_attn_probs, s_aux=s_aux,
    )


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int | torch.Tensor,
    max_seqlen_k: int | torch.Tensor,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """q [total_q, heads, dim] with cu_seqlens_q, or dense if that is None; k, v likewise with
    cu_seqlens_k. seqused_q, seqused_k [batch] shorten sequences inside their slots. -> o, or (o,
    lse). max_seqlen_*: int or 0-dim tensor."""
    refuse_given(qv=qv)
    o, lse = attend(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q,
        seqused_k=seqused_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, causal=causal,
        window_edges=window(window_size, causal), softmax_scale=softmax_scale, descale_q=q_descale,
        descale_k=k_descale, descale_v=v_descale,
        attention_chunk=attention_chunk, softcap=softcap, sink=s_aux,
    )
    return (o, lse) if return_attn_probs else o


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    max_seqlen_q: int | torch.Tensor | None = None,
    rotary_seqlens: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Appends k, v [batch, seqlen_new, heads_kv, dim] (or ragged with cu_seqlens_k_new) to the
    caches in place, rotated if rotary_cos and rotary_sin are given (from position rotary_seqlens,
    else cache_seqlens, on), then attends with q (rotated too; ragged with cu_seqlens_q) to all of
    it.

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
        attention_chunk=attention_chunk, softcap=softcap, sink=s_aux,
        num_splits=int(num_splits == 1), is_cache=True,
    )
    if not return_softmax_lse:
        return o
    return o, lse, lse.new_empty(0), lse.new_empty(0)


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Merges out_partial [splits, batch, seqlen, heads, dim] and lse_partial [splits, batch,
    seqlen, heads] (heads last, unlike every other lse) of disjoint keys -> (o, lse [batch, seqlen,
    heads]). o has out_dtype, else out_partial's type."""
    return combine(out_partial, lse_partial, out, out_dtype)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int | torch.Tensor,
    max_seqlen_k: int | torch.Tensor,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: torch.Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> torch.Tensor:
    """An opaque int32 tensor for scheduler_metadata, where it is a hint: work is scheduled inside
    the call, from the lengths. Here one element, 0, on the device of cache_seqlens."""
    return torch.zeros(1, dtype=torch.int32, device=cache_seqlens.device)


# Private there, imported by TransformerEngine and others.


def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_new: torch.Tensor | None = None,
    v_new: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    out_: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    max_seqlen_q: int | torch.Tensor | None = None,
    max_seqlen_k: int | torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    kv_batch_idx: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    seqlens_rotary: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> tuple[torch.Tensor, ...]:
    """Everything that the functions above do -> (o, lse, o_partial, lse_partial), the last two
    empty."""
    refuse_given(qv=qv)
    o, lse = attend(
        q, k, v, k_new=k_new, v_new=v_new, out=out_, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, cu_seqlens_new=cu_seqlens_k_new, seqused_q=seqused_q,
        seqused_k=seqused_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        page_table=page_table, batch_index=kv_batch_idx, leftpad_k=leftpad_k, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, rotary_seqlens=seqlens_rotary,
        descale_q=q_descale, descale_k=k_descale, descale_v=v_descale, softmax_scale=softmax_scale,
        causal=causal, window_edges=window((window_size_left, window_size_right), causal),
        attention_chunk=attention_chunk, softcap=softcap,
    )
    return o, lse, lse.new_empty(0), lse.new_empty(0)


def _flash_attn_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError("the backward of attention is not supported by tegula yet")
