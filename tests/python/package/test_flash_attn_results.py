# SPDX-License-Identifier: Apache-2.0
"""Every function and option of the dialects that computes without a cache, beside fp64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import flash_attn_reference as reference  # noqa: E402

import tegula.flash_attn as fa2  # noqa: E402
import tegula.flash_attn.cute as fa4  # noqa: E402
import tegula.flash_attn.cute.interface as fa4_interface  # noqa: E402
import tegula.flash_attn.flash_attn_3 as fa3  # noqa: E402
from tegula.flash_attn import flash_attn_interface as fa2_interface  # noqa: E402

HEADS, HEADS_KV, DIM = 4, 2, 32


@pytest.fixture
def dtype(device):
    return torch.float16 if "cuda" in str(device) else torch.float32


@pytest.fixture
def make(device, dtype):
    generator = torch.Generator().manual_seed(7)

    def tensor(*shape):
        return torch.randn(*shape, generator=generator).to(device=device, dtype=dtype)

    return tensor


@pytest.fixture
def qkv(make):
    """Dense: seqlen_q 5, seqlen_k 9."""
    return make(2, 5, HEADS, DIM), make(2, 9, HEADS_KV, DIM), make(2, 9, HEADS_KV, DIM)


def dense_reference(q, k, v, **mask):
    slopes, sink = mask.pop("slopes", None), mask.pop("sink", None)
    pairs = [
        reference.attention(
            *(reference.to_numpy(t[b]) for t in (q, k, v)),
            slopes=None if slopes is None else reference.to_numpy(slopes.expand(len(q), HEADS)[b]),
            sink=None if sink is None else reference.to_numpy(sink),
            **mask,
        )
        for b in range(len(q))
    ]
    return np.stack([o for o, _ in pairs]), np.stack([lse for _, lse in pairs])


def check(got, lse, want, dtype):
    name = str(dtype).removeprefix("torch.")
    reference.close(reference.to_numpy(got), want[0], name)
    if lse is not None:
        assert lse.dtype == torch.float32
        reference.close(reference.to_numpy(lse), want[1], "float16" if name != "float32" else name)


MASKS = [
    dict(),
    dict(causal=True),
    dict(window_size=(2, 1)),
    dict(window_size=(-1, 1)),
    dict(window_size=(2, -1)),
    dict(window_size=(2, 3), causal=True),  # callers pass both: causal wins on the right
    dict(softmax_scale=0.3),
    dict(softcap=0.8, causal=True),
]


def mask_of(options):
    names = dict(window_size="window", softmax_scale="scale")
    return {names.get(name, name): value for name, value in options.items()}


@pytest.mark.parametrize("options", MASKS)
def test_fa2_dense(qkv, dtype, options):
    q, k, v = qkv
    want = dense_reference(q, k, v, **mask_of(options))
    o, lse, dmask = fa2.flash_attn_func(q, k, v, **options, return_attn_probs=True)
    check(o, lse, want, dtype)
    assert dmask.numel() == 0 and dmask.dtype == q.dtype
    alone = fa2.flash_attn_func(q, k, v, **options, deterministic=True)
    assert torch.equal(alone, o)


@pytest.mark.parametrize("options", MASKS)
def test_fa3_dense(qkv, dtype, options):
    q, k, v = qkv
    want = dense_reference(q, k, v, **mask_of(options))
    o, lse = fa3.flash_attn_func(q, k, v, **options, return_attn_probs=True)
    check(o, lse, want, dtype)
    hinted = fa3.flash_attn_func(q, k, v, **options, num_splits=3, pack_gqa=True, sm_margin=4)
    check(hinted, None, want, dtype)
    assert isinstance(hinted, torch.Tensor)


@pytest.mark.parametrize("options", MASKS)
def test_fa4_dense(qkv, dtype, options):
    q, k, v = qkv
    want = dense_reference(q, k, v, **mask_of(options))
    if "window_size" in options:
        pair = tuple(None if edge < 0 else edge for edge in options["window_size"])
        options = {**options, "window_size": pair}
    o, lse = fa4.flash_attn_func(q, k, v, **options, return_lse=True)
    check(o, lse, want, dtype)
    o, lse = fa4.flash_attn_func(q, k, v, **options, num_splits=2, pack_gqa=False)
    check(o, None, want, dtype)
    assert lse is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("per_batch", [False, True])
def test_alibi(qkv, make, dtype, causal, per_batch):
    """flash-attn's formula, causal or not: -slope * |i + seqlen_k - seqlen_q - j|."""
    q, k, v = qkv
    slopes = make(2, HEADS).abs().float() if per_batch else make(HEADS).abs().float()
    o, lse, _ = fa2.flash_attn_func(
        q, k, v, causal=causal, alibi_slopes=slopes, return_attn_probs=True
    )
    check(o, lse, dense_reference(q, k, v, causal=causal, slopes=slopes), dtype)


