# SPDX-License-Identifier: Apache-2.0
"""The core functions against the oracle, over frameworks, types, layouts and masks."""

import numpy as np
import oracle
import pytest
import tegula
import torch
from core_util import NUMPY_TYPES, array, int32, paged, tensor
from hypothesis import given
from hypothesis import strategies as st

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 5, "window_right": 2},
    "causal window": {"causal": True, "window_left": 7},
    "chunk": {"causal": True, "attention_chunk": 6},
    "softcap": {"softcap": 3.0},
    "scale": {"softmax_scale": 0.31, "causal": True},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dense(device, rng, dtype, mask):
    q, k, v = (tensor(rng, 2, s, h, 64, dtype=dtype, device=device) for s, h in ((19, 6), (45, 2), (45, 2)))
    o, lse = tegula.attention(q, k, v, **MASKS[mask], return_lse=True)
    assert (o.dtype, o.device, lse.dtype) == (q.dtype, q.device, torch.float32)
    oracle.attention(q, k, v, **MASKS[mask]).check(o, lse)


@st.composite
def problems(draw):
    """Shapes, masks and data of a call of attention_varlen, ragged or not on either side."""
    heads_kv = draw(st.integers(1, 3))
    options = {
        "causal": draw(st.booleans()),
        "window_left": draw(st.sampled_from([-1, -1, 0, 3, 40])),
        "attention_chunk": draw(st.sampled_from([0, 0, 0, 1, 9])),
        "softcap": draw(st.sampled_from([0.0, 0.0, 2.0])),
        "num_splits": draw(st.sampled_from([0, 0, 1, 3])),
    }
    if not options["causal"]:
        options["window_right"] = draw(st.sampled_from([-1, -1, 0, 4]))
    return {
        "batch": draw(st.integers(0, 4)),
        "heads": heads_kv * draw(st.integers(1, 5)),
        "heads_kv": heads_kv,
        "dims": (draw(st.sampled_from([1, 8, 40, 64, 96])), draw(st.sampled_from([8, 64, 72]))),
        "dtype": draw(st.sampled_from(["float32", "float16", "bfloat16"])),
        "ragged": (draw(st.booleans()), draw(st.booleans())),
        "sink": draw(st.booleans()),
        "alibi": draw(st.sampled_from([0, 1, 2])),
        "bias": draw(st.sampled_from(["", "", "added", "bool"])),
        "leftpad": draw(st.booleans()),
        "used": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "options": options,
    }


@given(problem=problems())
def test_any_problem(problem):
    rng = np.random.default_rng(problem["seed"])
    batch, heads, heads_kv, dtype = problem["batch"], problem["heads"], problem["heads_kv"], problem["dtype"]
    (dim, dim_v), options, arguments = problem["dims"], dict(problem["options"]), {}
    lens_q, lens_k = rng.integers(0, 30, batch), rng.integers(0, 60, batch)
    longest_q, longest_k = int(rng.integers(1, 30)), int(rng.integers(1, 60))
    shapes = []
    for side, lens, longest, head_count in (("q", lens_q, longest_q, heads), ("k", lens_k, longest_k, heads_kv)):
        if problem["ragged"][side == "k"]:
            arguments[f"cu_seqlens_{side}"] = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
            shapes.append((int(lens.sum()), head_count))
        else:
            lens[:] = longest
            shapes.append((batch, longest, head_count))
    q, k = array(rng, *shapes[0], dim, dtype=dtype), array(rng, *shapes[1], dim, dtype=dtype)
    v = array(rng, *shapes[1], dim_v, dtype=dtype)
    if problem["used"]:
        arguments["seqused_q"] = rng.integers(0, lens_q + 1).astype(np.int32)
        arguments["seqused_k"] = rng.integers(0, lens_k + 1).astype(np.int32)
    if problem["leftpad"]:
        arguments["leftpad_k"] = rng.integers(0, arguments.get("seqused_k", lens_k) + 1).astype(np.int32)
    if problem["sink"]:
        options["sink"] = rng.standard_normal(heads, np.float32)
    if problem["alibi"]:
        slopes = rng.random((batch, heads), np.float32) * np.float32(0.3)
        options["alibi_slopes"] = slopes if problem["alibi"] == 2 or batch == 0 else slopes[0].copy()
    if problem["bias"] and not any(problem["ragged"]):
        bias = rng.standard_normal((batch, heads, longest_q, longest_k), np.float32)
        options["bias"] = bias > 0 if problem["bias"] == "bool" else bias
    o, lse = tegula.attention_varlen(q, k, v, **arguments, **options, return_lse=True)
    assert o.dtype == q.dtype
    oracle.attention(q, k, v, **arguments, **options).check(o, lse)


