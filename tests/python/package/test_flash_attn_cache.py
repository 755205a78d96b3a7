# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache and the paged forms of the ragged functions, beside fp64: the cache after
the append, the rotated q, o and lse."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import flash_attn_reference as reference  # noqa: E402

import tegula.flash_attn as fa2  # noqa: E402
import tegula.flash_attn.cute as fa4  # noqa: E402
import tegula.flash_attn.flash_attn_3 as fa3  # noqa: E402

BATCH, CAPACITY, HEADS, HEADS_KV, DIM = 3, 24, 4, 2, 32
BEFORE = (5, 0, 17)  # lengths of the sequences before the call


@pytest.fixture(autouse=True)
def needs_caches(device, request):
    if "cuda" in str(device) and "cuda_refuses" not in request.node.name:
        pytest.skip("paged caches, 8-bit caches and append_kv are planned on CUDA")


def randn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def before(device):
    return torch.tensor(BEFORE, dtype=torch.int32, device=device)


@pytest.fixture(params=["dense", "batch_index", "paged"])
def cache(request, device):
    """(k, v, keyword of flash-attn 2, of FlashAttention-3, rows): rows(k) gives [batch, capacity,
    ..]."""
    if request.param == "paged":
        pages = [randn(s, 12, 8, HEADS_KV, DIM).to(device) for s in (1, 2)]
        table = torch.randperm(12, generator=torch.Generator().manual_seed(3))[:9].reshape(3, 3)
        table = table.to(device=device, dtype=torch.int32)
        rows = lambda c: c[table.long()].flatten(1, 2)  # noqa: E731
        return *pages, dict(block_table=table), dict(page_table=table), rows
    slots = 3 if request.param == "dense" else 5
    caches = [randn(s, slots, CAPACITY, HEADS_KV, DIM).to(device) for s in (1, 2)]
    if request.param == "dense":
        return *caches, {}, {}, lambda c: c
    index = torch.tensor([4, 0, 2], dtype=torch.int32, device=device)
    name = dict(cache_batch_idx=index)
    return *caches, name, name, lambda c: c[index.long()]


def want_after(q, k_rows, v_rows, k_new, v_new, *, mask, tables=None, interleaved=True, base=None,
               leftpad=None):
    """Caches after the append and (o, lse) of each sequence; k_rows and v_rows before it."""
    k_rows, v_rows = (reference.to_numpy(t).copy() for t in (k_rows, v_rows))
    q = reference.to_numpy(q)
    moving = bool(mask.get("causal")) or mask.get("window", (-1, -1)) != (-1, -1)
    results = []
    for b, length in enumerate(BEFORE):
        new_k, new_v, rows = reference.to_numpy(k_new[b]), reference.to_numpy(v_new[b]), q[b]
        first = length if base is None else base[b]
        if tables is not None:
            cos, sin = (reference.to_numpy(t) for t in tables)
            new_k = reference.rotate(new_k, cos, sin, first + np.arange(len(new_k)), interleaved)
            at = first + np.arange(len(rows)) * moving
            rows = reference.rotate(rows, cos, sin, at, interleaved)
        end = length + len(new_k)
        k_rows[b, length:end], v_rows[b, length:end] = new_k, new_v
        pad = 0 if leftpad is None else leftpad[b]
        results.append(
            reference.attention(rows, k_rows[b, :end], v_rows[b, :end], leftpad=pad, **mask)
        )
    o, lse = (np.stack(part) for part in zip(*results))
    return k_rows, v_rows, o, lse


def check(got, want):
    reference.close(reference.to_numpy(got), want, "float32")


