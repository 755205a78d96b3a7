# SPDX-License-Identifier: Apache-2.0
"""Attention on the arrays of any framework. Meaning, shapes and errors: docs/contract.md.

B sequences, Hq query heads, Hkv key heads (Hkv divides Hq), head_dim D, head_dim_v Dv. Outputs are arrays of q's framework
on q's device. Errors are ValueError, TypeError, NotImplementedError (refused by name) or RuntimeError with one line of text.
"""

from __future__ import annotations

from typing import Any

from . import _core
from ._arrays import dtype_number, framework_of

Array = Any
Plan = _core.Plan

_OPTIONS = """
    causal          query i sees keys up to i + seqlen_k - seqlen_q (bottom-right alignment)
    window_left,    keys that far left and right of that position are seen, inclusive; -1 = unlimited.
    window_right    "A window of W tokens" is window_left = W - 1
    attention_chunk c > 0: keys of the query's own chunk of c positions alone; 0 = none
    softmax_scale   > 0; None = D ** -0.5
    softcap         c > 0: scores become c * tanh(s / c); 0 = none
    sink            float32 [Hq], one more logit in the denominator (StreamingLLM, arXiv:2309.17453; gpt-oss)
    alibi_slopes    float32 [Hq] or [B, Hq] (ALiBi, arXiv:2108.12409)
    bias            [B, Hq, seqlen_q, seqlen_k], any stride 0, q's dtype or float32 (added) or bool (True = seen); CPU
    seqused_q,      int32 [B]: used lengths; rows past seqused_q are not written
    seqused_k
    leftpad_k       int32 [B]: keys before it are not seen
    descale_q, _k,  float32 [1], [Hkv] or [B, Hkv]: value = stored * descale (8-bit types alone)
    descale_v
    kv_dtype        "e4m3" or "e5m2": the type of k and v that come as uint8
    out_dtype       "float32", "float16" or "bfloat16"; None = q's (bfloat16 for 8-bit q)
    num_splits      ranges of keys that a sequence is cut into: 0 = automatic, 1 = none
    fixed_split     tokens a split, so that a sequence's bits depend on itself alone; 0 = off
    fast_accumulate 8-bit types on CUDA alone
    return_lse      also return lse, float32, natural logarithm
    out, lse_out    arrays to write into
    error_word      int32 on the GPU: receives 1 + the index of a sequence with bad indices
"""


def _operands(
    q, k, v, out, lse_out, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, page_table, page_indices, page_indptr,
    cu_seqlens_new, sink, alibi_slopes, bias, descale_q, descale_k, descale_v, arrays,
):  # fmt: skip
    """In the order of ForwardOperand in module.cc."""
    index = arrays.index
    return (
        q, k, v, out, lse_out,
        None if cu_seqlens_q is None else index(cu_seqlens_q, q, "cu_seqlens_q"),
        None if cu_seqlens_k is None else index(cu_seqlens_k, q, "cu_seqlens_k"),
        None if seqused_q is None else index(seqused_q, q, "seqused_q"),
        None if seqused_k is None else index(seqused_k, q, "seqused_k"),
        None if leftpad_k is None else index(leftpad_k, q, "leftpad_k"),
        None if page_table is None else index(page_table, q, "page_table"),
        None if page_indices is None else index(page_indices, q, "page_indices"),
        None if page_indptr is None else index(page_indptr, q, "page_indptr"),
        None if cu_seqlens_new is None else index(cu_seqlens_new, q, "cu_seqlens_new"),
        sink, alibi_slopes, bias, descale_q, descale_k, descale_v,
    )  # fmt: skip


