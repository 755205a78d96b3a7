# SPDX-License-Identifier: Apache-2.0
"""The operators torch.ops.tegula.*, through torch.library. Arguments and meaning: tegula.core and docs/contract.md.

Registered with Library.define and impl: the custom_op decorator costs ten times as much a call. Differences from the core:
attention and its like return (o, lse) always, lse of no element with return_lse=False; with seqused_q, rows past it are 0
(lse: -inf), because a functional operator has no undefined part; index arguments are tensors.

Gradients: the forward runs under grad mode; the backward is an operator (tegula::backward) of which only the fake exists, so
that a compiled or exported forward does not need it. Running it raises NotImplementedError.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import core

_TAGS = tuple(getattr(torch.Tag, name) for name in ("needs_exact_strides", "pt2_compliant_tag") if hasattr(torch.Tag, name))

_OPTIONS = (
    "bool causal=False, SymInt window_left=-1, SymInt window_right=-1, SymInt attention_chunk=0, float? softmax_scale=None, "
    "float softcap=0.0, Tensor? sink=None, Tensor? alibi_slopes=None, Tensor? bias=None, Tensor? seqused_q=None, "
    "Tensor? leftpad_k=None, Tensor? descale_q=None, Tensor? descale_k=None, Tensor? descale_v=None, str? kv_dtype=None, "
    "ScalarType? out_dtype=None, int num_splits=0, int fixed_split=0, bool fast_accumulate=False, bool return_lse=True"
)
_SCHEMAS = {
    "attention": f"(Tensor q, Tensor k, Tensor v, *, Tensor? seqused_k=None, {_OPTIONS}) -> (Tensor, Tensor)",
    "attention_varlen": "(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, *, "
    f"SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, Tensor? seqused_k=None, {_OPTIONS}) -> (Tensor, Tensor)",
    "attention_with_cache": "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? seqused_k=None, *, Tensor? page_table=None, "
    "Tensor? page_indices=None, Tensor? page_indptr=None, Tensor? cu_seqlens_q=None, SymInt seqlen_new=0, "
    f"Tensor? cu_seqlens_new=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, {_OPTIONS}) -> (Tensor, Tensor)",
    "append_kv": "(Tensor k_new, Tensor v_new, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? seqused_k=None, *, "
    "Tensor? cu_seqlens_new=None, Tensor? page_table=None, Tensor? page_indices=None, Tensor? page_indptr=None, "
    "Tensor? slot_mapping=None, Tensor? positions=None, Tensor? cos=None, Tensor? sin=None, str rotary_style='half_split', "
    "Tensor? q=None, Tensor(c!)? q_out=None, Tensor? descale_k=None, Tensor? descale_v=None, str? kv_dtype=None) -> ()",
    "combine": "(Tensor o_partial, Tensor lse_partial, *, Tensor? sink=None, ScalarType? out_dtype=None) -> (Tensor, Tensor)",
    "backward": "(str operator, Tensor grad, Tensor[] inputs) -> Tensor[]",
}  # fmt: skip

_library = torch.library.Library("tegula", "DEF")


def _lse_shape(q: Tensor) -> tuple:
    return (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])


def _outputs(q: Tensor, v: Tensor, out_dtype: torch.dtype | None, return_lse: bool) -> tuple[Tensor, Tensor]:
    dtype = out_dtype or (torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype)
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype),
        q.new_empty(_lse_shape(q) if return_lse else (0,), dtype=torch.float32),
    )


def _runs(function: Any) -> Any:
    def run(q, k, v, *arguments, return_lse=True, seqused_q=None, **options):
        if seqused_q is not None:
            o, lse = _outputs(q, v, options.pop("out_dtype", None), return_lse)
            o.zero_()
            options.update(seqused_q=seqused_q, out=o, lse_out=lse.fill_(-torch.inf) if return_lse else None)
        result = function(q, k, v, *arguments, return_lse=return_lse, **options)
        return result if return_lse else (result, q.new_empty(0, dtype=torch.float32))

    return run


def _fake_attention(q, k, v, *arguments, out_dtype=None, return_lse=True, **options):
    return _outputs(q, v, out_dtype, return_lse)


def _run_append_kv(k_new, v_new, k_cache, v_cache, seqused_k=None, *, q=None, q_out=None, **options) -> None:
    if (q is None) != (q_out is None):
        raise ValueError("q_out: the operator takes q and q_out together, two tensors")
    core._append_kv(k_new, v_new, k_cache, v_cache, seqused_k, q=q, q_out=q_out, **options)


def _fake_append_kv(*arguments, **options) -> None:
    return None


def _run_combine(o_partial, lse_partial, *, sink=None, out_dtype=None):
    return core._combine(o_partial, lse_partial, sink=sink, out_dtype=out_dtype)


def _fake_combine(o_partial, lse_partial, *, sink=None, out_dtype=None):
    return (
        o_partial.new_empty(o_partial.shape[1:], dtype=out_dtype or o_partial.dtype),
        lse_partial.new_empty(lse_partial.shape[1:]),
    )


def _run_backward(operator: str, grad: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    raise NotImplementedError(f"tegula::{operator}: there is no backward yet; detach the result or call under torch.no_grad()")


def _fake_backward(operator: str, grad: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for x in inputs]


class _Differentiable(torch.autograd.Function):
    """Records that a backward is wanted."""

    @staticmethod
    def forward(ctx, operator: str, call: Any, *inputs: Tensor):
        ctx.operator = operator
        ctx.save_for_backward(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return call()

    @staticmethod
    def backward(ctx, *grads: Tensor):
        grad = next(grad for grad in grads if grad is not None)
        return (None, None, *torch.ops.tegula.backward(ctx.operator, grad, list(ctx.saved_tensors)))


def _differentiated(arguments: tuple, options: dict) -> list[Tensor]:
    return [x for x in (*arguments, *options.values()) if isinstance(x, Tensor) and x.requires_grad]


def _has_tangent(arguments: tuple, options: dict) -> bool:
    tensors = (x for x in (*arguments, *options.values()) if isinstance(x, Tensor))
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


_known_keysets: dict[int, bool] = {}


def _is_plain(keyset: Any) -> bool:
    """Whether nothing (fake tensors, functionalization, a mode, a subclass) stands between autograd and the device's kernel.

    That kernel is then called from here, without a second way through the dispatcher (an empty operator costs 3.5 to 7 us).
    """
    raw = keyset.raw_repr()
    known = _known_keysets.get(raw)
    if known is None:
        lower = (keyset & torch._C._after_autograd_keyset).remove(torch._C.DispatchKey.ADInplaceOrView)
        known = lower.highestPriorityTypeId() in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
        _known_keysets[raw] = known
    return known


def _autograd_of(name: str, run: Any) -> Any:
    operator = getattr(torch.ops.tegula, name).default
    below = torch._C._after_autograd_keyset

    def autograd(keyset, *arguments, **options):
        # The kernels below know no tangents: the result would silently count as a constant.
        if forward_ad._current_level >= 0 and _has_tangent(arguments, options):
            raise NotImplementedError(f"tegula::{name}: there is no forward-mode derivative (jvp)")
        if torch.is_grad_enabled():
            inputs = _differentiated(arguments, options)
            if inputs and name == "append_kv":
                raise NotImplementedError("tegula::append_kv: writing tensors that require a gradient has no backward; detach them")
            if inputs and torch._C._are_functorch_transforms_active():
                raise NotImplementedError(f"tegula::{name}: there is no backward yet, so torch.func cannot differentiate it")
            if inputs:
                call = lambda: operator.redispatch(keyset & below, *arguments, **options)  # noqa: E731
                return _Differentiable.apply(name, call, *inputs)
        if _is_plain(keyset):
            return run(*arguments, **options)
        return operator.redispatch(keyset & below, *arguments, **options)

    return autograd


def _register() -> None:
    implementations = {
        "attention": (_runs(core._attention), _fake_attention),
        "attention_varlen": (_runs(core._attention_varlen), _fake_attention),
        "attention_with_cache": (_runs(core._attention_with_cache), _fake_attention),
        "append_kv": (_run_append_kv, _fake_append_kv),
        "combine": (_run_combine, _fake_combine),
        "backward": (_run_backward, _fake_backward),
    }
    for name, (run, fake) in implementations.items():
        _library.define(name + _SCHEMAS[name], tags=_TAGS)
        for device in ("CPU", "CUDA"):
            _library.impl(name, run, device)
        torch.library.register_fake(f"tegula::{name}", fake, lib=_library)
        if name != "backward":
            _library.impl(name, _autograd_of(name, run), "Autograd", with_keyset=True)


_register()
