# SPDX-License-Identifier: Apache-2.0
"""What went wrong in other libraries (B numbers of the field reports), through the core functions."""

import gc
import resource
import threading

import numpy as np
import oracle
import pytest
import tegula
import torch
from core_util import array, int32, paged, tensor


@pytest.mark.parametrize(
    ("lens_q", "lens_k", "heads", "dim"),
    [([0, 1, 0, 1], [0, 3, 0, 5], (9, 3), 64), ([0, 0, 0, 1], [0, 0, 0, 1], (21, 7), 120), ([1, 2], [0, 0], (4, 2), 64),
     ([0, 0], [3, 4], (4, 2), 64), ([], [], (4, 2), 64)],
)  # fmt: skip
@pytest.mark.parametrize("causal", [False, True])
def test_b01_empty_sequences(device, rng, lens_q, lens_k, heads, dim, causal):
    cu = [np.concatenate([[0], np.cumsum(lens)]).astype(np.int32) for lens in (lens_q, lens_k)]
    q, k, v = (tensor(rng, int(sum(lens)), h, dim, device=device) for lens, h in ((lens_q, heads[0]), (lens_k, heads[1]), (lens_k, heads[1])))
    cu = [torch.from_numpy(x).to(device) for x in cu]
    o, lse = tegula.attention_varlen(q, k, v, *cu, max_seqlen_q=max(lens_q, default=0), causal=causal, return_lse=True)
    oracle.attention(q, k, v, *cu, causal=causal).check(o, lse)


@pytest.mark.parametrize("options", [{}, {"num_splits": 4}, {"window_left": 1}])
def test_b02_more_queries_than_keys(device, rng, options):
    q, k, v = (tensor(rng, 2, s, 2, 64, device=device) for s in (5, 2, 2))
    o, lse = tegula.attention(q, k, v, causal=True, return_lse=True, **options)
    assert bool((o[:, :3] == 0).all()) and bool((lse[..., :3] == -torch.inf).all())
    oracle.attention(q, k, v, causal=True, **options).check(o, lse)
    o, lse = tegula.attention(q, k[:, :0], v[:, :0], return_lse=True)
    assert bool((o == 0).all()) and bool((lse == -torch.inf).all())


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("seqlen_q", [1, 20])
def test_b03_tails(rng, page_size, poison, seqlen_q):
    lens = [32, 64, 96, 48]
    q, k, v = tensor(rng, 4, seqlen_q, 4, 64, dtype="bfloat16"), *(tensor(rng, 4, 128, 2, 64, dtype="bfloat16") for _ in "kv")
    results = []
    for tail in (0.0, poison):
        for cache in (k, v):
            for b, length in enumerate(lens):
                cache[b, length:] = tail
        pages, table = paged(np.random.default_rng(5), k, page_size)
        pages_v = paged(np.random.default_rng(5), v, page_size)[0]
        results.append(tegula.attention_with_cache(q, k, v, int32(lens), causal=True))
        results.append(tegula.attention_with_cache(q, pages, pages_v, int32(lens), page_table=table, causal=True))
    assert all(torch.equal(result, results[0]) for result in results)
    assert bool(results[0].isfinite().all())


@pytest.mark.parametrize("batch", [65535, 65536, 65537])
def test_b04_many_sequences(device, rng, batch):
    q, k, v = (tensor(rng, batch, s, 1, 16, device=device) for s in (1, 4, 4))
    o = tegula.attention(q, k, v)
    oracle.attention(q[-3:], k[-3:], v[-3:]).check(o[-3:])


def test_b04_many_heads(rng):
    q, k, v = (tensor(rng, 1, 2, 70000, 16) for _ in "qkv")
    o = tegula.attention(q, k, v)
    oracle.attention(q[:, :, -3:], k[:, :, -3:], v[:, :, -3:]).check(o[:, :, -3:])


@pytest.mark.parametrize("seqlen_k", [1, 63, 64, 65, 255, 256, 257, 513])
@pytest.mark.parametrize("num_splits", [2, 4, 64, 128])
def test_b05_splits(rng, seqlen_k, num_splits):
    for heads in (1, 3, 17):
        q, k, v = (tensor(rng, 1, s, heads, 32, dtype="bfloat16") for s in (1, seqlen_k, seqlen_k))
        room = torch.full((heads + 2,), 7.0)
        o, lse = tegula.attention(q, k, v, num_splits=num_splits, return_lse=True, lse_out=room[1:-1].view(1, heads, 1))
        assert room[0] == 7 and room[-1] == 7
        oracle.attention(q, k, v).check(o, lse)


