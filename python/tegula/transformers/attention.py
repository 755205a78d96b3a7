# SPDX-License-Identifier: Apache-2.0
"""The attention function that transformers' models call: tensors [batch, heads, seqlen, head_dim].

Arguments are those of transformers' own functions (`sdpa_attention_forward` and
`flash_attention_forward`): the module, query, key, value, what the mask function returned, and
keywords of the model's own. What this function does not know how to honour, it refuses by name.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import core
from .mask import Mask

# Keywords that change the result in a way that has no counterpart here.
_REFUSED = ("sinks", "block_indices")


def _windows(causal: bool, sliding_window: int | None, seqlen_k: int) -> dict[str, Any]:
    """Edges of a call without a mask, as transformers' flash-attention functions draw them."""
    if sliding_window is None or seqlen_k <= sliding_window:
        return {"causal": causal}
    if not causal:
        raise NotImplementedError(
            f"sliding_window {sliding_window} on {seqlen_k} keys without a mask and a causal edge: "
            "transformers' attention functions disagree on what that means"
        )
    return {"causal": True, "window_left": sliding_window - 1}


def _check(module: torch.nn.Module, tensors: tuple, dropout: float, kwargs: dict) -> None:
    if dropout:
        raise NotImplementedError(f"dropout {dropout}: tegula has none; call model.eval()")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(
            "query, key or value requires grad, and tegula's attention has no backward yet: "
            'use torch.no_grad(), or attn_implementation="sdpa" for training'
        )
    if kwargs.get("output_attentions"):
        raise NotImplementedError(
            'output_attentions: tegula makes no attention weights; use attn_implementation="eager"'
        )
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"{name}: {type(module).__name__} passes it, tegula has none")


def _bias_of(mask: torch.Tensor, seqlen_q: int, seqlen_k: int) -> torch.Tensor:
    """A prepared 4-D mask of the caller's: boolean (True = visible) or additive."""
    if mask.ndim != 4 or mask.shape[-2] not in (1, seqlen_q) or mask.shape[-1] != seqlen_k:
        raise ValueError(
            f"attention_mask: shape {tuple(mask.shape)}, expected "
            f"[batch, 1 or num_heads, {seqlen_q}, {seqlen_k}]"
        )
    if mask.dtype == torch.bool:
        return mask
    # transformers writes "unseen" as the lowest finite number, which is added to scores here too.
    return mask.masked_fill(mask <= torch.finfo(mask.dtype).min, float("-inf"))