def _call(
    q, k, v, cu_seqlens_q, cu_seqlens_k, page_table, page_indices, page_indptr, seqlen_new, cu_seqlens_new, max_seqlen_q,
    max_seqlen_k, causal, window_left, window_right, attention_chunk, softmax_scale, softcap, sink, alibi_slopes, bias,
    seqused_q, seqused_k, leftpad_k, descale_q, descale_k, descale_v, kv_dtype, out_dtype, num_splits, fixed_split,
    fast_accumulate, return_lse, out, lse_out, error_word, only_plan,
):  # fmt: skip
    arrays = framework_of(q)
    if arrays.immutable and (out is not None or lse_out is not None):
        raise TypeError(f"{'out' if out is not None else 'lse_out'}: {type(q).__name__} arrays are immutable")
    shape = tuple(q.shape)
    if out is None:
        if not hasattr(v, "shape"):
            raise TypeError(f"v: {type(v).__name__} is no array: it has neither __dlpack__ nor __array_interface__")
        number = dtype_number(out_dtype, "out_dtype")
        if number == 0 and arrays.is_8bit(q):
            number = 3
        out = arrays.empty((*shape[:-1], *(v.shape[-1:] or (1,))), q, number)  # (1,): the refusal of v's rank names v
    elif out_dtype is not None:
        raise TypeError("out_dtype: out brings its own type")
    if lse_out is None and return_lse:
        lse_shape = (shape[1], shape[0]) if len(shape) == 3 else (shape[0], *shape[2:-1], shape[1]) if len(shape) > 1 else ()
        lse_out = arrays.empty_lse(lse_shape, q)
    operands = _operands(
        q, k, v, out, lse_out, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, page_table, page_indices,
        page_indptr, cu_seqlens_new, sink, alibi_slopes, bias, descale_q, descale_k, descale_v, arrays,
    )  # fmt: skip
    # In the order of ForwardOption in module.cc.
    options = (
        seqlen_new, 0 if kv_dtype is None else dtype_number(kv_dtype, "kv_dtype"), max_seqlen_q, max_seqlen_k,
        1 if causal else 0, window_left, window_right, attention_chunk, softmax_scale, softcap, num_splits, fixed_split,
        1 if fast_accumulate else 0,
    )  # fmt: skip
    if only_plan:
        return _core.plan(operands, options)
    _core.forward(operands, options, error_word)
    if return_lse or arrays.immutable:
        return (arrays.finish(out), arrays.finish(lse_out)) if return_lse else arrays.finish(out)
    return out


def _attention(
    q: Array, k: Array, v: Array, *, causal=False, window_left=-1, window_right=-1, attention_chunk=0, softmax_scale=None,
    softcap=0.0, sink=None, alibi_slopes=None, bias=None, seqused_q=None, seqused_k=None, leftpad_k=None, descale_q=None,
    descale_k=None, descale_v=None, kv_dtype=None, out_dtype=None, num_splits=0, fixed_split=0, fast_accumulate=False,
    return_lse=False, out=None, lse_out=None, error_word=None, only_plan=False,
):  # fmt: skip
    return _call(
        q, k, v, None, None, None, None, None, 0, None, None, None, causal, window_left, window_right, attention_chunk,
        softmax_scale, softcap, sink, alibi_slopes, bias, seqused_q, seqused_k, leftpad_k, descale_q, descale_k, descale_v,
        kv_dtype, out_dtype, num_splits, fixed_split, fast_accumulate, return_lse, out, lse_out, error_word, only_plan,
    )  # fmt: skip


def _attention_varlen(
    q: Array, k: Array, v: Array, cu_seqlens_q=None, cu_seqlens_k=None, *, max_seqlen_q=None, max_seqlen_k=None,
    causal=False, window_left=-1, window_right=-1, attention_chunk=0, softmax_scale=None, softcap=0.0, sink=None,
    alibi_slopes=None, bias=None, seqused_q=None, seqused_k=None, leftpad_k=None, descale_q=None, descale_k=None,
    descale_v=None, kv_dtype=None, out_dtype=None, num_splits=0, fixed_split=0, fast_accumulate=False, return_lse=False,
    out=None, lse_out=None, error_word=None, only_plan=False,
):  # fmt: skip
    return _call(
        q, k, v, cu_seqlens_q, cu_seqlens_k, None, None, None, 0, None, max_seqlen_q, max_seqlen_k, causal, window_left,
        window_right, attention_chunk, softmax_scale, softcap, sink, alibi_slopes, bias, seqused_q, seqused_k, leftpad_k,
        descale_q, descale_k, descale_v, kv_dtype, out_dtype, num_splits, fixed_split, fast_accumulate, return_lse, out,
        lse_out, error_word, only_plan,
    )  # fmt: skip


