# SPDX-License-Identifier: Apache-2.0
"""flash-attn 2 (2.8): names, parameters, defaults and return values of
flash_attn.flash_attn_interface.

Layouts: dense [batch, seqlen, heads, dim], ragged [total, heads, dim] with cu_seqlens int32
[batch + 1]; packed tensors have 3 (q, k, v) or 2 (k, v) before the heads. lse is fp32 [batch,
heads, seqlen_q] or [heads, total_q], natural logarithm. Masks are aligned to the bottom right.

What differs from the package of that name: CPU tensors and fp32 work; a row without visible key has
lse -inf (there: +inf); with ALiBi and causal the lse is that of the documented bias -slope * |i +
seqlen_k - seqlen_q - j| (there it is larger by slope * (i + seqlen_k - seqlen_q); o is the same);
dropout and backward raise NotImplementedError. docs/python.md has the table of options.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ._convert import Window, attend, refuse, refuse_dropout, window

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def _with_probs(q: torch.Tensor, result: tuple, return_attn_probs: bool) -> Any:
    """o, or (o, lse, S_dmask). S_dmask holds the dropout pattern there; without dropout it is an
    empty tensor, there and here."""
    return (*result, q.new_empty(0)) if return_attn_probs else result[0]


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """q [batch, seqlen_q, heads, dim]; k, v [batch, seqlen_k, heads_kv, dim] -> o like q, or
    (o, lse, S_dmask) with return_attn_probs. alibi_slopes fp32 [heads] or [batch, heads].

    deterministic is accepted: the forward always is. Errors: ValueError, TypeError (shapes, types),
    NotImplementedError (dropout_p above 0, what the device does not do)."""
    refuse_dropout(dropout_p)
    edges = window(window_size, causal)
    result = attend(
        q, k, v, causal=causal, window_edges=edges, softmax_scale=softmax_scale, softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    return _with_probs(q, result, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """flash_attn_func of qkv [batch, seqlen, 3, heads, dim]."""
    return flash_attn_func(
        *qkv.unbind(-3), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """flash_attn_func of q and kv [batch, seqlen_k, 2, heads_kv, dim]."""
    return flash_attn_func(
        q, *kv.unbind(-3), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int | torch.Tensor,
    max_seqlen_k: int | torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """q [total_q, heads, dim]; k, v [total_k, heads_kv, dim], or with block_table int32 [batch,
    max_pages] pages [num_pages, page_size, heads_kv, dim] whose lengths are the differences of
    cu_seqlens_k (page_size: any; there a multiple of 256). -> o [total_q, heads, dim], or
    (o, lse [heads, total_q], S_dmask). max_seqlen_*: int or 0-dim tensor."""
    refuse_dropout(dropout_p)
    edges = window(window_size, causal)
    paged: dict[str, Any] = dict(cu_seqlens_k=cu_seqlens_k)
    if block_table is not None:
        paged = dict(page_table=block_table, seqused_k=cu_seqlens_k[1:] - cu_seqlens_k[:-1])
    result = attend(
        q, k, v, causal=causal, window_edges=edges, softmax_scale=softmax_scale, softcap=softcap,
        alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, **paged,
    )
    return _with_probs(q, result, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int | torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """flash_attn_varlen_func of qkv [total, 3, heads, dim]."""
    return flash_attn_varlen_func(
        *qkv.unbind(-3), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int | torch.Tensor,
    max_seqlen_k: int | torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """flash_attn_varlen_func of q and kv [total_k, 2, heads_kv, dim]."""
    return flash_attn_varlen_func(
        q, *kv.unbind(-3), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Appends k, v [batch, seqlen_new, heads_kv, dim] to the caches in place, rotated if rotary_cos
    and rotary_sin [positions, rotary_dim / 2] are given, then attends with q [batch, seqlen_q,
    heads, dim] (rotated too) to cache_seqlens (int or [batch]) + seqlen_new keys.

    k_cache, v_cache [rows, capacity, heads_kv, dim], row b of the batch being cache_batch_idx[b] if
    given; or pages [num_pages, page_size, ...] with block_table. With causal or a window q's row i
    is rotated as position cache_seqlens + i, else every row as cache_seqlens. cache_leftpad
    [batch]: keys before it are not seen. -> o, or (o, lse). num_splits: 0 or 1; more is a hint."""
    edges = window(window_size, causal)
    o, lse = attend(
        q, k_cache, v_cache, causal=causal, window_edges=edges, softmax_scale=softmax_scale,
        softcap=softcap, alibi_slopes=alibi_slopes, k_new=k, v_new=v, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, seqused_k=cache_seqlens,
        batch_index=cache_batch_idx, leftpad_k=cache_leftpad, page_table=block_table,
        num_splits=int(num_splits == 1), is_cache=True,
    )
    return (o, lse) if return_softmax_lse else o


# Names below this line are private there, but other libraries import them: diffusers, ring-
# attention packages. The forwards run; the backwards say that there is none.


def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    return_softmax: bool,
) -> tuple[torch.Tensor, ...]:
    """-> (o, lse, S_dmask, rng_state): the last two belong to dropout and are empty or zero."""
    refuse_dropout(dropout_p)
    if return_softmax:
        refuse("return_softmax", return_softmax, "it returns the pattern of dropout_p above 0")
    result = attend(
        q, k, v, causal=causal, window_edges=window((window_size_left, window_size_right), causal),
        softmax_scale=softmax_scale, softcap=softcap, alibi_slopes=alibi_slopes,
    )
    return (*result, q.new_empty(0), q.new_zeros(2, dtype=torch.int64))


def _flash_attn_varlen_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int | torch.Tensor,
    max_seqlen_k: int | torch.Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    return_softmax: bool = False,
    block_table: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> tuple[torch.Tensor, ...]:
    """The ragged twin of _flash_attn_forward."""
    refuse_dropout(dropout_p)
    if return_softmax:
        refuse("return_softmax", return_softmax, "it returns the pattern of dropout_p above 0")
    if zero_tensors:
        refuse("zero_tensors", zero_tensors)
    paged: dict[str, Any] = dict(cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k)
    if block_table is not None:
        if seqused_k is None:
            seqused_k = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        paged = dict(page_table=block_table, seqused_k=seqused_k)
    result = attend(
        q, k, v, causal=causal, window_edges=window((window_size_left, window_size_right), causal),
        softmax_scale=softmax_scale, softcap=softcap, alibi_slopes=alibi_slopes,
        leftpad_k=leftpad_k, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, num_splits=int(num_splits == 1), **paged,
    )
    return (*result, q.new_empty(0), q.new_zeros(2, dtype=torch.int64))


def _no_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError("the backward of attention is not supported by tegula yet")


_flash_attn_backward = _no_backward
_flash_attn_varlen_backward = _no_backward
_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward
