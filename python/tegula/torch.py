# SPDX-License-Identifier: Apache-2.0
"""PyTorch: scaled_dot_product_attention with PyTorch's signature and meaning, a context manager that routes
torch.nn.functional.scaled_dot_product_attention here, and the operators torch.ops.tegula.* (registered by this import).

Where tegula has no implementation (a cell of docs/contract.md, section 2), a call goes to PyTorch with one FallbackWarning
for each reason, or raises NotImplementedError after set_fallback("raise").
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from . import _torch_operators

__all__ = ["FallbackWarning", "scaled_dot_product_attention", "sdpa", "set_fallback"]

_attention = torch.ops.tegula.attention.default
_pytorch = torch._C._nn.scaled_dot_product_attention  # what torch.nn.functional names unless someone replaced it
_DTYPES = {
    "cpu": (torch.float32, torch.float16, torch.bfloat16),
    "meta": (torch.float32, torch.float16, torch.bfloat16),
    "cuda": (torch.float16, torch.bfloat16),
}
_MODES = ("warn", "raise")


class FallbackWarning(UserWarning):
    """A call went to PyTorch's scaled_dot_product_attention; the text says why."""


_mode = "warn"
_told: set[str] = set()


def set_fallback(mode: str) -> str:
    """What a call does that tegula has no implementation for: "warn" (PyTorch computes it, one FallbackWarning for each
    reason in a process) or "raise" (NotImplementedError). Returns the mode before. Process-wide."""
    global _mode
    if mode not in _MODES:
        raise ValueError(f"mode: {mode!r} is neither 'warn' nor 'raise'")
    before, _mode = _mode, mode
    return before


@torch.compiler.assume_constant_result  # under torch.compile: said once, while tracing
def _tell(reason: str) -> None:
    if reason not in _told:
        _told.add(reason)
        warnings.warn(f"scaled_dot_product_attention goes to PyTorch: {reason}", FallbackWarning, stacklevel=3)


def _refusal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> str | None:
    """Why tegula does not take these operands, or None. Shapes of leading dimensions: _to_4d."""
    device = q.device
    if device.type not in _DTYPES:
        return f"query: device {device.type} is none of cpu, cuda, meta"
    if k.device != device or v.device != device:
        return f"key on {k.device}, value on {v.device}: query is on {device}"
    if q.is_nested or k.is_nested or v.is_nested:
        return "query, key or value is a nested tensor"
    if q.layout is not torch.strided or k.layout is not torch.strided or v.layout is not torch.strided:
        return "query, key or value is not strided"
    dtype = q.dtype
    if dtype not in _DTYPES[device.type] or k.dtype != dtype or v.dtype != dtype:
        return f"query, key, value: {dtype}, {k.dtype}, {v.dtype} on {device.type}"
    if q.ndim < 2 or k.ndim < 2 or v.ndim < 2:
        return f"query, key, value: {q.ndim}, {k.ndim}, {v.ndim} dimensions, at least 2 are needed"
    dim, dim_v = q.shape[-1], v.shape[-1]
    if k.shape[-1] != dim or v.shape[-2] != k.shape[-2]:
        return f"key: shape {tuple(k.shape)} fits query's {tuple(q.shape)} or value's {tuple(v.shape)} not"
    if device.type == "cuda":
        if dim % 8 or dim_v % 8 or not 8 <= dim <= 256 or not 8 <= dim_v <= 256:
            return f"head_dim {dim}, head_dim_v {dim_v}: multiples of 8 up to 256 are taken on CUDA"
    elif not 1 <= dim <= 512 or not 1 <= dim_v <= 512:
        return f"head_dim {dim}, head_dim_v {dim_v}: 1 to 512 are taken"
    if scale is not None and not scale > 0:
        return f"scale: {scale} is not above 0"
    if mask is not None:
        if is_causal:
            return "attn_mask beside is_causal"
        if mask.dtype not in (torch.bool, torch.float32, dtype):
            return f"attn_mask: {mask.dtype} beside query's {dtype}"
        if mask.ndim < 2 or mask.device != device:
            return f"attn_mask: {mask.ndim} dimensions on {mask.device}, at least 2 on {device} are needed"
    return None


def _common(*shapes: Any) -> list[int] | None:
    """The shape that these broadcast to, or None."""
    ndim = max(len(shape) for shape in shapes)
    common = [1] * ndim
    for shape in shapes:
        for i, extent in enumerate(shape, ndim - len(shape)):
            if common[i] == 1:
                common[i] = extent
            elif extent != 1 and extent != common[i]:
                return None
    return common


def _to_4d(x: Tensor, lead: list[int], heads: int) -> Tensor:
    """[batch, heads, rows, columns]: leading dimensions broadcast and made one; a copy only where strides do not allow that."""
    shape = (*lead, heads, *x.shape[-2:])
    if x.shape != shape:
        x = x.expand(shape)
    if len(lead) == 1:
        return x
    batch = 1
    for extent in lead:
        batch *= extent
    return x.reshape(batch, *shape[-3:])


def _dense(x: Tensor) -> Tensor:
    """The core wants stride 1 in the last dimension."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


_paddings: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _padding(mask: Tensor, seen: Tensor) -> tuple[Tensor, Tensor] | None:
    """(leftpad_k, seqused_k), int32 [batch], of a boolean padding mask: one run of visible keys for each sequence, the same
    for all heads and rows. None for any other mask. seen: the mask as [batch, num_heads, seqlen_q, seqlen_k].

    Reading the mask waits for the device, so the answer is kept as long as the mask object lives unmodified: the layers of
    a model share one wait. (Inference tensors count no modifications: nothing is kept for them.)
    """
    if mask.dtype != torch.bool or any(seen.shape[i] != 1 and seen.stride(i) != 0 for i in (1, 2)):
        return None
    version = None if mask.is_inference() else mask._version
    key = (version, tuple(seen.shape))
    if version is not None and _paddings.get(mask, (None, None))[0] == key:
        return _paddings[mask][1]
    rows = seen[:, 0, 0]
    if rows.numel() == 0:
        return None
    count = rows.sum(-1, dtype=torch.int32)
    first = rows.to(torch.uint8).argmax(-1).to(torch.int32)  # of several largest values, the first
    last = first + count
    index = torch.arange(rows.shape[-1], device=rows.device, dtype=torch.int32)
    run = (index >= first[:, None]) & (index < last[:, None])
    lengths = (first, last) if bool((run == rows).all()) else None
    if version is not None:
        _paddings[mask] = (key, lengths)
    return lengths


def _mask_options(mask: Tensor | None, seen: Tensor | None, is_causal: bool, seqlen_q: int, seqlen_k: int) -> dict | str:
    """Options of tegula::attention for the mask, or why there are none."""
    if mask is None or seen is None:
        if not is_causal:
            return {}
        # PyTorch aligns top-left: row i sees keys up to i. With more keys than rows the caller has cut the keys; with fewer,
        # row i stands at p = i - (seqlen_q - seqlen_k) in the contract's alignment and sees keys up to p + window_right.
        return {"causal": True} if seqlen_q <= seqlen_k else {"window_right": seqlen_q - seqlen_k}
    if mask.device.type != "cuda":
        return {"bias": seen}
    if mask.dtype != torch.bool:
        return "attn_mask: additive masks are not done on CUDA"
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return "attn_mask: its values cannot be read under torch.compile or stream capture (lengths: torch.ops.tegula.attention)"
    lengths = _padding(mask, seen)
    if lengths is None:
        return "attn_mask: no padding mask ([batch, 1, 1, seqlen_k], one run of True for each sequence)"
    return {"leftpad_k": lengths[0], "seqused_k": lengths[1]}


def _attend(q, k, v, mask, is_causal, scale, enable_gqa) -> Tensor | str:
    """The attention, or why tegula does not compute it."""
    reason = _refusal(q, k, v, mask, is_causal, scale)
    if reason is not None:
        return reason
    ndim = max(q.ndim, k.ndim, v.ndim)
    q4, k4, v4 = (x.unsqueeze(0) if x.ndim == 2 else x for x in (q, k, v))
    heads, heads_k, heads_v = q4.shape[-3], k4.shape[-3], v4.shape[-3]
    lead: list[int] | None = list(q4.shape[:-3])
    if lead != list(k4.shape[:-3]) or lead != list(v4.shape[:-3]):
        lead = _common(q4.shape[:-3], k4.shape[:-3], v4.shape[:-3])
    if enable_gqa:
        if heads_k != heads_v or heads_k == 0 or heads % heads_k or ndim < 3:
            return f"enable_gqa: {heads} heads of query on {heads_k} of key and {heads_v} of value"
    elif heads != heads_k or heads != heads_v:
        every = _common((heads,), (heads_k,), (heads_v,))
        if every is None:
            lead = None
        else:
            heads = every[0]
            heads_k = heads_v = 1 if heads_k == heads_v == 1 else heads
    if lead is None:
        return f"shapes: query {tuple(q.shape)}, key {tuple(k.shape)}, value {tuple(v.shape)} do not broadcast"
    q4, k4, v4 = _to_4d(q4, lead, heads), _to_4d(k4, lead, heads_k), _to_4d(v4, lead, heads_v)
    seqlen_q, seqlen_k = q4.shape[2], k4.shape[2]
    seen = None
    if mask is not None:
        full = [*lead, heads, seqlen_q, seqlen_k]
        if _common(full, mask.shape) != full:
            return f"attn_mask: shape {tuple(mask.shape)} does not broadcast to {tuple(full)}"
        strided = mask if mask.stride(-1) in (0, 1) or mask.shape[-1] <= 1 else mask.contiguous()
        seen = _to_4d(strided.expand(full), lead, heads)
    elif is_causal and seqlen_q < seqlen_k:
        k4, v4 = k4[:, :, :seqlen_q], v4[:, :, :seqlen_q]  # later keys are seen by no row
    options = _mask_options(mask, seen, is_causal, seqlen_q, seqlen_k)
    if isinstance(options, str):
        return options
    try:
        o, _ = _attention(
            _dense(q4).transpose(1, 2), _dense(k4).transpose(1, 2), _dense(v4).transpose(1, 2),
            softmax_scale=scale, return_lse=False, **options,
        )  # fmt: skip
    except NotImplementedError as error:  # a device that the library has no kernels for
        return str(error)
    o = o.transpose(1, 2)
    if len(lead) != 1:
        o = o.view(*lead, *o.shape[1:])
    return o.squeeze(0) if ndim == 2 else o


def _autocast(tensors: tuple, device: str) -> tuple:
    """What torch.autocast does with the operands of PyTorch's function."""
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x.to(dtype) if x is not None and x.is_floating_point() and x.dtype != torch.float64 and x.device.type == device else x
        for x in tensors
    )


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention: same arguments, same meaning.

    query [..., heads, seqlen_q, dim], key [..., heads, seqlen_k, dim], value [..., heads, seqlen_k, dim_v]
    -> [..., heads, seqlen_q, dim_v]; without the heads too (2 or 3 dimensions); leading dimensions broadcast.
    attn_mask   broadcasts to [..., heads, seqlen_q, seqlen_k]: bool (True = seen) or added, float32 or query's dtype.
                CPU: taken as it lies, broadcast dimensions are not copied. CUDA: padding masks become lengths, others fall back
    dropout_p   0.0; more raises NotImplementedError
    is_causal   row i sees keys 0..i (top-left alignment, unlike tegula.attention's causal), for any two lengths
    scale       None = dim ** -0.5; values that are not above 0 fall back
    enable_gqa  heads of key and value divide those of query
    A row that sees no key is 0, as PyTorch's is. Gradients: forward alone; the backward raises NotImplementedError.
    """
    if dropout_p > 0.0:
        raise NotImplementedError(f"dropout_p: {dropout_p} is not done, 0.0 is")
    device = query.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):  # it raises for meta
        query, key, value, attn_mask = _autocast((query, key, value, attn_mask), device)
    o = _attend(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if not isinstance(o, str):
        return o
    if _mode == "raise":
        raise NotImplementedError(f"scaled_dot_product_attention: {o}")
    _tell(o)
    return _pytorch(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


_routes = 0
_replaced: Any = None
_routing = threading.Lock()


@contextlib.contextmanager
def sdpa(fallback: str | None = None) -> Iterator[None]:
    """Inside it torch.nn.functional.scaled_dot_product_attention is tegula's, in all threads; the last one to leave puts back
    what was there. Code that took PyTorch's function by name before (from ... import) keeps PyTorch's.

    fallback: "warn" or "raise" inside it, as set_fallback; None = as it is.
    """
    global _routes, _replaced
    before = None if fallback is None else set_fallback(fallback)
    functional = torch.nn.functional
    with _routing:
        if _routes == 0:
            _replaced = functional.scaled_dot_product_attention
        _routes += 1
        functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        with _routing:
            _routes -= 1
            if _routes == 0:
                functional.scaled_dot_product_attention, _replaced = _replaced, None
        if before is not None:
            set_fallback(before)


del _torch_operators