@pytest.mark.parametrize("causal", [False, True])
def test_attend_only(cache, before, device, causal):
    k, v, names2, names3, rows = cache
    q = randn(9, BATCH, 2, HEADS, DIM).to(device)
    lengths = before + 2
    wants = [
        reference.attention(
            *(reference.to_numpy(t) for t in (q[b], rows(k)[b, :n], rows(v)[b, :n])), causal=causal
        )
        for b, n in enumerate(lengths.tolist())
    ]
    o, lse = fa2.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, causal=causal, return_softmax_lse=True, **names2
    )
    check(o, np.stack([w[0] for w in wants]))
    check(lse, np.stack([w[1] for w in wants]))
    o, lse, partial, lse_partial = fa3.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, causal=causal, return_softmax_lse=True, **names3
    )
    check(o, np.stack([w[0] for w in wants]))
    check(lse, np.stack([w[1] for w in wants]))
    assert partial.numel() == 0 and lse_partial.numel() == 0
    alone = fa3.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, causal=causal, num_splits=3, pack_gqa=True, sm_margin=2,
        scheduler_metadata=fa3.get_scheduler_metadata(3, 2, 24, HEADS, HEADS_KV, DIM, lengths),
        **names3,
    )
    assert isinstance(alone, torch.Tensor)
    check(alone, np.stack([w[0] for w in wants]))


@pytest.mark.parametrize("length", [7, np.int64(7), torch.tensor(7), None])
def test_one_length_for_all(cache, device, length):
    k, v, names2, names3, rows = cache
    q = randn(9, BATCH, 1, HEADS, DIM).to(device)
    count = CAPACITY if length is None else 7
    want = np.stack(
        [
            reference.attention(
                *(reference.to_numpy(t) for t in (q[b], rows(k)[b, :count], rows(v)[b, :count]))
            )[0]
            for b in range(BATCH)
        ]
    )
    check(fa2.flash_attn_with_kvcache(q, k, v, cache_seqlens=length, causal=True, **names2), want)
    check(fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=length, causal=True, **names3), want)