@pytest.mark.parametrize("kind", ["contiguous", "page_table", "page_indices"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_cache(device, rng, kind, dtype):
    if device == "cuda" and kind != "contiguous":
        pytest.skip("paged caches on CUDA are refused by name")
    q = tensor(rng, 3, 4, 8, 64, dtype=dtype, device=device)
    k, v = (tensor(rng, 3, 48, 2, 64, dtype=dtype, device=device) for _ in "kv")
    used = int32([48, 5, 33], device)
    expected = oracle.attention(q, k, v, seqused_k=used, causal=True)
    arguments = {}
    if kind != "contiguous":
        (k, arguments["page_table"]), old = paged(np.random.default_rng(1), k, 16), v
        v = paged(np.random.default_rng(1), old, 16)[0]
    if kind == "page_indices":
        arguments = {"page_indices": arguments["page_table"].reshape(-1), "page_indptr": int32([0, 3, 6, 9], device)}
    o, lse = tegula.attention_with_cache(q, k, v, used, **arguments, causal=True, return_lse=True)
    expected.check(o, lse)


@pytest.mark.parametrize("framework", ["torch", "numpy", "uint8"])
@pytest.mark.parametrize("scales", ["one", "heads", "batch", "expanded"])
def test_b11_descale(rng, framework, scales):
    values = {name: array(rng, 2, s, 2, 64, dtype=dtype) for name, s, dtype in
              (("q", 3, "bfloat16"), ("k", 30, "float8_e4m3fn"), ("v", 30, "float8_e4m3fn"))}  # fmt: skip
    shape = {"one": (1,), "heads": (2,), "batch": (2, 2), "expanded": (2, 2)}[scales]
    descales = {"descale_k": rng.random(shape, np.float32) + 0.2, "descale_v": rng.random(shape, np.float32) + 1.5}
    if scales == "expanded":
        descales = {name: np.broadcast_to(scale[:, :1], (2, 2)) for name, scale in descales.items()}
    expected = oracle.attention(**values, **descales)
    swapped = oracle.attention(**values, descale_k=descales["descale_v"], descale_v=descales["descale_k"])
    assert np.abs(expected.o - swapped.o).max() > 0.1
    options = {}
    if framework == "uint8":
        values = {name: x if name == "q" else x.view(np.uint8) for name, x in values.items()}
        options["kv_dtype"] = "e4m3"
    if framework == "torch":
        values = {name: torch.from_numpy(x.view(np.uint16 if name == "q" else np.uint8)).view(
            torch.bfloat16 if name == "q" else torch.float8_e4m3fn) for name, x in values.items()}  # fmt: skip
        descales = {name: torch.from_numpy(scale.copy()) for name, scale in descales.items()}
    o, lse = tegula.attention(**values, **descales, **options, return_lse=True)
    expected.check(o, lse)


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_numpy_types(rng, dtype):
    q, k, v = (array(rng, 1, s, 2, 32, dtype=dtype) for s in (5, 9, 9))
    o = tegula.attention(q, k, v, causal=True)
    assert o.dtype == (NUMPY_TYPES["bfloat16"] if "float8" in dtype else q.dtype)
    oracle.attention(q, k, v, causal=True).check(o)
    wide = tegula.attention(q, k, v, causal=True, out_dtype="float32")
    assert wide.dtype == np.float32
    oracle.attention(q, k, v, causal=True).check(wide)


def test_jax(rng):
    jax = pytest.importorskip("jax")
    q, k, v = (jax.numpy.asarray(array(rng, 1, s, 2, 32)) for s in (5, 9, 9))
    o, lse = tegula.attention(q, k, v, causal=True, return_lse=True)
    assert isinstance(o, jax.Array) and isinstance(lse, jax.Array)
    oracle.attention(q, k, v, causal=True).check(o, lse)
    for used in (jax.numpy.asarray([7], "int32"), np.array([7]), [7]):
        oracle.attention(q, k, v, seqused_k=[7]).check(tegula.attention(q, k, v, seqused_k=used))
    merged = tegula.combine(o[None], lse[None], return_lse=False)
    assert isinstance(merged, jax.Array)
    np.testing.assert_allclose(merged, o, rtol=1e-6)
    with pytest.raises(TypeError, match="lse_out: .* immutable"):
        tegula.combine(o[None], lse[None], lse_out=np.empty((1, 2, 5), np.float32))
    with pytest.raises(TypeError, match="seqused_k: .* where integers are taken"):
        tegula.attention(q, k, v, seqused_k=[7.5])
    half = tegula.attention(*(x.astype("bfloat16") for x in (q, k, v)), causal=True)
    assert half.dtype == "bfloat16"
    with pytest.raises(TypeError, match="out: .* immutable"):
        tegula.attention(q, k, v, out=np.empty((1, 5, 2, 32), np.float32))
    with pytest.raises(TypeError, match="k_cache: .* immutable"):
        tegula.append_kv(k, v, k, v)
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda x: tegula.attention(x, x, x))(q)


def test_frameworks_mix(rng):
    """Any operand may come from another framework; the output is q's."""
    q, k, v = (array(rng, 1, s, 2, 32) for s in (5, 9, 9))
    expected = tegula.attention(q, k, v)
    o = tegula.attention(torch.from_numpy(q), k, torch.from_numpy(v))
    assert isinstance(o, torch.Tensor)
    np.testing.assert_array_equal(o.numpy(), expected)
    np.testing.assert_array_equal(tegula.attention(q, torch.from_numpy(k), v), expected)


def test_out_and_lse_out(device, rng):
    q, k, v = (tensor(rng, 2, s, 2, 32, device=device) for s in (5, 9, 9))
    expected, expected_lse = tegula.attention(q, k, v, return_lse=True)
    room = torch.full((2, 5, 2, 48), 7.0, device=device)
    lse = torch.empty(2, 2, 5, device=device)
    o, returned = tegula.attention(q, k, v, out=room[..., 8:40], lse_out=lse, return_lse=True)
    assert o.data_ptr() == room[..., 8:].data_ptr() and returned is lse
    assert torch.equal(o, expected) and torch.equal(lse, expected_lse)
    assert bool((room[..., :8] == 7).all()) and bool((room[..., 40:] == 7).all())
    only = torch.empty_like(expected)
    assert tegula.attention(q, k, v, out=only) is only and torch.equal(only, expected)


def test_strides(device, rng):
    """Any strides give the bits of contiguous copies."""
    q, k, v = (tensor(rng, 2, 4, s, 32, device=device).transpose(1, 2) for s in (5, 9, 9))
    assert torch.equal(tegula.attention(q, k, v), tegula.attention(q.contiguous(), k.contiguous(), v.contiguous()))
    one = tensor(rng, 1, 9, 4, 32, device=device).expand(2, -1, -1, -1)
    assert torch.equal(tegula.attention(q, one, one), tegula.attention(q, one.contiguous(), one.contiguous()))


def test_combine(rng):
    q, k, v = (tensor(rng, 2, s, 4, 32) for s in (3, 40, 40))
    parts = [tegula.attention(q, k[:, i : i + 10], v[:, i : i + 10], return_lse=True) for i in range(0, 40, 10)]
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
    o, lse = tegula.combine(torch.stack([o for o, _ in parts]), torch.stack([lse for _, lse in parts]), sink=sink)
    oracle.attention(q, k, v, sink=sink).check(o, lse)
    half = tegula.combine(*(torch.stack(x) for x in zip(*parts)), sink=sink, out_dtype="bfloat16", return_lse=False)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), o, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("style", ["half_split", "interleaved"])
