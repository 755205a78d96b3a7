# SPDX-License-Identifier: Apache-2.0
"""Caches: attention over them, rows written into them, partial results merged; any types, layouts and frameworks."""

import numpy as np
import oracle
import pytest
import tegula
import torch
from core_util import NUMPY_TYPES, array, bits, to_torch
from hypothesis import given
from hypothesis import strategies as st

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
TYPES = [
    ("float32", "float32"), ("float32", "float16"), ("float32", "bfloat16"), ("float16", "float16"), ("float16", "bfloat16"),
    ("bfloat16", "bfloat16"), ("bfloat16", "float16"), ("float16", E4M3), ("bfloat16", E4M3), ("bfloat16", E5M2), (E4M3, E4M3),
    (E5M2, E4M3), (E4M3, E5M2),
]  # fmt: skip


def scale(rng, kind, batch, heads_kv):
    """float32 [1], [Hkv], [B, Hkv], or one value expanded over all of them."""
    shape = {"one": (1,), "heads": (heads_kv,)}.get(kind, (batch, heads_kv))
    values = rng.random(shape, np.float32) + np.float32(0.25)
    return np.broadcast_to(values[:1, :1], shape) if kind == "expanded" else values


@st.composite
def problems(draw):
    heads_kv = draw(st.integers(1, 3))
    return {
        "batch": draw(st.integers(1, 4)),
        "heads": (heads_kv * draw(st.integers(1, 4)), heads_kv),
        "dims": (draw(st.sampled_from([8, 40, 64])), draw(st.sampled_from([8, 64]))),
        "types": draw(st.sampled_from(TYPES)),
        "framework": draw(st.sampled_from(["numpy", "torch"])),
        "layout": draw(st.sampled_from(["contiguous", "page_table", "page_indices"])),
        "page_size": draw(st.sampled_from([1, 3, 16])),
        "head_major": draw(st.booleans()),
        "ragged": draw(st.booleans()),
        "new": draw(st.sampled_from(["", "seqlen_new", "cu_seqlens_new"])),
        "uint8": draw(st.booleans()),
        "scales": draw(st.sampled_from(["", "one", "heads", "batch", "expanded"])),
        "sink": draw(st.booleans()),
        "leftpad": draw(st.booleans()),
        "options": {
            "causal": draw(st.booleans()),
            "window_left": draw(st.sampled_from([-1, -1, 0, 9])),
            "softcap": draw(st.sampled_from([0.0, 0.0, 5.0])),
            **draw(st.sampled_from([{}, {"num_splits": 1}, {"num_splits": 4}, {"fixed_split": 64}])),
        },
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


@given(problem=problems())
def test_any_cache(problem):
    rng = np.random.default_rng(problem["seed"])
    batch, (heads, heads_kv), (dim, dim_v) = problem["batch"], problem["heads"], problem["dims"]
    (type_q, type_kv), page = problem["types"], problem["page_size"]
    most = -(-int(rng.integers(1, 90)) // page)  # pages of a sequence
    used = rng.integers(0, most * page + 1, batch).astype(np.int32)
    arguments, options = {}, dict(problem["options"])
    lens_q = rng.integers(0, 6, batch)
    if problem["ragged"]:
        arguments["cu_seqlens_q"] = np.concatenate([[0], np.cumsum(lens_q)]).astype(np.int32)
    q = array(rng, *((int(lens_q.sum()),) if problem["ragged"] else (batch, int(lens_q[0]))), heads, dim, dtype=type_q)
    pages = batch * most + 2 if problem["layout"] != "contiguous" else batch
    rows = page if problem["layout"] != "contiguous" else most * page
    k, v = (array(rng, pages, heads_kv, rows, d, dtype=type_kv) for d in (dim, dim_v))
    k, v = ((np.swapaxes(x, 1, 2) if problem["head_major"] else np.ascontiguousarray(np.swapaxes(x, 1, 2))) for x in (k, v))
    table = rng.permutation(batch * most + 2)[: batch * most].reshape(batch, most).astype(np.int32)
    counts = -(-used // page)
    if problem["layout"] == "page_table":
        table[np.arange(most)[None] >= counts[:, None]] = -1  # never read
        arguments["page_table"] = table
    elif problem["layout"] == "page_indices":
        arguments["page_indices"] = np.concatenate([table[b, : counts[b]] for b in range(batch)])
        arguments["page_indptr"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    seen = np.zeros((pages, rows), bool)
    for b in range(batch):
        for j in range(used[b]):
            seen[(b, j) if problem["layout"] == "contiguous" else (table[b, j // page], j % page)] = True
    k[~seen] = v[~seen] = np.nan
    before = used.copy()
    if problem["new"] == "seqlen_new":
        arguments["seqlen_new"] = int(rng.integers(0, used.min() + 1))
        before -= arguments["seqlen_new"]
    elif problem["new"]:
        added = rng.integers(0, used + 1)
        arguments["cu_seqlens_new"] = np.concatenate([[0], np.cumsum(added)]).astype(np.int32)
        before -= added.astype(np.int32)
    if problem["leftpad"]:
        arguments["leftpad_k"] = rng.integers(0, used + 1).astype(np.int32)
    if problem["sink"]:
        options["sink"] = rng.standard_normal(heads, np.float32)
    if problem["scales"] and "float8" in type_kv:
        for name in ("descale_k", "descale_v", *(["descale_q"] if "float8" in type_q else [])):
            options[name] = scale(rng, problem["scales"], batch, heads_kv)
    expected = oracle.attention(q, k, v, seqused_k=before, **arguments, **options)
    if problem["uint8"] and "float8" in type_kv:
        options["kv_dtype"] = {E4M3: "e4m3", E5M2: "e5m2"}[type_kv]
        k, v = k.view(np.uint8), v.view(np.uint8)
    given_arrays = [q, k, v, before]
    if problem["framework"] == "torch":
        given_arrays = [to_torch(x) for x in given_arrays]
        arguments, options = ({n: to_torch(x.copy()) if isinstance(x, np.ndarray) else x for n, x in some.items()} for some in (arguments, options))
    o, lse = tegula.attention_with_cache(*given_arrays, **arguments, **options, return_lse=True)
    assert oracle.type_name(o) == ("bfloat16" if "float8" in type_q else type_q)
    expected.check(o, lse)


@st.composite
def appends(draw):
    return {
        "batch": draw(st.integers(1, 3)),
        "heads_kv": draw(st.integers(1, 3)),
        "dim": draw(st.sampled_from([8, 16, 64])),
        "types": draw(st.sampled_from(
            [(t, t) for t in ("float32", "float16", "bfloat16")] + [("bfloat16", E4M3), ("float16", E5M2), ("float32", E4M3)])),
        "target": draw(st.sampled_from(["contiguous", "page_table", "slot_mapping"])),
        "ragged": draw(st.booleans()),
        "rotary": draw(st.sampled_from(["", "half_split", "interleaved"])),
        "part": draw(st.booleans()),
        "positions": draw(st.booleans()),
        "q": draw(st.sampled_from(["", "new", "in place"])),
        "scales": draw(st.sampled_from(["", "one", "heads", "batch"])),
        "uint8": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }  # fmt: skip


@given(problem=appends())
def test_any_append(problem):
    """Bits: what the contract defines, and not one more is written."""
    rng = np.random.default_rng(problem["seed"])
    batch, heads_kv, dim, page = problem["batch"], problem["heads_kv"], problem["dim"], 4
    type_new, type_cache = problem["types"]
    lens = rng.integers(0, 5, batch)
    if not problem["ragged"]:
        lens[:] = lens[0]
    used = rng.integers(0, 16 - lens + 1).astype(np.int32)
    arguments = {}
    if problem["ragged"]:
        arguments["cu_seqlens_new"] = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
    lead = (int(lens.sum()),) if problem["ragged"] else (batch, int(lens[0]))
    k_new, v_new = (array(rng, *lead, heads_kv, dim, dtype=type_new) for _ in "kv")
    if k_new.size:
        k_new[..., 0] = 60000  # saturates in e4m3
        v_new[..., 1] = np.inf
    paged = problem["target"] != "contiguous"
    caches = [array(rng, *((batch * 4, page) if paged else (batch, 16)), heads_kv, dim, dtype=type_cache) for _ in "kv"]
    table = rng.permutation(batch * 4).reshape(batch, 4).astype(np.int32)
    if problem["target"] == "page_table":
        arguments["page_table"] = table
    elif paged:
        places = [(b, used[b] + t) for b in range(batch) for t in range(lens[b])]
        slots = np.array([table[b, at // page] * page + at % page for b, at in places], np.int64)
        slots[rng.random(len(slots)) < 0.2] = -1
        arguments["slot_mapping"] = slots
    if problem["rotary"]:
        angles = rng.random((32, dim // (4 if problem["part"] else 2)), np.float32) * 6
        arguments |= {"cos": np.cos(angles), "sin": np.sin(angles), "rotary_style": problem["rotary"]}
        if problem["positions"]:
            arguments["positions"] = rng.integers(0, 32, int(lens.sum())).astype(np.int32)
        if problem["q"]:
            arguments["q"] = array(rng, *lead, heads_kv * 2, dim, dtype=type_new)
    if "float8" in type_cache and problem["scales"]:
        arguments |= {name: scale(rng, problem["scales"], batch, heads_kv) for name in ("descale_k", "descale_v")}
    k_expected, v_expected, q_expected = oracle.append_kv(k_new, v_new, *caches, used, **arguments)
    if problem["uint8"] and "float8" in type_cache:
        arguments["kv_dtype"] = type_cache
        caches = [x.view(np.uint8) for x in caches]
    if "q" in arguments and problem["q"] == "in place":
        arguments["q_out"] = arguments["q"]
    q_out = tegula.append_kv(k_new, v_new, *caches, used, **arguments)
    np.testing.assert_array_equal(bits(caches[0]), bits(k_expected))
    np.testing.assert_array_equal(bits(caches[1]), bits(v_expected))
    if q_expected is None:
        assert q_out is None
    else:
        assert (q_out is arguments["q"]) == (problem["q"] == "in place")
        np.testing.assert_array_equal(bits(q_out), bits(q_expected))


@given(
    splits=st.integers(1, 5), shape=st.tuples(*[st.integers(1, 4)] * 3), dim=st.sampled_from([1, 8, 33]), ragged=st.booleans(),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]), out=st.sampled_from([None, "float32", "bfloat16"]),
    sink=st.booleans(), as_torch=st.booleans(), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_combine(splits, shape, dim, ragged, dtype, out, sink, as_torch, seed):
    rng = np.random.default_rng(seed)
    batch, seqlen, heads = shape
    o = array(rng, splits, *((seqlen,) if ragged else (batch, seqlen)), heads, dim, dtype=dtype)
    lse = array(rng, splits, *((heads, seqlen) if ragged else (batch, heads, seqlen))) * np.float32(8)
    lse[rng.random(lse.shape) < 0.3] = -np.inf
    lse[rng.random(lse.shape) < 0.1] = np.inf  # empty too
    o[np.swapaxes(np.isinf(lse), -1, -2)] = np.nan  # not read
    options = {"sink": rng.standard_normal(heads, np.float32)} if sink else {}
    expected = oracle.combine(o, lse, **options)
    if as_torch:
        o, lse, options = to_torch(o), to_torch(lse), {name: to_torch(x) for name, x in options.items()}
    merged, merged_lse = tegula.combine(o, lse, **options, out_dtype=out)
    assert oracle.type_name(merged) == (out or dtype)
    expected.check(merged, merged_lse)


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_torch_and_numpy_give_the_same_bits(rng, dtype):
    q, k, v = (array(rng, 2, s, 2, 64, dtype=dtype) for s in (5, 40, 40))
    o, lse = tegula.attention(q, k, v, causal=True, return_lse=True)
    of_torch, lse_of_torch = tegula.attention(*(to_torch(x) for x in (q, k, v)), causal=True, return_lse=True)
    np.testing.assert_array_equal(bits(of_torch), bits(o))
    np.testing.assert_array_equal(bits(lse_of_torch), bits(lse))
    assert of_torch.dtype == getattr(torch, o.dtype.name)
