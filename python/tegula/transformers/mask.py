# SPDX-License-Identifier: Apache-2.0
"""What transformers asks of a mask, in tegula's terms: causal, windows, chunks, lengths.

transformers builds every mask from small index functions (`kv_idx <= q_idx`, a window, a chunk, a
packed sequence, ...) joined by `and_masks` and `or_masks`, and asks the registered mask function
for the result. `read_mask` takes such a function apart instead of evaluating it: each part that it
knows by its code object becomes one option of the call, so no [seqlen_q, seqlen_k] tensor is made.
A part that it does not know (a prefix that sees itself, image blocks, a caller's own function)
makes the whole mask a boolean tensor, evaluated by transformers' own code: slower, the same mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from transformers import masking_utils

# One function of each kind that transformers makes; a function with the same code object is of that
# kind whatever it closed over.
_MADE_WITH = {
    "and": masking_utils.and_masks(masking_utils.causal_mask_function),
    "or": masking_utils.or_masks(masking_utils.causal_mask_function),
    "window": masking_utils.sliding_window_overlay(1),
    "two_sided_window": masking_utils.sliding_window_bidirectional_overlay(1),
    "chunk": masking_utils.chunked_overlay(1, torch.zeros(1, dtype=torch.int64)),
    "packed": masking_utils.packed_sequence_mask_function(torch.zeros(1, 1)),
    "positions": masking_utils.remap_positions_for_packed_sequence(
        masking_utils.causal_mask_function, torch.zeros(1, 1)
    ),
}
_KINDS = {function.__code__: kind for kind, function in _MADE_WITH.items()}


@dataclass(frozen=True, eq=False)
class Mask:
    """A mask as options of one attention call, handed by transformers from the one to the other.

    Options mean what they mean in docs/contract.md: rows are aligned at the bottom right, `visible`
    and the options hold together. `cu_seqlens` stands instead of the other tensors.
    """

    batch: int
    seqlen_q: int
    seqlen_k: int
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    attention_chunk: int = 0
    leftpad_k: torch.Tensor | None = None  # int32 [batch]
    seqused_k: torch.Tensor | None = None  # int32 [batch]
    cu_seqlens: torch.Tensor | None = None  # int32 [sequences + 1] over batch * seqlen_q rows
    max_seqlen: int = 0  # of cu_seqlens
    visible: torch.Tensor | None = None  # bool [batch, 1 or heads, 1 or seqlen_q, seqlen_k], and-ed
    why_visible: str = ""  # what could not be said with the options above, for error texts

    # transformers asks a mask for its rank: 4 means "prepared, use it as it is".
    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.batch, 1, self.seqlen_q, self.seqlen_k)

    def dim(self) -> int:
        return 4

    def to(self, *args: Any, **kwargs: Any) -> "Mask":
        """The same mask with its tensors moved (models whose layers lie on several devices)."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {
            name: value.to(*args, **kwargs)
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)

    def tensors(self) -> list[torch.Tensor]:
        values = (self.leftpad_k, self.seqused_k, self.cu_seqlens, self.visible)
        return [value for value in values if value is not None]


class _Unknown(Exception):
    """A part that has no option of its own; the text says which."""


@dataclass
class _Parts:
    causal: bool = False
    window: int | None = None
    two_sided_window: int | None = None
    chunk: int | None = None
    chunk_pad: torch.Tensor | None = None
    packed: torch.Tensor | None = None
    positions: torch.Tensor | None = None


def _closed_over(function: Callable) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells)}


def _name(function: Callable) -> str:
    kind = _KINDS.get(getattr(function, "__code__", None))
    if kind in ("and", "or"):
        parts = ", ".join(_name(part) for part in _closed_over(function)["mask_functions"])
        return f"{kind}_masks({parts})"
    return getattr(function, "__qualname__", repr(function)).split(".")[0]


