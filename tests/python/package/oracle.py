# SPDX-License-Identifier: Apache-2.0
"""Attention in fp64 and numpy, as docs/contract.md states it, with the error that section 12 allows. Includes nothing of tegula.

attention() takes the arguments of tegula.attention_varlen and attention_with_cache (lengths as anything that numpy takes,
arrays of numpy, ml_dtypes, torch or jax) and returns a Result. Rows that a call does not write are NaN in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# contract.md, 12: u of P and V, e of scores, f of P's underflow, truncation of sums, factor before B and w.
LIMITS = {
    "cpu": {
        "float32": (2.0**-24, 2.0**-20, 0.0, 0.0, 2.0**-20),
        "float16": (2.0**-11, 1e-4, 2.0**-32, 0.0, 2.0**-20),  # f: the AMX softmax; 0 elsewhere
        "bfloat16": (2.0**-8, 1e-4, 2.0**-32, 0.0, 2.0**-20),
        "8bit": (2.0**-8, 1e-4, 2.0**-32, 0.0, 2.0**-20),
    },
    "cuda": {
        "float32": (2.0**-24, 2.0**-20, 0.0, 2.0**-29, 2.0**-20),
        "float16": (2.0**-11, 1e-4, 2.0**-25, 2.0**-29, 2.0**-20),
        "bfloat16": (2.0**-8, 1e-4, 0.0, 2.0**-29, 2.0**-20),
        "8bit": (2.0**-4, 1e-2, 2.0**-16, 2.0**-29, 2.0**-10),
    },
}
MANTISSA = {"float32": 24, "float16": 11, "bfloat16": 8}


def type_name(array: Any) -> str:
    """float32, bfloat16, float8_e4m3fn, ... of any framework."""
    return str(getattr(array.dtype, "name", array.dtype)).rpartition(".")[2]


def to64(array: Any) -> np.ndarray:
    if type(array).__module__.partition(".")[0] == "torch":
        array = array.detach().cpu()
        return (array.double() if array.is_floating_point() else array).numpy()
    array = np.asarray(array)
    with np.errstate(invalid="ignore"):  # rows that a call left alone may hold anything
        return array.astype(np.float64) if array.dtype.kind not in "biu" else array


def lengths(values: Any) -> list[int]:
    return [int(value) for value in to64(values).reshape(-1)] if hasattr(values, "dtype") else [int(v) for v in values]


def ulp(values: np.ndarray, name: str) -> np.ndarray:
    """One unit in the last place of a 16-bit type; 0 for fp32, whose rounding the other terms hold."""
    if name == "float32":
        return np.zeros_like(values)
    least = {"float16": 2.0**-24, "bfloat16": 2.0**-133}[name]
    exponent = np.floor(np.log2(np.maximum(np.abs(values), 2.0**-140)))
    return np.maximum(2.0 ** (exponent + 1 - MANTISSA[name]), least)


@dataclass
class Result:
    o: np.ndarray
    lse: np.ndarray
    o_bound: np.ndarray  # without the output's own ulp
    lse_bound: np.ndarray
    seen: np.ndarray  # visible keys of a row, shaped as lse

    def check(self, o: Any, lse: Any = None) -> None:
        """Asserts that every written element lies within the contract's bound."""
        written = ~np.isnan(self.o)
        given = to64(o)
        assert given.shape == self.o.shape, f"o {given.shape} against {self.o.shape}"
        allowed = self.o_bound + ulp(self.o, type_name(o)) + 2.0**-126
        empty = np.broadcast_to(np.swapaxes(self.seen == 0, -1, -2)[..., None], self.o.shape) & written
        assert np.all(given[empty] == 0), "o of a row without visible key is not 0"
        over = np.abs(given[written] - self.o[written]) / allowed[written]
        assert np.all(over <= 1), f"o is {np.max(over):.3g} times its bound in {np.sum(~(over <= 1))} of {over.size} elements"
        if lse is not None:
            given = to64(lse)
            assert given.shape == self.lse.shape, f"lse {given.shape} against {self.lse.shape}"
            empty = np.isneginf(self.lse)
            np.testing.assert_array_equal(np.isneginf(given[~np.isnan(self.lse)]), empty[~np.isnan(self.lse)])
            finite = np.isfinite(self.lse)
            over = np.abs(given[finite] - self.lse[finite]) / self.lse_bound[finite]
            assert np.all(over <= 1), f"lse is {np.max(over):.3g} times its bound"