def test_windows_as_tensors(qkv, dtype):
    q, k, v = qkv
    want = dense_reference(q, k, v, window=(2, 1))
    for pair in [torch.tensor([2, 1]), (torch.tensor(2), np.int64(1)), [2, 1]]:
        check(fa3.flash_attn_func(q, k, v, window_size=pair), None, want, dtype)
        check(fa4.flash_attn_func(q, k, v, window_size=pair)[0], None, want, dtype)
    full = dense_reference(q, k, v)
    for none in [None, (None, None), (-1, -1), torch.tensor([-1, -1])]:
        check(fa2.flash_attn_func(q, k, v, window_size=none), None, full, dtype)
        check(fa4.flash_attn_func(q, k, v, window_size=none)[0], None, full, dtype)


def test_chunks(qkv, dtype):
    q, k, v = qkv
    o, lse = fa3.flash_attn_func(q, k, v, causal=True, attention_chunk=4, return_attn_probs=True)
    check(o, lse, dense_reference(q, k, v, causal=True, chunk=4), dtype)


@pytest.mark.parametrize("sink_dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sinks(qkv, make, dtype, sink_dtype):
    q, k, v = qkv
    sink = make(HEADS).to(sink_dtype)
    want = dense_reference(q, k, v, causal=True, sink=sink)
    o, lse = fa4.flash_attn_func(q, k, v, causal=True, learnable_sink=sink, return_lse=True)
    check(o, lse, want, dtype)
    o, lse = fa3.flash_attn_func(q, k, v, causal=True, s_aux=sink, return_attn_probs=True)
    check(o, lse, want, dtype)


def test_a_16_bit_sink_is_cast_once_and_a_changed_one_again(qkv, make, dtype):
    from tegula.flash_attn import _convert

    q, k, v = qkv
    sink = torch.nn.Parameter(make(HEADS).to(torch.bfloat16), requires_grad=False)
    before = len(_convert._fp32_sinks)
    first = _convert.fp32_sink(sink)
    assert _convert.fp32_sink(sink) is first and len(_convert._fp32_sinks) == before + 1
    sink.add_(1)  # in place: the version changes
    assert torch.equal(_convert.fp32_sink(sink), sink.float())
    sink.data = make(HEADS).to(torch.bfloat16)  # another storage under the same name
    assert torch.equal(_convert.fp32_sink(sink), sink.float())
    o, _ = fa4.flash_attn_func(q, k, v, learnable_sink=sink)
    check(o, None, dense_reference(q, k, v, sink=sink), dtype)
    with torch.inference_mode():
        frozen = make(HEADS).to(torch.bfloat16)
        _convert.fp32_sink(frozen)
        frozen.add_(1)
        assert torch.equal(_convert.fp32_sink(frozen), frozen.float())
    del sink, first
    assert len(_convert._fp32_sinks) == before


def test_other_head_dim_of_v(make, dtype):
    q, k, v = make(2, 5, HEADS, DIM), make(2, 9, HEADS_KV, DIM), make(2, 9, HEADS_KV, 16)
    want = dense_reference(q, k, v, causal=True)
    check(fa3.flash_attn_func(q, k, v, causal=True), None, want, dtype)
    check(fa4.flash_attn_func(q, k, v, causal=True)[0], None, want, dtype)


def test_packed(make, dtype):
    qkv = make(2, 6, 3, HEADS, DIM)
    want = dense_reference(*qkv.unbind(2), causal=True)
    o, lse, _ = fa2.flash_attn_qkvpacked_func(qkv, causal=True, return_attn_probs=True)
    check(o, lse, want, dtype)
    check(fa3.flash_attn_qkvpacked_func(qkv, causal=True), None, want, dtype)
    q, kv = make(2, 3, HEADS, DIM), make(2, 6, 2, HEADS_KV, DIM)
    want = dense_reference(q, *kv.unbind(2), window=(3, 0))
    check(fa2.flash_attn_kvpacked_func(q, kv, window_size=(3, 0)), None, want, dtype)
    heads = make(2, 6, HEADS + 2 * HEADS_KV, DIM)
    parts = heads.split([HEADS, HEADS_KV, HEADS_KV], 2)
    o, lse = fa3.flash_attn_qkvpacked_func(
        heads, causal=True, num_heads_q=HEADS, return_attn_probs=True
    )
    check(o, lse, dense_reference(*parts, causal=True), dtype)
    with pytest.raises(ValueError, match="num_heads_q: 3 .* 8 heads"):
        fa3.flash_attn_qkvpacked_func(heads, num_heads_q=3)


def test_strided_last_dimension_is_copied_as_there(make, dtype):
    q, k, v = (make(2, 6, DIM, HEADS).transpose(-1, -2) for _ in range(3))
    check(fa2.flash_attn_func(q, k, v), None, dense_reference(q, k, v), dtype)


# ---- Ragged --------------------------------------------------------------------------------------

LENGTHS_Q, LENGTHS_K = (3, 1, 6), (7, 4, 6)


@pytest.fixture
def ragged(make, device):
    def offsets(lengths):
        return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)

    q = make(sum(LENGTHS_Q), HEADS, DIM)
    k, v = (make(sum(LENGTHS_K), HEADS_KV, DIM) for _ in range(2))
    return q, k, v, offsets(LENGTHS_Q), offsets(LENGTHS_K)


