# SPDX-License-Identifier: Apache-2.0
"""What the dialects must give, written for them: fp64 numpy, one sequence at a time, in
flash-attn's own words (positions relative to the left padding, windows (left, right), rotary by
position)."""

import numpy as np


def to_numpy(tensor):
    return tensor.detach().cpu().double().numpy()


def attention(q, k, v, *, scale=None, causal=False, window=(-1, -1), chunk=0, softcap=0.0,
              sink=None, slopes=None, leftpad=0):
    """q [sq, heads, d], k [sk, heads_kv, d], v [sk, heads_kv, dv] -> o [sq, heads, dv], lse [heads,
    sq]."""
    k, v = k[leftpad:], v[leftpad:]
    sq, heads, dim = q.shape
    sk, group = k.shape[0], heads // k.shape[1]
    position = np.arange(sq)[:, None] + sk - sq
    column = np.arange(sk)[None, :]
    left, right = window[0], 0 if causal else window[1]
    seen = np.ones((sq, sk), bool)
    if left >= 0:
        seen &= column >= position - left
    if right >= 0:
        seen &= column <= position + right
    if chunk:
        seen &= column // chunk == position // chunk
    o, lse = np.zeros((sq, heads, v.shape[2])), np.full((heads, sq), -np.inf)
    for h in range(heads):
        s = q[:, h] @ k[:, h // group].T * (dim**-0.5 if scale is None else scale)
        if softcap:
            s = softcap * np.tanh(s / softcap)
        if slopes is not None:
            s = s - slopes[h] * np.abs(position - column)
        s = np.where(seen, s, -np.inf)
        if sink is not None:
            s = np.concatenate([s, np.full((sq, 1), sink[h])], 1)
        if s.shape[1] == 0:
            continue
        top = s.max(1, keepdims=True)
        p = np.exp(s - np.where(np.isfinite(top), top, 0))
        total = p.sum(1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            lse[h] = (np.log(total) + top)[:, 0]
            p = np.where(total > 0, p / total, 0)
        o[:, h] = p[:, :sk] @ v[:, h // group]
    return o, lse


def rotate(x, cos, sin, positions, interleaved):
    """x [rows, heads, d], cos and sin [max, r / 2], positions [rows] -> x with its first r
    dimensions turned."""
    half = cos.shape[1]
    cos, sin = cos[positions][:, None], sin[positions][:, None]
    out = x.copy()
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (
        slice(0, half), slice(half, 2 * half))
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def close(got, want, dtype_name):
    """The largest difference allowed per element: rounding of inputs' type in p and o for values of
    about 1 (|v| <= 4), and fp32 sums."""
    tolerance = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype_name]
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