def visible(seqlen_q: int, seqlen_k: int, *, causal: bool, window_left: int, window_right: int, chunk: int, leftpad: int):
    """bool [seqlen_q, seqlen_k], aligned at the bottom right."""
    position = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    key = np.arange(seqlen_k)[None, :]
    mask = np.broadcast_to(key >= leftpad, (seqlen_q, seqlen_k)).copy()
    right = 0 if causal else window_right
    if window_left >= 0:
        mask &= key >= position - window_left
    if right >= 0:
        mask &= key <= position + right
    if chunk > 0:
        mask &= (key - leftpad) // chunk == (position - leftpad) // chunk
    return mask


def scale_of(descale: Any, batch: int, head_kv: int) -> float:
    if descale is None:
        return 1.0
    values = to64(descale)
    if values.size == 1:
        return float(values.reshape(-1)[0])
    return float(values[batch, head_kv] if values.ndim == 2 else values[head_kv])


def attention(
    q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, *, page_table=None, page_indices=None, page_indptr=None, seqlen_new=0,
    cu_seqlens_new=None, seqused_q=None, seqused_k=None, leftpad_k=None, causal=False, window_left=-1, window_right=-1,
    attention_chunk=0, softmax_scale=None, softcap=0.0, sink=None, alibi_slopes=None, bias=None, descale_q=None,
    descale_k=None, descale_v=None, **_ignored,
) -> Result:  # fmt: skip
    name = type_name(q)
    limits = LIMITS["cuda" if getattr(q, "is_cuda", False) else "cpu"]
    u, e, f, truncation, score = limits.get(name, limits["8bit"])
    q, k, v = to64(q), to64(k), to64(v)
    heads, heads_kv, head_dim_v = q.shape[-2], k.shape[-2], v.shape[-1]
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    paged = page_table is not None or page_indices is not None
    starts_q = None if cu_seqlens_q is None else lengths(cu_seqlens_q)
    starts_k = None if cu_seqlens_k is None else lengths(cu_seqlens_k)
    batch = len(starts_q) - 1 if starts_q is not None else q.shape[0]
    used_q = None if seqused_q is None else lengths(seqused_q)
    used_k = None if seqused_k is None else lengths(seqused_k)
    pads = [0] * batch if leftpad_k is None else lengths(leftpad_k)
    added = [int(seqlen_new)] * batch if cu_seqlens_new is None else np.diff(lengths(cu_seqlens_new)).tolist()

    o = np.full((*q.shape[:-1], head_dim_v), np.nan)
    o_bound = np.zeros_like(o)
    lse_shape = (heads, q.shape[0]) if starts_q is not None else (batch, heads, q.shape[1])
    lse, lse_bound, seen = np.full(lse_shape, np.nan), np.zeros(lse_shape), np.zeros(lse_shape, np.int64)

    for b in range(batch):
        first_q = starts_q[b] if starts_q is not None else 0
        seqlen_q = starts_q[b + 1] - first_q if starts_q is not None else q.shape[1]
        seqlen_q = min(seqlen_q, used_q[b]) if used_q is not None else seqlen_q
        rows = slice(first_q, first_q + seqlen_q)
        at = rows if starts_q is not None else (b, rows)
        if paged:
            seqlen_k = used_k[b] + added[b]
            pages = to64(page_table)[b] if page_table is not None else to64(page_indices)[slice(*lengths(page_indptr)[b : b + 2])]
            pages = pages[: -(-seqlen_k // k.shape[1])].astype(np.int64)
            keys = k[pages].reshape(-1, *k.shape[2:])[:seqlen_k]
            values = v[pages].reshape(-1, *v.shape[2:])[:seqlen_k]
        else:
            keys, values = (k[b], v[b]) if starts_k is None else (k[slice(*starts_k[b : b + 2])], v[slice(*starts_k[b : b + 2])])
            seqlen_k = keys.shape[0] if used_k is None else used_k[b] + added[b]
            keys, values = keys[:seqlen_k], values[:seqlen_k]
        mask = visible(seqlen_q, seqlen_k, causal=causal, window_left=window_left, window_right=window_right,
                       chunk=attention_chunk, leftpad=pads[b])  # fmt: skip
        distance = np.abs(np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q - np.arange(seqlen_k)[None, :])
        for h in range(heads):
            hk = h // (heads // heads_kv)
            where = (h, rows) if starts_q is not None else (b, h, rows)
            queries = q[at][:, h] * scale_of(descale_q, b, hk)
            # What nobody sees may hold NaN, which 0 * NaN would let through.
            some = mask.any(axis=0)
            kk = np.where(some[:, None], keys[:, hk], 0) * scale_of(descale_k, b, hk)
            vv = np.where(some[:, None], values[:, hk], 0) * scale_of(descale_v, b, hk)
            s = scale * (queries @ kk.T)
            sbar = scale * (np.abs(queries) @ np.abs(kk).T)
            if softcap > 0:
                s = softcap * np.tanh(s / softcap)
            m = mask
            if bias is not None:
                full = np.broadcast_to(to64(bias), (batch, heads, *to64(bias).shape[2:]))[b, h, :seqlen_q, :seqlen_k]
                if full.dtype == bool:
                    m = m & full
                else:
                    m = m & ~np.isneginf(full)
                    s = s + np.where(m, full, 0)
                    sbar = sbar + np.abs(np.where(m, full, 0))
            if alibi_slopes is not None:
                slopes = to64(alibi_slopes)
                s = s - (slopes[b, h] if slopes.ndim == 2 else slopes[h]) * distance
                sbar = sbar + np.abs(slopes[b, h] if slopes.ndim == 2 else slopes[h]) * distance
            s = np.where(m, s, -np.inf)
            extra = -np.inf if sink is None else float(to64(sink)[h])
            largest = np.max(s, axis=1, initial=extra)
            safe = np.where(np.isneginf(largest), 0, largest)
            weights = np.where(m, np.exp(s - safe[:, None]), 0)
            total = weights.sum(axis=1) + (np.exp(extra - safe) if extra > -np.inf else 0)
            p = weights / np.where(total > 0, total, 1)[:, None]
            out = p @ vv
            with np.errstate(divide="ignore"):
                row_lse = np.where(total > 0, safe + np.log(total), -np.inf)
            n = m.sum(axis=1)
            w = (p * sbar).sum(axis=1)
            mass = p @ np.abs(vv)
            spread = np.sqrt(p**2 @ vv**2)
            moved = (p * sbar) @ np.abs(vv) + np.abs(out) * w[:, None]
            lost = np.minimum(p, f * p.max(axis=1, initial=0)[:, None]) @ np.abs(vv)
            root = 2.0**-23 * np.sqrt(n)
            o[at][:, h] = out
            o_bound[at][:, h] = 4 * u * spread + (e + root + truncation * n)[:, None] * mass + score * moved + lost
            lse[where], seen[where] = row_lse, n
            finite = np.where(np.isfinite(row_lse), row_lse, 0)
            lse_bound[where] = (2.0**-20 if name == "float32" else 3e-4) + score * (w + np.abs(finite)) + root
    return Result(o, lse, o_bound, lse_bound, seen)


def combine(o_partial, lse_partial, *, sink=None) -> Result:
    """Partial results of disjoint keys: [splits, B, S, H, D] with [splits, B, H, S], or ragged without B."""
    o_partial, lse_partial = to64(o_partial), to64(lse_partial)
    lse_partial = np.where(np.isposinf(lse_partial), -np.inf, lse_partial)
    logits = lse_partial if sink is None else np.concatenate([lse_partial, np.broadcast_to(
        to64(sink)[:, None], lse_partial.shape[1:])[None]])  # fmt: skip
    largest = logits.max(axis=0)
    safe = np.where(np.isneginf(largest), 0, largest)
    with np.errstate(divide="ignore"):
        lse = safe + np.log(np.exp(logits - safe).sum(axis=0))
    empty = np.isneginf(lse_partial)
    weights = np.where(empty, 0, np.exp(lse_partial - np.where(np.isneginf(lse), 0, lse)))
    distance = 1 + np.abs(np.where(empty, 0, lse_partial - np.where(np.isneginf(lse), 0, lse)))
    weights, distance = (np.swapaxes(x, -1, -2)[..., None] for x in (weights, distance))
    values = np.where(weights > 0, o_partial, 0)  # what counts nothing may be NaN
    finite = np.where(np.isneginf(lse), 0, lse)
    bound = 2.0**-20 * (weights * distance * np.abs(values)).sum(axis=0)
    return Result((weights * values).sum(axis=0), lse, bound, 2.0**-20 * (1 + np.abs(finite)), (~empty).sum(axis=0))


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, style: str) -> np.ndarray:
    """fp32 [..., D] with one angle a pair of the first 2 * len(cos) values; products and sums rounded as the contract says."""
    wide, single, pairs = np.longdouble, np.float32, cos.shape[-1]
    first, second = (slice(0, pairs), slice(pairs, 2 * pairs)) if style == "half_split" else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
    a, b, cos, sin = x[..., first].copy(), x[..., second].copy(), cos.astype(single), sin.astype(single)
    out = x.copy()
    out[..., first] = (wide(a) * cos - (b * sin)).astype(single)  # fma(a, cos, -(b * sin))
    out[..., second] = (wide(a) * sin + (b * cos)).astype(single)
    return out


def stored(x: np.ndarray, dtype: np.dtype, descale: float = 1.0) -> np.ndarray:
    """fp32 as the bits that a cache of this type holds."""
    if dtype.itemsize > 1:
        return x.astype(dtype)
    most = {"float8_e4m3fn": 448, "float8_e5m2": 57344}[dtype.name]
    return np.clip(x / np.float32(descale), -most, most).astype(dtype)


def append_kv(
    k_new, v_new, k_cache, v_cache, seqused_k=None, *, cu_seqlens_new=None, page_table=None, slot_mapping=None, positions=None,
    cos=None, sin=None, rotary_style="half_split", q=None, descale_k=None, descale_v=None,
) -> tuple:  # fmt: skip
    """numpy arrays, caches of their real type -> (k_cache, v_cache, q or None) after the call."""
    k_cache, v_cache, q_out = k_cache.copy(), v_cache.copy(), None if q is None else q.copy()
    batch = k_new.shape[0] if cu_seqlens_new is None else len(cu_seqlens_new) - 1
    row = 0
    for b in range(batch):
        count = k_new.shape[1] if cu_seqlens_new is None else int(cu_seqlens_new[b + 1] - cu_seqlens_new[b])
        for t in range(count):
            at = (b, t) if cu_seqlens_new is None else row
            place = (0 if seqused_k is None else int(seqused_k[b])) + t
            angle = place if positions is None else int(positions[row])
            if slot_mapping is not None:
                target = None if slot_mapping[row] < 0 else divmod(int(slot_mapping[row]), k_cache.shape[1])
            elif page_table is not None:
                target = (int(page_table[b, place // k_cache.shape[1]]), place % k_cache.shape[1])
            else:
                target = (b, place)
            row += 1

            def turned(x):
                x = x.astype(np.float32)
                return x if cos is None else rotate(x, cos[angle], sin[angle], rotary_style)

            if q is not None:
                q_out[at] = stored(turned(q[at]), q.dtype)
            if target is None:
                continue
            for h in range(k_cache.shape[2]):
                k_cache[target][h] = stored(turned(k_new[at][h]), k_cache.dtype, scale_of(descale_k, b, h))
                v_cache[target][h] = stored(v_new[at][h].astype(np.float32), v_cache.dtype, scale_of(descale_v, b, h))
    return k_cache, v_cache, q_out