def ragged_reference(q, k, v, used_q=LENGTHS_Q, used_k=LENGTHS_K, **mask):
    """Rows outside the used lengths stay NaN, so that nobody compares them."""
    q, k, v = (reference.to_numpy(t) for t in (q, k, v))
    o, lse = np.full((*q.shape[:2], v.shape[2]), np.nan), np.full((q.shape[1], len(q)), np.nan)
    at_q = at_k = 0
    for b, (slot_q, slot_k) in enumerate(zip(LENGTHS_Q, LENGTHS_K)):
        rows = slice(at_q, at_q + used_q[b])
        keys = slice(at_k, at_k + used_k[b])
        o[rows], lse[:, rows] = reference.attention(q[rows], k[keys], v[keys], **mask)
        at_q, at_k = at_q + slot_q, at_k + slot_k
    return o, lse


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(causal=True, window_size=(2, 2))])
@pytest.mark.parametrize("maxima", [int, np.int64, torch.tensor])
def test_ragged(ragged, dtype, options, maxima):
    q, k, v, cu_q, cu_k = ragged
    longest = (maxima(max(LENGTHS_Q)), maxima(max(LENGTHS_K)))
    want = ragged_reference(q, k, v, **mask_of(options))
    o, lse, dmask = fa2.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, *longest, **options, return_attn_probs=True
    )
    check(o, lse, want, dtype)
    assert lse.shape == (HEADS, q.shape[0]) and dmask.numel() == 0
    o, lse = fa3.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, *longest, **options, return_attn_probs=True
    )
    check(o, lse, want, dtype)
    o, lse = fa4.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=longest[0],
        max_seqlen_k=longest[1], min_seqlen_k=4, **options, return_lse=True,
    )
    check(o, lse, want, dtype)
    o, lse = fa4.flash_attn_varlen_func(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **options)
    check(o, None, want, dtype)
    assert lse is None


def test_ragged_int64_offsets(ragged, dtype):
    q, k, v, cu_q, cu_k = ragged
    o = fa2.flash_attn_varlen_func(q, k, v, cu_q.long(), cu_k.long(), 6, 7, causal=True)
    check(o, None, ragged_reference(q, k, v, causal=True), dtype)


def test_ragged_used_lengths(ragged, dtype, device):
    q, k, v, cu_q, cu_k = ragged
    used_q, used_k = (2, 1, 4), (5, 4, 6)
    tensors = dict(
        seqused_q=torch.tensor(used_q, dtype=torch.int32, device=device),
        seqused_k=torch.tensor(used_k, dtype=torch.int32, device=device),
    )
    want = ragged_reference(q, k, v, used_q, used_k, causal=True)
    rows = torch.tensor(~np.isnan(want[0][:, 0, 0]))
    want = want[0][rows.numpy()], want[1][:, rows.numpy()]
    o, lse = fa3.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, 6, 7, causal=True, return_attn_probs=True, **tensors
    )
    check(o[rows.to(device)], lse[:, rows.to(device)], want, dtype)
    o, lse = fa4.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True, return_lse=True, **tensors
    )
    check(o[rows.to(device)], lse[:, rows.to(device)], want, dtype)


def test_ragged_packed(make, device, dtype):
    qkv = make(sum(LENGTHS_K), 3, HEADS, DIM)
    cu = torch.tensor([0, *np.cumsum(LENGTHS_K)], dtype=torch.int32, device=device)
    got = fa2.flash_attn_varlen_qkvpacked_func(qkv, cu, 7, causal=True)
    unpacked = fa2.flash_attn_varlen_func(*qkv.unbind(1), cu, cu, 7, 7, causal=True)
    assert torch.equal(got, unpacked)
    got = fa2.flash_attn_varlen_kvpacked_func(qkv[:, 0], qkv[:, 1:], cu, cu, 7, 7, causal=True)
    assert torch.equal(got, unpacked)