def _attention_with_cache(
    q: Array, k_cache: Array, v_cache: Array, seqused_k=None, *, page_table=None, page_indices=None, page_indptr=None,
    cu_seqlens_q=None, seqlen_new=0, cu_seqlens_new=None, max_seqlen_q=None, max_seqlen_k=None, causal=False,
    window_left=-1, window_right=-1, attention_chunk=0, softmax_scale=None, softcap=0.0, sink=None, alibi_slopes=None,
    bias=None, seqused_q=None, leftpad_k=None, descale_q=None, descale_k=None, descale_v=None, kv_dtype=None,
    out_dtype=None, num_splits=0, fixed_split=0, fast_accumulate=False, return_lse=False, out=None, lse_out=None,
    error_word=None, only_plan=False,
):  # fmt: skip
    return _call(
        q, k_cache, v_cache, cu_seqlens_q, None, page_table, page_indices, page_indptr, seqlen_new, cu_seqlens_new,
        max_seqlen_q, max_seqlen_k, causal, window_left, window_right, attention_chunk, softmax_scale, softcap, sink,
        alibi_slopes, bias, seqused_q, seqused_k, leftpad_k, descale_q, descale_k, descale_v, kv_dtype, out_dtype,
        num_splits, fixed_split, fast_accumulate, return_lse, out, lse_out, error_word, only_plan,
    )  # fmt: skip


def _append_kv(
    k_new: Array, v_new: Array, k_cache: Array, v_cache: Array, seqused_k=None, *, cu_seqlens_new=None, page_table=None,
    page_indices=None, page_indptr=None, slot_mapping=None, positions=None, cos=None, sin=None, rotary_style="half_split",
    q=None, q_out=None, descale_k=None, descale_v=None, kv_dtype=None,
):  # fmt: skip
    styles = {"half_split": 0, "interleaved": 1}
    if not isinstance(rotary_style, str) or rotary_style not in styles:
        raise ValueError(f"rotary_style: {rotary_style!r} is neither 'half_split' nor 'interleaved'")
    arrays = framework_of(k_cache, "k_cache")
    if arrays.immutable:
        raise TypeError(f"k_cache: {type(k_cache).__name__} arrays are immutable; append_kv writes into the cache")
    if q is not None and q_out is None:
        q_out = arrays.empty(tuple(q.shape), q, 0)

    def index(values: Any, name: str) -> Any:
        return None if values is None else arrays.index(values, k_cache, name)

    _core.append_kv(
        (
            k_new, v_new, k_cache, v_cache, index(cu_seqlens_new, "cu_seqlens_new"), index(seqused_k, "seqused_k"),
            index(page_table, "page_table"), index(page_indices, "page_indices"), index(page_indptr, "page_indptr"),
            slot_mapping, index(positions, "positions"), cos, sin, q, q_out, descale_k, descale_v,
        ),
        styles[rotary_style],
        dtype_number(kv_dtype, "kv_dtype"),
    )  # fmt: skip
    return q_out


def _combine(o_partial: Array, lse_partial: Array, *, sink=None, out=None, out_dtype=None, return_lse=True, lse_out=None):
    arrays = framework_of(o_partial, "o_partial")
    if arrays.immutable and (out is not None or lse_out is not None):
        raise TypeError(f"{'out' if out is not None else 'lse_out'}: {type(o_partial).__name__} arrays are immutable")
    if out is None:
        out = arrays.empty(tuple(o_partial.shape[1:]), o_partial, dtype_number(out_dtype, "out_dtype"))
    elif out_dtype is not None:
        raise TypeError("out_dtype: out brings its own type")
    if lse_out is None and return_lse:
        lse_out = arrays.empty_lse(tuple(getattr(lse_partial, "shape", ())[1:]), o_partial)
    _core.combine(o_partial, lse_partial, out, lse_out, sink)
    return (arrays.finish(out), arrays.finish(lse_out)) if return_lse else arrays.finish(out)


def _check_grad(q, k, v, keywords: dict) -> None:
    arrays = framework_of(q)
    named = (("q", q), ("k", k), ("v", v), *((name, keywords.get(name)) for name in ("bias", "sink", "alibi_slopes")))
    arrays.check_grad(named)


def attention(q: Array, k: Array, v: Array, **options: Any):
    """Exact attention of dense tensors (FlashAttention, arXiv:2205.14135).

    q [B, seqlen_q, Hq, D], k [B, seqlen_k, Hkv, D], v [B, seqlen_k, Hkv, Dv]
    -> o [B, seqlen_q, Hq, Dv], or (o, lse [B, Hq, seqlen_q]) with return_lse.
    """
    _check_grad(q, k, v, options)
    return _attention(q, k, v, **options)


def attention_varlen(q: Array, k: Array, v: Array, cu_seqlens_q: Array = None, cu_seqlens_k: Array = None, **options: Any):
    """Attention of sequences that lie one after the other.

    q [total_q, Hq, D] with cu_seqlens_q int32 [B + 1], or dense without it; k and v likewise with cu_seqlens_k
    -> o [total_q, Hq, Dv], or (o, lse [Hq, total_q]) with return_lse.
    max_seqlen_q, max_seqlen_k: the longest sequences, where known (an int or a 0-dimensional tensor); on the CPU a longer
    one is an error.
    """
    _check_grad(q, k, v, options)
    return _attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)


