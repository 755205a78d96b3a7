# SPDX-License-Identifier: Apache-2.0
"""The dialects' arguments -> one call of the operators torch.ops.tegula.*.

flash-attn 2, FlashAttention-3 and FlashAttention-4 ask for the same attention with different names,
defaults and return values. The modules beside this one hold the names; what the arguments mean is
converted here, once. Meanings: docs/contract.md (ours); the public sources of the three packages
(theirs, as facts). Shapes as in the contract: q [batch, seqlen_q, heads, dim] or [total_q, heads,
dim], k and v likewise or pages [num_pages, page_size, heads_kv, dim].
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn, Union

import torch
from torch.autograd import forward_ad

from tegula import _torch_operators  # noqa: F401  (registers the operators)

_ops = torch.ops.tegula
Pair = tuple[int, int]
Edge = Union[int, torch.Tensor, None]
Window = Union[tuple[Edge, Edge], list[Edge], torch.Tensor, None]  # (left, right)
UNLIMITED = -1


def refuse(option: str, value: object, why: str = "") -> NoReturn:
    """Raises NotImplementedError that names the option and shows its value."""
    shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value
    raise NotImplementedError(f"{option}: {shown} is not supported by tegula{why and '; ' + why}")


def refuse_dropout(dropout_p: float) -> None:
    """Dropout changes the result, so it is refused unless it is off."""
    if dropout_p:
        refuse("dropout_p", dropout_p, "attention is exact here: pass 0.0")


def refuse_given(**options: object) -> None:
    """Refuses every option that is neither None nor False."""
    for name, value in options.items():
        if value is not None and value is not False:
            refuse(name, value)


def whole(value: Any, name: str) -> int | None:
    """An int, a numpy int, a 0-dim tensor, or None as it is."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {value!r} is no whole number") from None


def _edges(window_size: Any) -> tuple[int | None, int | None]:
    if window_size is None:
        return None, None
    if not isinstance(window_size, (Sequence, torch.Tensor)) or len(window_size) != 2:
        raise ValueError(f"window_size: {window_size!r} is no (left, right)")
    left, right = window_size
    return whole(left, "window_size[0]"), whole(right, "window_size[1]")


def window(window_size: Any, causal: bool) -> Pair:
    """(left, right) of flash-attn 2 and FlashAttention-3: negative or None is unlimited; `causal`
    puts 0 in the place of right, whatever it was. Entries may be ints or 0-dim tensors."""
    left, right = (UNLIMITED if e is None or e < 0 else e for e in _edges(window_size))
    return left, 0 if causal else right


def window_or_none(window_size: Any, causal: bool) -> Pair:
    """(left, right) of FlashAttention-4: None is unlimited, two negative edges are too; one
    negative edge shifts the window there (and meant "unlimited" in its early betas), so it is
    refused."""
    left, right = _edges(window_size)
    if left is not None and right is not None and left < 0 and right < 0:
        left = right = None
    if causal:
        right = 0
    if (left is not None and left < 0) or (right is not None and right < 0):
        refuse("window_size", window_size, "write None for an edge without limit")
    return UNLIMITED if left is None else left, UNLIMITED if right is None else right


def number(value: Any) -> float | None:
    """A float, from a float or a 0-dim tensor; None as it is."""
    return None if value is None else float(value)


def lengths(value: Any, batch: int, device: torch.device) -> torch.Tensor | None:
    """int32 [batch] from an int, a 0-dim tensor or a tensor [batch]; None as it is."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return value.expand(batch).contiguous() if value.dim() == 0 else value
    return torch.full((batch,), operator.index(value), dtype=torch.int32, device=device)


def last_dim_contiguous(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor, copied if its last dimension is strided (as the three packages do for inputs;
    caches are written in place and never copied)."""
    if tensor is None or tensor.stride(-1) == 1:
        return tensor
    return tensor.contiguous()


_fp32_sinks: dict[int, tuple[weakref.ref, tuple, torch.Tensor]] = {}


def fp32_sink(sink: torch.Tensor | None) -> torch.Tensor | None:
    """The sink as fp32. A model passes the same 16-bit weight in every layer and step: the cast is
    kept for as long as the weight lives and has the same storage and version. Where someone follows
    the cast (autograd, a tracer), it is an ordinary one."""
    if sink is None or sink.dtype == torch.float32:
        return sink
    followed = torch.is_grad_enabled() and sink.requires_grad
    if followed or torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return sink.float()
    if sink.is_inference():  # has no version counter: a change in place would not be seen
        return sink.detach().float()
    state = (sink._version, sink.data_ptr(), sink.device, sink.dtype, sink.shape, sink.stride())
    known = _fp32_sinks.get(id(sink))
    if known is not None and known[0]() is sink and known[1] == state:
        return known[2]
    with torch.inference_mode(False):
        cast = sink.detach().float()
    key = id(sink)
    _fp32_sinks[key] = (weakref.ref(sink, lambda _: _fp32_sinks.pop(key, None)), state, cast)
    return cast