def test_dense_q_with_ragged_k_of_fa4(ragged, make, dtype):
    _, k, v, _, cu_k = ragged
    q = make(3, 2, HEADS, DIM)
    o, lse = fa4.flash_attn_varlen_func(q, k, v, cu_seqlens_k=cu_k, causal=True, return_lse=True)
    at = np.cumsum((0, *LENGTHS_K))
    for b in range(3):
        keys = slice(at[b], at[b + 1])
        want = reference.attention(
            *(reference.to_numpy(t) for t in (q[b], k[keys], v[keys])), causal=True
        )
        check(o[b], lse[b], want, dtype)


# ---- Private forwards, combine, empty rows, types ------------------------------------------------


def test_private_forwards_return_four_values(qkv, ragged, dtype):
    q, k, v = qkv
    scale = DIM**-0.5
    o, lse, dmask, state = fa2_interface._wrapped_flash_attn_forward(
        q, k, v, 0.0, scale, True, -1, -1, 0.0, None, False
    )
    check(o, lse, dense_reference(q, k, v, causal=True), dtype)
    assert dmask.numel() == 0 and state.shape == (2,) and state.dtype == torch.int64
    o, lse, partial, lse_partial = fa3._flash_attn_forward(q, k, v, causal=True)
    check(o, lse, dense_reference(q, k, v, causal=True), dtype)
    assert partial.numel() == 0 and lse_partial.numel() == 0
    given = torch.empty_like(q)
    same, *_ = fa3._flash_attn_forward(q, k, v, out_=given, causal=True)
    assert same.data_ptr() == given.data_ptr()
    assert torch.equal(given, o)
    q, k, v, cu_q, cu_k = ragged
    o, lse, *rest = fa2_interface._flash_attn_varlen_forward(
        q, k, v, cu_q, cu_k, 6, 7, 0.0, scale, True, 2, 0
    )
    check(o, lse, ragged_reference(q, k, v, causal=True, window=(2, 0)), dtype)
    assert len(rest) == 2


def test_rows_without_visible_key(make, dtype):
    q, k, v = make(1, 5, HEADS, DIM), make(1, 2, HEADS_KV, DIM), make(1, 2, HEADS_KV, DIM)
    o, lse, _ = fa2.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (o[:, :3] == 0).all() and (lse[..., :3] == -torch.inf).all()
    check(o, lse, dense_reference(q, k, v, causal=True), dtype)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_types(make, device, name):
    kind = getattr(torch, name)
    q, k, v = (make(1, 7, HEADS, DIM).to(kind) for _ in range(3))
    for o in (
        fa2.flash_attn_func(q, k, v, causal=True),
        fa3.flash_attn_func(q, k, v, causal=True),
        fa4.flash_attn_func(q, k, v, causal=True)[0],
    ):
        assert o.dtype == kind
        check(o, None, dense_reference(q, k, v, causal=True), kind)


@pytest.mark.parametrize("parts", [1, 3])
def test_combine(qkv, device, dtype, parts):
    """Partial results over ranges of keys; heads come last in lse, in and out."""
    if "cuda" in str(device):
        pytest.skip("combine is planned on CUDA")
    q, k, v = qkv
    pairs = [
        fa3.flash_attn_func(q, k_part, v_part, return_attn_probs=True)
        for k_part, v_part in zip(k.chunk(parts, 1), v.chunk(parts, 1))
    ]
    partial = torch.stack([o for o, _ in pairs]).float()
    lse_partial = torch.stack([lse for _, lse in pairs]).transpose(-1, -2)
    want_o, want_lse = dense_reference(q, k, v)
    want = want_o, want_lse.swapaxes(1, 2)
    o, lse = fa3.flash_attn_combine(partial, lse_partial)
    check(o, lse, want, dtype)
    o, lse = fa3.flash_attn_combine(partial, lse_partial.contiguous(), out_dtype=torch.bfloat16)
    check(o, lse, want, torch.bfloat16)
    assert o.dtype == torch.bfloat16
    given = torch.empty_like(o)
    assert fa3.flash_attn_combine(partial, lse_partial, given)[0].data_ptr() == given.data_ptr()
    assert torch.equal(given, o)
    with pytest.raises(TypeError, match="out: torch.bfloat16 .* out_dtype: torch.float16"):
        fa3.flash_attn_combine(partial, lse_partial, given, torch.float16)
    o, lse = fa4_interface.flash_attn_combine(partial, lse_partial)
    check(o, lse, want, dtype)
    o, lse = fa4_interface.flash_attn_combine(partial.flatten(1, 2), lse_partial.flatten(1, 2))
    check(o, lse, (want[0].reshape(10, HEADS, DIM), want[1].reshape(10, HEADS)), dtype)
    o, lse = fa4_interface.flash_attn_combine(partial, lse_partial, return_lse=False)
    assert lse is None