MASKS = [dict(), dict(causal=True), dict(window=(4, 1)), dict(window=(6, 3), causal=True)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rotary", [None, "interleaved", "half_split"])
@pytest.mark.parametrize("seqlen_q, seqlen_new", [(1, 1), (3, 3), (2, 4)])
def test_append_rotate_attend(cache, before, device, mask, rotary, seqlen_q, seqlen_new):
    """Rows of q are rotated as cache_seqlens + i if the mask moves with them, else as
    cache_seqlens."""
    k, v, names2, names3, rows = cache
    q = randn(9, BATCH, seqlen_q, HEADS, DIM).to(device)
    k_new, v_new = (randn(s, BATCH, seqlen_new, HEADS_KV, DIM).to(device) for s in (4, 5))
    angle = randn(6, CAPACITY, 8)
    tables = None if rotary is None else (angle.cos().to(device), angle.sin().to(device))
    turn = {} if rotary is None else dict(
        rotary_cos=tables[0], rotary_sin=tables[1], rotary_interleaved=rotary == "interleaved"
    )
    options = {"window_size" if n == "window" else n: value for n, value in mask.items()}
    want_k, want_v, want_o, want_lse = want_after(
        q, rows(k), rows(v), k_new, v_new, mask=mask, tables=tables,
        interleaved=rotary == "interleaved",
    )
    for function, names in (
        (fa2.flash_attn_with_kvcache, names2),
        (fa3.flash_attn_with_kvcache, names3),
    ):
        k_cache, v_cache, q_before = k.clone(), v.clone(), q.clone()
        o, lse, *_ = function(
            q, k_cache, v_cache, k_new, v_new, cache_seqlens=before, return_softmax_lse=True,
            **turn, **options, **names,
        )
        check(rows(k_cache), want_k)
        check(rows(v_cache), want_v)
        check(o, want_o)
        check(lse, want_lse)
        assert torch.equal(q, q_before) and before.tolist() == list(BEFORE)


def test_rows_outside_the_batch_keep_their_bits(cache, before, device):
    k, v, names2, _, rows = cache
    k_new, v_new = (randn(s, BATCH, 1, HEADS_KV, DIM).to(device) for s in (4, 5))
    k_cache = k.clone()
    fa2.flash_attn_with_kvcache(
        randn(9, BATCH, 1, HEADS, DIM).to(device), k_cache, v.clone(), k_new, v_new,
        cache_seqlens=before, **names2,
    )
    changed = (k_cache != k).flatten(2).any(-1)
    assert changed.sum() == BATCH


def test_left_padding(before, device):
    k, v = (randn(s, BATCH, CAPACITY, HEADS_KV, DIM).to(device) for s in (1, 2))
    q = randn(9, BATCH, 2, HEADS, DIM).to(device)
    k_new, v_new = (randn(s, BATCH, 2, HEADS_KV, DIM).to(device) for s in (4, 5))
    leftpad = (3, 0, 11)
    angle = randn(6, CAPACITY, 8)
    tables = (angle.cos().to(device), angle.sin().to(device))
    mask = dict(causal=True, window=(5, 0))
    want_k, _, want_o, want_lse = want_after(
        q, k, v, k_new, v_new, mask=mask, tables=tables, leftpad=leftpad
    )
    for function in (fa2.flash_attn_with_kvcache, fa3.flash_attn_with_kvcache):
        k_cache = k.clone()
        o, lse, *_ = function(
            q, k_cache, v.clone(), k_new, v_new, rotary_cos=tables[0], rotary_sin=tables[1],
            cache_seqlens=before, causal=True, window_size=(5, 0), return_softmax_lse=True,
            cache_leftpad=torch.tensor(leftpad, dtype=torch.int32, device=device),
        )
        check(k_cache, want_k)
        check(o, want_o)
        check(lse, want_lse)


def test_softcap_alibi_sink_and_chunk_reach_the_cache(cache, before, device):
    k, v, names2, names3, rows = cache
    q = randn(9, BATCH, 2, HEADS, DIM).to(device)
    lengths = before + 2
    extra = randn(8, HEADS).abs()

    def want(**mask):
        return np.stack(
            [
                reference.attention(
                    *(reference.to_numpy(t) for t in (q[b], rows(k)[b, :n], rows(v)[b, :n])),
                    causal=True, **mask,
                )[0]
                for b, n in enumerate(lengths.tolist())
            ]
        )

    common = dict(cache_seqlens=lengths, causal=True)
    slopes = extra.to(device)
    o = fa2.flash_attn_with_kvcache(
        q, k, v, softcap=0.7, alibi_slopes=slopes, softmax_scale=0.2, **common, **names2
    )
    check(o, want(softcap=0.7, slopes=extra.numpy(), scale=0.2))
    o = fa3.flash_attn_with_kvcache(
        q, k, v, softcap=0.7, attention_chunk=4, s_aux=slopes, **common, **names3
    )
    check(o, want(softcap=0.7, chunk=4, sink=extra.numpy()))


def test_ragged_q_and_new_rows_of_fa3(cache, before, device):
    """cu_seqlens_q and cu_seqlens_k_new, with rotary positions of their own."""
    k, v, _, names3, rows = cache
    counts_q, counts_new = (2, 1, 3), (2, 4, 3)
    cu_q, cu_new = (
        torch.tensor([0, *np.cumsum(c)], dtype=torch.int32, device=device)
        for c in (counts_q, counts_new)
    )
    q = randn(9, sum(counts_q), HEADS, DIM).to(device)
    k_new, v_new = (randn(s, sum(counts_new), HEADS_KV, DIM).to(device) for s in (4, 5))
    angle = randn(6, CAPACITY, 8)
    tables = (angle.cos().to(device), angle.sin().to(device))
    base = (1, 7, 2)
    for causal in (True, False):
        for rotary_seqlens in (None, base):
            parts = q.split(counts_q), k_new.split(counts_new), v_new.split(counts_new)
            k_rows, v_rows = (reference.to_numpy(rows(c)).copy() for c in (k, v))
            o_parts, lse_parts = [], []
            for b, length in enumerate(BEFORE):
                q_b, k_b, v_b = (reference.to_numpy(p[b]) for p in parts)
                first = length if rotary_seqlens is None else base[b]
                cos, sin = (reference.to_numpy(t) for t in tables)
                k_b = reference.rotate(k_b, cos, sin, first + np.arange(len(k_b)), True)
                q_b = reference.rotate(q_b, cos, sin, first + np.arange(len(q_b)) * causal, True)
                end = length + len(k_b)
                k_rows[b, length:end], v_rows[b, length:end] = k_b, v_b
                o_b, lse_b = reference.attention(
                    q_b, k_rows[b, :end], v_rows[b, :end], causal=causal
                )
                o_parts.append(o_b)
                lse_parts.append(lse_b)
            k_cache = k.clone()
            o, lse, *_ = fa3.flash_attn_with_kvcache(
                q, k_cache, v.clone(), k_new, v_new, rotary_cos=tables[0], rotary_sin=tables[1],
                cache_seqlens=before, cu_seqlens_q=cu_q, cu_seqlens_k_new=cu_new, max_seqlen_q=3,
                rotary_seqlens=None if rotary_seqlens is None else torch.tensor(
                    base, dtype=torch.int32, device=device),
                causal=causal, return_softmax_lse=True, **names3,
            )
            check(rows(k_cache), k_rows)
            check(o, np.concatenate(o_parts))
            check(lse, np.concatenate(lse_parts, 1))


def test_page_table_and_batch_index_of_fa3(before, device):
    """Both given: the index selects rows of the table."""
    pages = [randn(s, 12, 8, HEADS_KV, DIM).to(device) for s in (1, 2)]
    table = torch.arange(12, dtype=torch.int32, device=device).reshape(4, 3)
    index = torch.tensor([3, 1, 0], dtype=torch.int32, device=device)
    q = randn(9, BATCH, 1, HEADS, DIM).to(device)
    both = fa3.flash_attn_with_kvcache(
        q, *pages, cache_seqlens=before + 1, page_table=table, cache_batch_idx=index
    )
    selected = fa3.flash_attn_with_kvcache(
        q, *pages, cache_seqlens=before + 1, page_table=table[index.long()].contiguous()
    )
    assert torch.equal(both, selected)


def test_a_cache_with_room_for_more_sequences(before, device):
    k, v = (randn(s, 5, CAPACITY, HEADS_KV, DIM).to(device) for s in (1, 2))
    q = randn(9, BATCH, 1, HEADS, DIM).to(device)
    o = fa2.flash_attn_with_kvcache(q, k, v, cache_seqlens=before + 1)
    cut = fa2.flash_attn_with_kvcache(q, k[:3], v[:3], cache_seqlens=before + 1)
    assert torch.equal(o, cut)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_caches_with_their_scales(before, device, kind):
    """A 16-bit q on an 8-bit cache (an addition of ours) and 8-bit q, k, v of FlashAttention-3."""
    eight = getattr(torch, kind)
    scales = (randn(7, BATCH, HEADS_KV).abs() + 0.5).to(device)
    k, v = (randn(s, BATCH, CAPACITY, HEADS_KV, DIM).to(device).to(eight) for s in (1, 2))
    q = randn(9, BATCH, 1, HEADS, DIM).to(device)
    for rows, factor in ((q.to(torch.bfloat16), None), (q.to(eight), scales)):
        o = fa3.flash_attn_with_kvcache(
            rows, k, v, cache_seqlens=before + 1, q_descale=factor, k_descale=scales,
            v_descale=scales,
        )
        assert o.dtype == torch.bfloat16
        for b, n in enumerate(BEFORE):
            s = reference.to_numpy(scales[b])[:, None]
            turn = 1 if factor is None else np.repeat(s, HEADS // HEADS_KV, 0)
            want, _ = reference.attention(
                reference.to_numpy(rows[b].float()) * turn,
                *(reference.to_numpy(c[b, : n + 1].float()) * s for c in (k, v)),
            )
            reference.close(reference.to_numpy(o[b]), want, "bfloat16")


def test_new_rows_are_stored_in_8_bits_with_the_scales(before, device):
    eight = torch.float8_e4m3fn
    k, v = (randn(s, BATCH, CAPACITY, HEADS_KV, DIM).to(device).to(eight) for s in (1, 2))
    scales = (randn(7, BATCH, HEADS_KV).abs() + 0.5).to(device)
    q, k_new, v_new = (
        randn(s, BATCH, 1, h, DIM).to(device, torch.bfloat16)
        for s, h in ((9, HEADS), (4, HEADS_KV), (5, HEADS_KV))
    )
    fa3.flash_attn_with_kvcache(
        q, k, v, k_new, v_new, cache_seqlens=before, k_descale=scales, v_descale=scales
    )
    for b, n in enumerate(BEFORE):
        stored = (k_new[b, 0].float() / scales[b][:, None]).to(eight)
        assert torch.equal(k[b, n].float(), stored.float())


def test_pages_of_the_ragged_functions(before, device):
    """block_table of flash-attn 2 (lengths from cu_seqlens_k), page_table of FlashAttention-4."""
    pages = [randn(s, 12, 8, HEADS_KV, DIM).to(device) for s in (1, 2)]
    table = torch.arange(11, 2, -1, dtype=torch.int32, device=device).reshape(3, 3)
    rows = [p[table.long()].flatten(1, 2) for p in pages]
    counts = (2, 1, 3)
    cu_q = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32, device=device)
    lengths = before + 3
    cu_k = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    q = randn(9, sum(counts), HEADS, DIM).to(device)
    want = [
        reference.attention(
            reference.to_numpy(part),
            *(reference.to_numpy(r[b, : BEFORE[b] + 3]) for r in rows),
            causal=True,
        )
        for b, part in enumerate(q.split(counts))
    ]
    want = np.concatenate([o for o, _ in want]), np.concatenate([lse for _, lse in want], 1)
    o, lse, _ = fa2.flash_attn_varlen_func(
        q, *pages, cu_q, cu_k, 3, 20, causal=True, block_table=table, return_attn_probs=True
    )
    check(o, want[0])
    check(lse, want[1])
    o, lse = fa4.flash_attn_varlen_func(
        q, *pages, cu_seqlens_q=cu_q, seqused_k=lengths, page_table=table, causal=True,
        return_lse=True, seqlen_k_per_split=64,
    )
    check(o, want[0])
    check(lse, want[1])


def test_fixed_splits_of_fa4_make_a_sequence_independent_of_its_batch(device):
    k, v = (randn(s, 4, 300, HEADS_KV, DIM).to(device) for s in (1, 2))
    q = randn(9, 4, 1, HEADS, DIM).to(device)
    options = dict(causal=True, seqlen_k_per_split=128)
    together, _ = fa4.flash_attn_varlen_func(q, k, v, **options)
    for b in range(4):
        alone, _ = fa4.flash_attn_varlen_func(q[b : b + 1], k[b : b + 1], v[b : b + 1], **options)
        assert torch.equal(alone[0], together[b])


def test_new_rows_that_require_grad(before, device):
    k, v = (randn(s, BATCH, CAPACITY, HEADS_KV, DIM).to(device) for s in (1, 2))
    q, k_new, v_new = (
        randn(s, BATCH, 1, h, DIM).to(device).requires_grad_()
        for s, h in ((9, HEADS), (4, HEADS_KV), (5, HEADS_KV))
    )
    twins = k.clone(), v.clone()
    o = fa2.flash_attn_with_kvcache(q, k, v, k_new, v_new, cache_seqlens=before, causal=True)
    with torch.no_grad():
        plain = fa2.flash_attn_with_kvcache(
            q, *twins, k_new, v_new, cache_seqlens=before, causal=True
        )
    assert torch.equal(o, plain) and torch.equal(k, twins[0])
    with pytest.raises(NotImplementedError, match="backward"):
        o.sum().backward()


def test_cuda_refuses_what_it_does_not_do_yet_by_name(device):
    if "cuda" not in str(device):
        pytest.skip("on a GPU")
    q, k, v = (torch.zeros(2, 4, 2, 64, device=device, dtype=torch.float16) for _ in range(3))
    table = torch.zeros(2, 1, dtype=torch.int32, device=device)
    with pytest.raises(NotImplementedError):
        fa2.flash_attn_with_kvcache(q, k, v, cache_seqlens=4, block_table=table)
    with pytest.raises(NotImplementedError):
        fa2.flash_attn_with_kvcache(q[:, :1], k, v, k[:, :1], v[:, :1], cache_seqlens=1)