class _ForwardOnly(torch.autograd.Function):
    """Append, then attend, under grad mode with inputs that require it: the forward runs, the
    backward says no. (The operators do the same for themselves, but refuse such rows in append_kv.)
    """

    @staticmethod
    def forward(ctx: Any, call: Any, *inputs: Any) -> Any:
        return call()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise NotImplementedError(
            "the backward of attention is not supported by tegula yet; "
            "use torch.no_grad(), or another attention for training"
        )


def _run(call: Any, inputs: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return _ForwardOnly.apply(call, *inputs)
    return call()


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    window_edges: Pair,
    causal: bool = False,
    k_new: torch.Tensor | None = None,
    v_new: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    cu_seqlens_new: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: Any = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    page_table: torch.Tensor | None = None,
    batch_index: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    rotary_interleaved: bool = True,
    rotary_seqlens: torch.Tensor | None = None,
    descale_q: torch.Tensor | None = None,
    descale_k: torch.Tensor | None = None,
    descale_v: torch.Tensor | None = None,
    softmax_scale: Any = None,
    attention_chunk: Any = 0,
    softcap: Any = None,
    sink: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    fixed_split: int = 0,
    out: torch.Tensor | None = None,
    is_cache: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Appends k_new, v_new to the cache (k, v) if they are given, then o, lse = attention.

    window_edges: from window() or window_or_none(). seqused_k: lengths before the new rows. With
    is_cache, page_table, batch_index or new rows, k and v are a cache [batch, capacity, ...] or
    pages. lse: fp32 [batch, heads, seqlen_q] or [heads, total_q].
    """
    q, k_new, v_new = (last_dim_contiguous(t) for t in (q, k_new, v_new))
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    options = dict(
        causal=bool(causal),
        window_left=window_edges[0],
        window_right=window_edges[1],
        attention_chunk=whole(attention_chunk, "attention_chunk") or 0,
        softmax_scale=number(softmax_scale),
        softcap=max(number(softcap) or 0.0, 0.0),  # <= 0 is "none" in all three
        sink=fp32_sink(sink),
        alibi_slopes=alibi_slopes,
        seqused_q=seqused_q,
        leftpad_k=leftpad_k,
        descale_q=descale_q,
        descale_k=descale_k,
        descale_v=descale_v,
        num_splits=num_splits,
        fixed_split=fixed_split,
    )
    ragged = dict(
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=whole(max_seqlen_q, "max_seqlen_q"),
        max_seqlen_k=whole(max_seqlen_k, "max_seqlen_k"),
    )
    seqused_k = lengths(seqused_k, batch, k.device)

    if not (is_cache or page_table is not None or batch_index is not None or k_new is not None):
        k, v = last_dim_contiguous(k), last_dim_contiguous(v)
        if cu_seqlens_q is None and cu_seqlens_k is None:
            o, lse = _ops.attention(q, k, v, seqused_k=seqused_k, **options)
        else:
            o, lse = _ops.attention_varlen(
                q, k, v, cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k, **ragged, **options
            )
        return _into(out, o), lse

    if batch_index is not None:  # sequence b is row batch_index[b] of the cache, or of the table
        if page_table is None:
            page_table = batch_index.reshape(-1, 1)  # one page a sequence, as long as the capacity
        else:
            page_table = page_table.index_select(0, batch_index)
    if page_table is None:
        k, v = k[:batch], v[:batch]  # a cache may have room for more sequences
    elif seqused_k is None:
        seqused_k = lengths(page_table.shape[1] * k.shape[1], batch, k.device)

    def cached() -> tuple[torch.Tensor, torch.Tensor]:
        rows = q
        appended: dict[str, Any] = {}
        if k_new is not None:
            rows = _append(
                q, k_new, v_new, k, v, seqused_k, page_table, cu_seqlens_q, cu_seqlens_new,
                rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens,
                moving=window_edges != (UNLIMITED, UNLIMITED) or bool(attention_chunk),
                descales=(descale_k, descale_v),
            )
            if cu_seqlens_new is None:
                appended["seqlen_new"] = k_new.shape[1]
            else:
                appended["cu_seqlens_new"] = cu_seqlens_new
        return _ops.attention_with_cache(
            rows, k, v, seqused_k, page_table=page_table, **appended, **ragged, **options
        )

    if k_new is not None and (v_new is None or seqused_k is None):
        missing = "v" if v_new is None else "cache_seqlens"
        raise ValueError(f"{missing}: None, but k is given: new rows need k, v and cache_seqlens")
    if k_new is None and (v_new is not None or rotary_cos is not None):
        given = "v" if v_new is not None else "rotary_cos"
        raise ValueError(f"{given} is given, but k is None: new rows need k, v and cache_seqlens")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("rotary_cos and rotary_sin: one is given and the other is None")
    o, lse = cached() if k_new is None else _run(cached, (q, k, v, k_new, v_new, sink))
    return _into(out, o), lse


def _into(out: torch.Tensor | None, o: torch.Tensor) -> torch.Tensor:
    """o, written into `out` if that is given (private functions and combine alone take it)."""
    if out is None:
        return o
    if out.dtype != o.dtype:
        raise TypeError(f"out: {out.dtype} differs from the result's {o.dtype}")
    if out.shape != o.shape:
        raise ValueError(f"out: shape {tuple(out.shape)} differs from {tuple(o.shape)}")
    return out.copy_(o)


def _append(
    q: torch.Tensor,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seqused_k: torch.Tensor,
    page_table: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_new: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    interleaved: bool,
    rotary_seqlens: torch.Tensor | None,
    *,
    moving: bool,
    descales: tuple[torch.Tensor | None, torch.Tensor | None],
) -> torch.Tensor:
    """Writes the new rows, rotated if cos is given; returns q, rotated too.

    Row t of k_new stands at position p = seqused_k + t (rotary_seqlens + t in the tables, if
    given). Row i of q is rotated as position p = seqused_k + i if the mask moves with the row
    (causal or a window), else every row as position seqused_k: that is the rule of all three
    packages."""
    args: dict[str, Any] = dict(cu_seqlens_new=cu_seqlens_new, page_table=page_table)
    if k_new.dtype != k_cache.dtype:  # stored in 8 bits: the cache's scale divides
        args.update(descale_k=descales[0], descale_v=descales[1])
    if cos is None:
        _ops.append_kv(k_new, v_new, k_cache, v_cache, seqused_k, **args)
        return q
    rotary: dict[str, Any] = dict(
        cos=cos, sin=sin, rotary_style="interleaved" if interleaved else "half_split"
    )
    dense = cu_seqlens_q is None and cu_seqlens_new is None
    one_position = dense and q.shape[1] == k_new.shape[1] == 1
    if dense and rotary_seqlens is None and (
        one_position or (moving and q.shape[1] == k_new.shape[1])
    ):
        turned = torch.empty_like(q)
        _ops.append_kv(
            k_new, v_new, k_cache, v_cache, seqused_k, q=q, q_out=turned, **args, **rotary
        )
        return turned
    base = seqused_k if rotary_seqlens is None else rotary_seqlens
    if rotary_seqlens is not None:
        args["positions"] = _positions(base, k_new, cu_seqlens_new, moving=True)
    _ops.append_kv(k_new, v_new, k_cache, v_cache, seqused_k, **args, **rotary)
    return _rotate(q, _positions(base, q, cu_seqlens_q, moving=moving), k_cache, v_cache, rotary)


def _positions(
    base: torch.Tensor, rows: torch.Tensor, cu_seqlens: torch.Tensor | None, *, moving: bool
) -> torch.Tensor:
    """int32 [all rows of `rows`]: base[b] + i of row i of sequence b; base[b] alone if not
    moving."""
    base = base.to(torch.int32)
    if cu_seqlens is None:
        step = torch.arange(rows.shape[1], dtype=torch.int32, device=base.device)
        return (base[:, None] + (step if moving else step * 0)).flatten()
    row = torch.arange(rows.shape[0], dtype=torch.int32, device=base.device)
    cu_seqlens = cu_seqlens.to(torch.int32)
    sequence = torch.searchsorted(cu_seqlens[1:], row, right=True).clamp_(max=base.shape[0] - 1)
    position = base[sequence] + (row - cu_seqlens[sequence] if moving else 0)
    # Padded batches have rows past the last sequence: any position that the tables have will do.
    return torch.where(row < cu_seqlens[-1], position, 0)


def _rotate(
    q: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rotary: dict[str, Any],
) -> torch.Tensor:
    """q with its rows rotated as these positions: an append that skips every row (slot -1), so that
    the arithmetic is that of the cache's rows, bit by bit."""
    rows = q.flatten(0, -3)
    total = rows.shape[0]
    nothing = [
        torch.zeros(c.shape[-1], dtype=q.dtype, device=q.device).expand(total, *c.shape[-2:])
        for c in (k_cache, v_cache)
    ]
    skip = torch.full((total,), -1, dtype=torch.int64, device=q.device)
    turned = torch.empty_like(rows)
    _ops.append_kv(
        *nothing, k_cache, v_cache, slot_mapping=skip, positions=positions, q=rows, q_out=turned,
        **rotary,
    )
    return turned.view(q.shape)


def combine(
    out_partial: torch.Tensor,
    lse_partial: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """flash_attn_combine of FlashAttention-3 and -4: out_partial [splits, .., heads, dim] and
    lse_partial [splits, .., heads], whose heads come last unlike in every other lse -> (o, lse [..,
    heads]); o has out_dtype, else out_partial's type."""
    if out is not None and out_dtype is not None and out.dtype != out_dtype:
        raise TypeError(f"out: {out.dtype} differs from out_dtype: {out_dtype}")
    dtype = out_dtype or (out_partial if out is None else out).dtype
    lse_rows = last_dim_contiguous(lse_partial.transpose(-1, -2))
    parts = last_dim_contiguous(out_partial)
    o, lse = _ops.combine(parts, lse_rows, out_dtype=dtype)
    return _into(out, o), lse.transpose(-1, -2)