def test_append_kv_and_rotary(rng, style):
    batch, heads, dim, new = 2, 2, 16, 3
    k_new, v_new = (tensor(rng, batch, new, heads, dim) for _ in "kv")
    q = tensor(rng, batch, new, 4, dim)
    caches = [tensor(rng, batch, 12, heads, dim) for _ in "kv"]
    before = [cache.clone() for cache in caches]
    used = int32([4, 9])
    angles = rng.random((12, dim // 2), np.float32)
    cos, sin = torch.from_numpy(np.cos(angles)), torch.from_numpy(np.sin(angles))
    rotated = tegula.append_kv(k_new, v_new, *caches, used, cos=cos, sin=sin, rotary_style=style, q=q)

    def rotate(x, b, t):
        c, s = cos[int(used[b]) + t], sin[int(used[b]) + t]
        pairs = (x[..., : dim // 2], x[..., dim // 2 :]) if style == "half_split" else (x[..., ::2], x[..., 1::2])
        turned = (pairs[0] * c - pairs[1] * s, pairs[0] * s + pairs[1] * c)
        return torch.cat(turned, -1) if style == "half_split" else torch.stack(turned, -1).flatten(-2)

    for b in range(batch):
        for t in range(new):
            at = int(used[b]) + t
            torch.testing.assert_close(rotated[b, t], rotate(q[b, t], b, t))
            torch.testing.assert_close(caches[0][b, at], rotate(k_new[b, t], b, t))
            assert torch.equal(caches[1][b, at], v_new[b, t])
            before[0][b, at], before[1][b, at] = caches[0][b, at], caches[1][b, at]
    assert torch.equal(caches[0], before[0]) and torch.equal(caches[1], before[1])  # nothing else was written
    assert tegula.append_kv(k_new, v_new, *caches, used) is None
    in_place = q.clone()
    assert tegula.append_kv(k_new, v_new, *caches, used, cos=cos, sin=sin, rotary_style=style, q=in_place, q_out=in_place) is in_place
    assert torch.equal(in_place, rotated)


def test_append_then_attend(rng):
    """The same lengths serve append_kv and, with seqlen_new, the call after it; slots are those of the table."""
    k, v = (tensor(rng, 2, 32, 2, 16) for _ in "kv")
    pages, table = paged(np.random.default_rng(3), k, 8)
    pages_v = paged(np.random.default_rng(3), v, 8)[0]
    used, q = int32([5, 20]), tensor(rng, 2, 2, 4, 16)
    new = [tensor(rng, 2, 2, 2, 16) for _ in "kv"]
    copies = pages.clone(), pages_v.clone()
    tegula.append_kv(*new, pages, pages_v, used, page_table=table)
    slots = torch.stack([table[b, (int(used[b]) + t) // 8].long() * 8 + (int(used[b]) + t) % 8 for b in (0, 1) for t in (0, 1)])
    tegula.append_kv(*new, *copies, slot_mapping=slots)
    assert torch.equal(copies[0], pages) and torch.equal(copies[1], pages_v)
    o = tegula.attention_with_cache(q, pages, pages_v, used, page_table=table, seqlen_new=2, causal=True)
    for cache, rows in zip((k, v), new):
        for b in (0, 1):
            cache[b, int(used[b]) : int(used[b]) + 2] = rows[b]
    oracle.attention(q, k, v, seqused_k=used + 2, causal=True).check(o)


def test_plan_and_explain(rng):
    q, k, v = (tensor(rng, 1, s, 2, 32) for s in (5, 9, 9))
    plan = tegula.plan(q, k, v, causal=True)
    assert plan.implementation.startswith("cpu_") and plan.num_workers >= 1 and plan.tile_m >= 1 and plan.tile_n >= 1
    assert plan.implementation in plan.explain() and plan.explain() == tegula.explain(q, k, v, causal=True)
    table = int32([[0]])
    assert tegula.plan(q, k, v, seqused_k=int32([9]), page_table=table).implementation.startswith("cpu_")