def _take_apart(function: Callable, parts: _Parts, within_positions: bool = False) -> None:
    """Adds the conditions of which `function` is the conjunction, or raises _Unknown."""
    if function is masking_utils.causal_mask_function:
        parts.causal = True
        return
    if function is masking_utils.bidirectional_mask_function:
        return
    kind = _KINDS.get(getattr(function, "__code__", None))
    values = _closed_over(function) if kind else {}
    if kind == "and":
        for part in values["mask_functions"]:
            _take_apart(part, parts, within_positions)
    elif kind == "window" and parts.window is None:
        parts.window = int(values["sliding_window"])
    elif kind == "two_sided_window" and parts.two_sided_window is None:
        parts.two_sided_window = int(values["sliding_window"])
    elif kind == "chunk" and parts.chunk is None:
        parts.chunk, parts.chunk_pad = int(values["chunk_size"]), values["left_padding"]
    elif kind == "packed" and parts.packed is None and not within_positions:
        parts.packed = values["packed_sequence_mask"]
    elif kind == "positions" and parts.positions is None:
        parts.positions = values["position_ids"]
        _take_apart(values["mask_function"], parts, within_positions=True)
    else:
        raise _Unknown(_name(function))


def _edges(mask: Mask, parts: _Parts) -> Mask:
    """causal, windows and chunk of `parts`, all relative to the query's own position."""
    # "kv > q - W" is a window of W tokens with the query's own: W - 1 to the left.
    left = -1 if parts.window is None else parts.window - 1
    right = -1
    if parts.two_sided_window is not None:
        left = parts.two_sided_window if left < 0 else min(left, parts.two_sided_window)
        right = parts.two_sided_window
    if parts.window is not None and parts.window < 1:
        raise _Unknown(f"a sliding window of {parts.window} tokens")
    if parts.causal:
        right = -1  # the causal edge is the tighter one, and tegula wants no second one beside it
    return replace(
        mask,
        causal=parts.causal,
        window_left=left,
        window_right=right,
        attention_chunk=parts.chunk or 0,
    )


def _packed(mask: Mask, parts: _Parts) -> Mask:
    """Sequences packed into rows: boundaries wherever the sequence's number changes."""
    if parts.packed is None or parts.positions is None:
        raise _Unknown("packed sequences without position_ids, or the reverse")
    if mask.seqlen_q != mask.seqlen_k or parts.packed.shape != (mask.batch, mask.seqlen_q):
        raise _Unknown(f"packed sequences of shape {tuple(parts.packed.shape)}")
    number = parts.packed
    starts = torch.ones_like(number, dtype=torch.bool)
    starts[:, 1:] = number[:, 1:] != number[:, :-1]
    first = starts.flatten().nonzero().flatten()
    end = torch.full((1,), number.numel(), dtype=first.dtype, device=first.device)
    cu_seqlens = torch.cat([first, end]).to(torch.int32)
    if parts.chunk:
        # Chunks count from position 0, tegula's from the sequence's first row.
        at_start = parts.positions.expand(mask.batch, -1).flatten()[first]
        if bool((at_start % parts.chunk != 0).any()) or bool(parts.chunk_pad.any()):
            raise _Unknown("packed sequences that start inside a chunk")
    return replace(mask, cu_seqlens=cu_seqlens, max_seqlen=int(cu_seqlens.diff().max()))


def _padded(mask: Mask, visible: torch.Tensor | None) -> Mask:
    """`visible` bool [batch, seqlen_k]: False where a key is padding."""
    if visible is None:
        return mask
    place = torch.arange(mask.seqlen_k, device=visible.device)
    first = torch.where(visible, place, mask.seqlen_k).amin(-1)
    last = torch.where(visible, place, -1).amax(-1) + 1
    first = torch.minimum(first, last)  # no key at all: an empty range at 0
    # One transfer for the questions below.
    firsts, lasts, counts = torch.stack([first, last, visible.sum(-1)]).tolist()
    whole = all(count == max(0, b - a) for a, b, count in zip(firsts, lasts, counts))
    end = mask.seqlen_k
    if mask.seqused_k is not None and visible.device.type == "cpu":
        end = int(mask.seqused_k[0])
    left_aligned, right_aligned = not any(firsts), all(b == end for b in lasts)
    if whole and left_aligned and right_aligned:
        return mask
    edges = mask.causal or mask.window_left >= 0 or mask.window_right >= 0 or mask.attention_chunk
    bounded: dict[str, Any] = {}
    if not right_aligned and not edges:
        bounded = {"seqused_k": last.to(torch.int32)}  # moves every row's position, which is unused
    # Padding behind a sequence, with a causal edge: only rows of padding can see it, and no real
    # row depends on them. On the CPU they still get what "eager" gives them (generate() reads the
    # last row of a right-padded batch); elsewhere, without a bias, they see the padding too.
    ignored = mask.causal and visible.device.type != "cpu"
    if not whole or not (right_aligned or bounded or ignored):
        return replace(
            mask, visible=visible[:, None, None, :], why_visible="padding inside a sequence"
        )
    if left_aligned:
        return replace(mask, **bounded)
    return replace(mask, leftpad_k=first.to(torch.int32), **bounded)