@pytest.mark.parametrize("window", [(7, 0), (0, 0), (0, 3), (-1, 0), (3, -1)])
@pytest.mark.parametrize("seqlens", [(40, 40), (17, 40), (40, 17)])
def test_b06_window_edges(device, window, seqlens):
    seqlen_q, seqlen_k = seqlens
    q, k = (torch.zeros(1, s, 1, 40, device=device) for s in seqlens)
    v = torch.eye(40, device=device)[:seqlen_k].reshape(1, seqlen_k, 1, 40)
    o = tegula.attention(q, k, v, window_left=window[0], window_right=window[1])[0, :, 0, :seqlen_k].cpu().numpy()
    expected = oracle.visible(seqlen_q, seqlen_k, causal=False, window_left=window[0], window_right=window[1], chunk=0, leftpad=0)
    np.testing.assert_array_equal(o != 0, expected)
    if window[1] <= 0:
        causal = tegula.attention(q, k, v, causal=True, window_left=window[0], window_right=window[1])
        np.testing.assert_array_equal(causal[0, :, 0, :seqlen_k].cpu().numpy() != 0, np.tril(expected, seqlen_k - seqlen_q))


@pytest.mark.parametrize("score", [1, 100, 3000, 4400, 5000, 1e4, -1e4, 1e29])
def test_b07_softcap(score):
    q, k = np.zeros((1, 1, 1, 8), np.float32), np.zeros((1, 3, 1, 8), np.float32)
    q[..., 0] = 1
    k[0, :, 0, 0] = [score, score / 2, 0]
    v = np.arange(24, dtype=np.float32).reshape(1, 3, 1, 8)
    for causal in (False, True):
        o, lse = tegula.attention(q, k, v, softcap=50.0, softmax_scale=1.0, causal=causal, return_lse=True)
        assert np.isfinite(o).all()
        oracle.attention(q, k, v, softcap=50.0, softmax_scale=1.0, causal=causal).check(o, lse)


def test_b08_every_head_dim(device, rng):
    for dim in range(1, 257):
        q, k, v = (tensor(rng, 1, s, 1, dim, device=device) for s in (3, 5, 5))
        try:
            o = tegula.attention(q, k, v, causal=True)
        except NotImplementedError as error:
            assert device == "cuda" and "head_dim" in str(error)
        else:
            oracle.attention(q, k, v, causal=True).check(o)
    too_much = tensor(rng, 1, 1, 1, 2048, device=device)
    with pytest.raises((ValueError, NotImplementedError), match="head_dim.*2048"):
        tegula.attention(too_much, too_much, too_much)