def attention_with_cache(q: Array, k_cache: Array, v_cache: Array, seqused_k: Array = None, **options: Any):
    """Attention over a cache of keys and values: decode, chunked prefill (PagedAttention, arXiv:2309.06180).

    q [B, seqlen_q, Hq, D], or ragged with cu_seqlens_q; seqused_k int32 [B], the used lengths.
    Contiguous: k_cache [B, capacity, Hkv, D]. Paged: k_cache [num_pages, page_size, Hkv, D] with page_table int32
    [B, max_pages], or page_indices int32 [total_pages] with page_indptr int32 [B + 1].
    seqlen_new (an int) or cu_seqlens_new int32 [B + 1]: added to seqused_k, so that append_kv and this call take the same
    lengths. -> o as q with Dv, or (o, lse).
    """
    _check_grad(q, k_cache, v_cache, options)
    return _attention_with_cache(q, k_cache, v_cache, seqused_k, **options)


for _function in (attention, attention_varlen, attention_with_cache):
    _function.__doc__ = (_function.__doc__ or "").rstrip() + "\n\n    Options:" + _OPTIONS


# inspect.signature and help() show the keywords of the function that takes them.
attention.__wrapped__ = _attention  # type: ignore[attr-defined]
attention_varlen.__wrapped__ = _attention_varlen  # type: ignore[attr-defined]
attention_with_cache.__wrapped__ = _attention_with_cache  # type: ignore[attr-defined]


def append_kv(k_new: Array, v_new: Array, k_cache: Array, v_cache: Array, seqused_k: Array = None, **options: Any):
    """Writes new rows into a cache, in place; returns the rotated q, or None without q.

    k_new, v_new [B, seqlen_new, Hkv, D or Dv], or ragged [total_new, ...] with cu_seqlens_new; seqused_k int32 [B], the
    lengths before (not modified). The cache as in attention_with_cache, by page_table, page_indices and page_indptr, or
    slot_mapping int64 [total_new] (page * page_size + offset; negative = skip the row).
    cos, sin [max_pos, rotary_dim / 2]: rotary embedding (arXiv:2104.09864) of k_new, and of q, at the row's position or at
    positions int32 [total_new]; rotary_style "half_split" or "interleaved". q_out: where q goes, q itself allowed.
    descale_k, descale_v: an 8-bit cache stores x / descale; kv_dtype names its type where it is uint8.
    """
    framework_of(k_cache, "k_cache").check_grad((("k_new", k_new), ("v_new", v_new), ("q", options.get("q"))))
    return _append_kv(k_new, v_new, k_cache, v_cache, seqused_k, **options)


def combine(o_partial: Array, lse_partial: Array, **options: Any):
    """Merges partial results of the same rows over disjoint keys; -inf (or +inf) marks an empty one.

    o_partial [num_splits, B, seqlen_q, Hq, Dv] or [num_splits, total_q, Hq, Dv], lse_partial float32
    [num_splits, B, Hq, seqlen_q] or [num_splits, Hq, total_q] -> (o, lse), or o with return_lse=False.
    sink float32 [Hq] enters once, here. out, lse_out, out_dtype as in attention.
    """
    framework_of(o_partial, "o_partial").check_grad((("o_partial", o_partial), ("sink", options.get("sink"))))
    return _combine(o_partial, lse_partial, **options)


def _planner(q, k, v, keywords: dict):
    if any(keywords.get(name) is not None for name in ("page_table", "page_indices", "seqlen_new", "cu_seqlens_new")):
        return _attention_with_cache
    return _attention_varlen


def plan(q: Array, k: Array, v: Array, **options: Any) -> Plan:
    """What a call with these arguments (those of attention, attention_varlen or attention_with_cache, by keyword) would do,
    without doing it: implementation, tiles, splits, scratch. plan(...).prepare() compiles and loads its kernels."""
    return _planner(q, k, v, options)(q, k, v, only_plan=True, **options)


def explain(q: Array, k: Array, v: Array, **options: Any) -> str:
    """Text for people: which implementation a call takes, and why each earlier one was refused."""
    return plan(q, k, v, **options).explain()


append_kv.__wrapped__ = _append_kv  # type: ignore[attr-defined]
combine.__wrapped__ = _combine  # type: ignore[attr-defined]