def _chunk_start(mask: Mask, parts: _Parts, kv_offset: int) -> Mask:
    """tegula counts chunks from leftpad_k: right if that is what these chunks count from."""
    pad = parts.chunk_pad.to(torch.int32)
    if kv_offset != 0:
        raise _Unknown(f"chunks of a cache that dropped its first {kv_offset} keys")
    have = torch.zeros_like(pad) if mask.leftpad_k is None else mask.leftpad_k
    if mask.visible is not None or not bool((have == pad).all()):
        raise _Unknown("chunks that do not start at the first key seen")
    return mask


def _read(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor,
    kv_offset: int,
    mask_function: Callable,
    visible: torch.Tensor | None,
    device: torch.device,
) -> Mask:
    parts = _Parts()
    _take_apart(mask_function, parts)
    mask = _edges(Mask(batch_size, q_length, kv_length), parts)
    if parts.packed is not None or parts.positions is not None:
        if visible is not None:
            raise _Unknown("packed sequences with padding")
        return _packed(mask, parts)
    # Query row i stands at q_offset + i, key j at kv_offset + j. A static cache has room behind the
    # last query, so its position comes as a length, on the device and unread.
    length = q_offset - kv_offset + q_length
    moving = mask.causal or mask.window_left >= 0 or mask.window_right >= 0 or bool(parts.chunk)
    if moving and isinstance(length, torch.Tensor):
        used = length.to(device=device, dtype=torch.int32).reshape(-1).expand(batch_size)
        mask = replace(mask, seqused_k=used.contiguous())
    elif moving and length < kv_length:
        used = torch.full((batch_size,), length, dtype=torch.int32, device=device)
        mask = replace(mask, seqused_k=used)
    elif moving and length > kv_length:
        raise _Unknown(f"query position {length - 1} behind the last of {kv_length} keys")
    if mask.seqused_k is not None and not mask.causal:
        raise _Unknown("a window without a causal edge on a static cache")
    mask = _padded(mask, visible)
    return _chunk_start(mask, parts, kv_offset) if parts.chunk else mask


@torch.compiler.disable
def read_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Mask:
    """The mask that transformers describes (arguments as of `masking_utils.sdpa_mask`)."""
    device = torch.device(device)
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    visible = None
    if padding is not None:
        visible = padding[:, kv_offset : kv_offset + kv_length].to(device=device, dtype=torch.bool)
    mask, why = None, ""
    try:
        mask = _read(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, visible, device
        )
        why = mask.why_visible
    except _Unknown as part:
        why = str(part)
    if mask is None and (q_length == 1 or device.type == "cpu"):
        evaluated = masking_utils.sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
        whole = Mask(batch_size, q_length, kv_length)
        if q_length == 1 and evaluated.shape[1] == 1:
            mask = _padded(whole, evaluated[:, 0, 0])  # one row of keys is a range, or has holes
        else:
            mask = replace(whole, visible=evaluated, why_visible=why)
    if device.type != "cpu" and (mask is None or mask.visible is not None):
        raise NotImplementedError(
            f"attention_mask: {why} needs a bias tensor, which tegula does not take on "
            f'{device.type}; use attn_implementation="sdpa" for this model'
        )
    return mask