def _joined(bias: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """Two masks that both hold: booleans and-ed, additive ones added."""
    if bias is None or other is None:
        return other if bias is None else bias
    if bias.dtype == torch.bool and other.dtype == torch.bool:
        return bias & other
    if bias.dtype == torch.bool:
        return other.masked_fill(~bias, float("-inf"))
    if other.dtype == torch.bool:
        return bias.masked_fill(~other, float("-inf"))
    return bias + other


@torch.compiler.disable
def _dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask,
    bias: torch.Tensor | None,
    options: dict[str, Any],
) -> torch.Tensor:
    bias = _joined(mask.visible, bias)
    if bias is not None:
        if bias.dtype not in (torch.bool, torch.float32, q.dtype):
            bias = bias.to(torch.float32)
        if bias.stride(-1) not in (0, 1):
            bias = bias.contiguous()
        bias = bias.expand(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    return core.attention(
        q,
        k,
        v,
        causal=mask.causal,
        window_left=mask.window_left,
        window_right=mask.window_right,
        attention_chunk=mask.attention_chunk,
        leftpad_k=mask.leftpad_k,
        seqused_k=mask.seqused_k,
        bias=bias,
        **options,
    )


@torch.compiler.disable
def _ragged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: tuple[torch.Tensor, torch.Tensor],
    max_seqlen: tuple[int, int],
    options: dict[str, Any],
) -> torch.Tensor:
    """q, k, v [batch, seqlen, heads, dim] hold sequences one behind the other."""
    # Rows behind the last sequence (padding of a captured batch) stay as they are: zeros.
    out = q.new_zeros(q.shape[0] * q.shape[1], q.shape[2], v.shape[3])
    core.attention_varlen(
        q.flatten(0, 1),
        k.flatten(0, 1),
        v.flatten(0, 1),
        cu_seqlens[0].to(torch.int32),
        cu_seqlens[1].to(torch.int32),
        max_seqlen_q=max_seqlen[0],
        max_seqlen_k=max_seqlen[1],
        out=out,
        **options,
    )
    return out.unflatten(0, q.shape[:2])


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Mask | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """o [batch, seqlen_q, num_heads_q, head_dim_v], and None for the weights.

    query [batch, num_heads_q, seqlen_q, head_dim], key and value [batch, num_heads_kv, seqlen_k,
    dim]. The mask is what `register()`'s mask function made, a caller's 4-D tensor, or None: then
    the call is causal if `is_causal` or the module says so, as with "sdpa". `sliding_window` counts
    only then (a mask already has it). Sequences packed in one row come through the mask (made from
    position_ids) or cu_seq_lens_q/k. Raises NotImplementedError and ValueError naming the argument.
    """
    _check(module, (query, key, value), dropout, kwargs)
    if s_aux is None and getattr(module, "sinks", None) is not None:
        raise NotImplementedError(
            f"{type(module).__name__} has sinks and does not pass them as s_aux"
        )
    if key.device != query.device:
        raise ValueError(f"key: on {key.device}, query is on {query.device}")
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    batch, seqlen_q, seqlen_k = q.shape[0], q.shape[1], k.shape[1]
    options: dict[str, Any] = {
        "softmax_scale": scaling,
        "softcap": float(softcap or 0.0),
        "sink": None if s_aux is None else s_aux.detach().to(device=q.device, dtype=torch.float32),
    }
    lengths = None
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        lengths = (cu_seq_lens_q, cu_seq_lens_k)
    bias = position_bias

    if isinstance(attention_mask, torch.Tensor):
        bias = _joined(bias, _bias_of(attention_mask, seqlen_q, seqlen_k))
        mask = Mask(batch, seqlen_q, seqlen_k)
    elif attention_mask is None:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        if lengths is None and causal and 1 < seqlen_q < seqlen_k:
            raise ValueError(
                f"attention_mask: None for {seqlen_q} queries on {seqlen_k} keys with a causal "
                "edge does not say where the queries stand"
            )
        edges = _windows(bool(causal), sliding_window, seqlen_k)
        mask = Mask(batch, seqlen_q, seqlen_k, **edges)
    else:
        mask = attention_mask
        if (mask.seqlen_q, mask.seqlen_k) != (seqlen_q, seqlen_k):
            raise ValueError(
                f"attention_mask: made for {mask.seqlen_q} queries and {mask.seqlen_k} keys, "
                f"called with {seqlen_q} and {seqlen_k}"
            )
        if any(tensor.device != q.device for tensor in mask.tensors()):
            mask = mask.to(q.device)

    if mask.cu_seqlens is not None:
        lengths, longest = (mask.cu_seqlens, mask.cu_seqlens), (mask.max_seqlen, mask.max_seqlen)
    elif lengths is not None:
        longest = (max_length_q or seqlen_q, max_length_k or seqlen_k)
    if lengths is None:
        return _dense(q, k, v, mask, bias, options), None
    cut = (bias, mask.visible, mask.leftpad_k, mask.seqused_k)
    if any(tensor is not None for tensor in cut):
        raise NotImplementedError(
            "cu_seq_lens_q: sequences packed in a row, together with padding or a bias"
        )
    options |= {
        "causal": mask.causal,
        "window_left": mask.window_left,
        "window_right": mask.window_right,
        "attention_chunk": mask.attention_chunk,
    }
    return _ragged(q, k, v, lengths, longest, options), None