@pytest.mark.parametrize("heads", [(12, 1), (24, 2), (36, 3), (15, 5), (21, 7), (40, 8), (71, 1), (10, 2)])
@pytest.mark.parametrize("seqlen_q", [1, 17])
def test_b09_groups(device, rng, heads, seqlen_q):
    q, k = tensor(rng, 1, seqlen_q, heads[0], 64, device=device), tensor(rng, 1, 20, heads[1], 64, device=device)
    v = torch.arange(heads[1], device=device, dtype=torch.float32).view(1, 1, -1, 1).expand(1, 20, -1, 64).contiguous()
    o = tegula.attention(q, k, v)
    expected = torch.arange(heads[0], device=device) // (heads[0] // heads[1])
    torch.testing.assert_close(o, expected.float().view(1, 1, -1, 1).expand_as(o), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sink", [-5.0, 0.0, 2.0, 20.0])
def test_b12_sink(device, rng, sink):
    n, sinks = 11, torch.full((2,), sink, device=device)
    q, k = torch.zeros(1, n, 2, 64, device=device), tensor(rng, 1, n, 2, 64, device=device)
    ones = torch.ones_like(k)
    visible = torch.arange(1, n + 1, device=device, dtype=torch.float64)

    def expect(o, count):
        wanted = (count / (count + np.exp(sink))).view(1, -1, 1, 1).expand(o.shape)
        torch.testing.assert_close(o.double(), wanted, rtol=1e-5, atol=1e-7)

    prefill = tegula.attention(q, k, ones, sink=sinks, causal=True)
    expect(prefill, visible)
    expect(tegula.attention(q, k, ones, sink=sinks, causal=True, num_splits=4), visible)
    expect(tegula.attention(q, k, ones, sink=sinks, causal=True, window_left=2), visible.clamp(max=3))
    decode = tegula.attention_with_cache(q[:, -1:], k, ones, [n], sink=sinks, causal=True)
    torch.testing.assert_close(decode, prefill[:, -1:], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("make", [int, np.int64, np.int32, torch.tensor, np.array], ids=lambda f: f.__name__)
def test_b17_max_seqlen(device, rng, make):
    cu = int32([0, 3, 10], device)
    q, k, v = (tensor(rng, 10, 2, 64, device=device) for _ in "qkv")
    expected = tegula.attention_varlen(q, k, v, cu, cu)
    for longest in (7, 100):
        o = tegula.attention_varlen(q, k, v, cu, cu, max_seqlen_q=make(longest), max_seqlen_k=make(longest))
        assert torch.equal(o, expected)
    if device == "cpu":
        with pytest.raises(ValueError, match="max_seqlen_q.*5|7.*5"):
            tegula.attention_varlen(q, k, v, cu, cu, max_seqlen_q=make(5))


def test_b17_calls_grow_nothing(device, rng):
    from tegula import _core

    q, k, v = (tensor(rng, 10, 2, 64, device=device) for _ in "qkv")

    def call():
        cu = int32([0, *sorted(rng.integers(0, 11, 1).tolist()), 10], device)
        tegula.attention_varlen(q, k, v, cu, cu, max_seqlen_q=torch.tensor(10), max_seqlen_k=torch.tensor(10))

    for _ in range(20):
        call()
    plans = _core.plan_cache_size()
    gc.collect()
    objects, most = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        call()
    gc.collect()
    assert _core.plan_cache_size() == plans
    assert len(gc.get_objects()) <= objects + 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 2048  # KiB


def test_plan_cache_is_bounded(rng):
    from tegula import _core

    _core.plan_cache_clear()
    q, k = array(rng, 1, 1, 1, 8), array(rng, 1, 1, 1, 8)
    first = tegula.plan(q, k, k, softmax_scale=0.5)
    for i in range(1000):
        tegula.attention(q, k, k, softmax_scale=1.0 + i)
    assert 0 < _core.plan_cache_size() <= 256
    assert first.explain()  # a plan in use outlives its place in the cache


def test_references_are_given_back(rng):
    import sys

    q, k, v = (array(rng, 1, 4, 2, 16) for _ in "qkv")
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    counts = [sys.getrefcount(x) for x in (q, k, v, *tensors)]
    for _ in range(100):
        tegula.attention(q, k, v)
        tegula.attention(*tensors)
        with pytest.raises(ValueError):
            tegula.attention(q, k, v, window_left=-5)
    assert counts == [sys.getrefcount(x) for x in (q, k, v, *tensors)]


def test_threads(rng):
    """Calls of many threads, on arrays of both frameworks, give what one thread gives."""
    q, k, v = (tensor(rng, 2, s, 4, 64) for s in (33, 70, 70))
    expected = [tegula.attention(q, k, v, causal=True, softmax_scale=0.1 + i) for i in range(4)]
    wrong, start = [], threading.Barrier(4)

    def work(i):
        start.wait()
        for n in range(100):
            j = (i + n) % 4
            arrays = (q, k, v) if n % 2 else (q.numpy(), k.numpy(), v.numpy())
            o = torch.as_tensor(tegula.attention(*arrays, causal=True, softmax_scale=0.1 + j))
            if not torch.equal(o, expected[j]):
                wrong.append((i, n))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_gil_is_released(rng):
    """Another thread runs while a call does."""
    q, k, v = (tensor(rng, 1, 2048, 8, 64) for _ in "qkv")
    out, done = torch.empty_like(q), threading.Event()

    def work():
        for _ in range(3):
            tegula.attention(q, k, v, out=out)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    turns = 0
    while not done.is_set():
        turns += 1
    thread.join()
    assert turns > 1000


def test_b20_offsets(rng):
    """Rows past 2^31 elements of a fused-QKV view; only the pages that are read exist."""
    stride, tokens = 3 * 56 * 128, 99871
    big = np.memmap("/dev/zero", np.float16, "c", shape=(tokens, stride))
    rows = array(rng, 7, 2, 128, dtype="float16")
    big[-7:, :256] = rows.reshape(7, 256)
    view = np.lib.stride_tricks.as_strided(big, (1, tokens, 2, 128), (0, stride * 2, 256, 2))
    q = array(rng, 1, 1, 2, 128, dtype="float16")
    o, lse = tegula.attention(q, view, view, causal=True, window_left=6, return_lse=True)
    oracle.attention(q, rows[None], rows[None], causal=True).check(o, lse)


def test_b20_pages(rng):
    """Page ids on both sides of 2^31 elements."""
    page, count = 16 * 2 * 64, 2**31 // (16 * 2 * 64) + 3
    big = np.memmap("/dev/zero", np.float16, "c", shape=(count, 16, 2, 64))
    ids = [2**31 // page - 1, 2**31 // page, 2**31 // page + 1]
    rows = array(rng, 48, 2, 64, dtype="float16")
    for i, at in enumerate(ids):
        big[at] = rows[16 * i : 16 * i + 16]
    q = array(rng, 1, 4, 4, 64, dtype="float16")
    o, lse = tegula.attention_with_cache(q, big, big, [45], page_table=[ids], causal=True, return_lse=True)
    oracle.attention(q, rows[None, :45], rows[None, :45], causal=True).check(o, lse)
