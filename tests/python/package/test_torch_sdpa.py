# SPDX-License-Identifier: Apache-2.0
"""tegula.torch.scaled_dot_product_attention against PyTorch's in float64 on the same stored values."""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import tegula.torch as tt

# Of max |v|: one rounding of o and those of P, for scores of unit size.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}
sdpa = tt.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def no_fallback():
    """A call that goes to PyTorch fails a test that does not expect it."""
    before = tt.set_fallback("raise")
    yield
    tt.set_fallback(before)


def check(q, k, v, mask=None, **options):
    o = sdpa(q, k, v, mask, **options)
    wide = mask.double() if mask is not None and mask.dtype != torch.bool else mask
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), wide, **options)
    assert o.shape == expected.shape and o.dtype == q.dtype and o.device == q.device
    if o.numel() and v.numel():
        error = (o.double() - expected).abs().max().item()
        assert error <= TOLERANCE[q.dtype] * max(1.0, v.abs().max().item()), error
    return o


def randn(seed: int, *shape: int, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@st.composite
def calls(draw):
    """(q, k, v, mask, options)"""
    size = st.integers(1, 3)
    lead = draw(st.lists(size, max_size=3))  # 0: three dimensions
    heads_kv, ratio = draw(size), draw(size)
    seqlen_q, seqlen_k = draw(st.integers(0, 70)), draw(st.integers(0, 70))
    dim, dim_v = draw(st.sampled_from([1, 8, 20, 64])), draw(st.sampled_from([1, 8, 33, 64]))
    dtype, seed = draw(st.sampled_from(list(TOLERANCE))), draw(st.integers(0, 1000))
    heads = heads_kv * ratio
    q = randn(seed, *lead, heads, seqlen_q, dim, dtype=dtype)
    k = randn(seed + 1, *lead, heads_kv, seqlen_k, dim, dtype=dtype)
    v = randn(seed + 2, *lead, heads_kv, seqlen_k, dim_v, dtype=dtype)
    if draw(st.booleans()):  # the layout [batch, seqlen, heads, dim] under the names of this one
        q, k, v = (x.transpose(-3, -2).contiguous().transpose(-3, -2) for x in (q, k, v))
    options = {"enable_gqa": True} if ratio > 1 else {}
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(0.05, 1.0)) / max(1.0, dim**0.5)
    kind = draw(st.sampled_from(["none", "causal", "bool", "float32", "own"]))
    mask = None
    if kind == "causal":
        options["is_causal"] = True
    elif kind != "none":
        full = [*lead, heads, seqlen_q, seqlen_k]
        shape = [draw(st.sampled_from([1, extent])) for extent in full][draw(st.integers(0, len(full) - 2)) :]
        values = randn(seed + 3, *shape)
        mask = values > 0 if kind == "bool" else values if kind == "float32" else values.to(dtype)
        if kind != "bool" and draw(st.booleans()):
            mask = mask.masked_fill(values > 0.5, -torch.inf)
        if draw(st.booleans()):
            mask = mask.transpose(-1, -2).contiguous().transpose(-1, -2)
    return q, k, v, mask, options


@settings(max_examples=250, deadline=None)
@given(calls())
def test_any_call(call):
    q, k, v, mask, options = call
    check(q, k, v, mask, **options)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(5, 5), (5, 130), (130, 5), (1, 9), (9, 1), (70, 69), (69, 70)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_causal_is_top_left(seqlen_q, seqlen_k, dtype, device):
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("float32 goes to PyTorch on CUDA")
    q, k, v = (randn(i, 2, 4, n, 64, dtype=dtype).to(device) for i, n in enumerate((seqlen_q, seqlen_k, seqlen_k)))
    o = check(q, k, v, is_causal=True)
    assert torch.allclose(o[:, :, 0].double(), v[:, :, 0].double(), rtol=1e-2)  # row 0 sees key 0 alone


def test_two_dimensions():
    check(randn(1, 3, 8), randn(2, 5, 8), randn(3, 5, 7), randn(4, 3, 5))
    check(randn(1, 3, 8), randn(2, 5, 8), randn(3, 5, 7), is_causal=True)


@pytest.mark.parametrize(
    "lead_q, lead_k, lead_v",
    [((2, 4), (1, 4), (1, 4)), ((2, 4), (2, 1), (2, 1)), ((1, 4), (2, 4), (2, 4)), ((2, 4), (4,), (4,)), ((2, 1), (2, 4), (1, 1)),
     ((2, 3, 4), (3, 4), (2, 1, 1)), ((), (3,), (2, 1))],
)  # fmt: skip
def test_leading_dimensions_broadcast(lead_q, lead_k, lead_v):
    check(randn(1, *lead_q, 3, 8), randn(2, *lead_k, 5, 8), randn(3, *lead_v, 5, 8))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_without_a_key_is_zero(kind):
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    if kind == "float":
        mask = torch.zeros(3, 5).masked_fill(~mask, -torch.inf)
    o = check(randn(1, 1, 2, 3, 8), randn(2, 1, 2, 5, 8), randn(3, 1, 2, 5, 8), mask)
    assert (o[:, :, 1] == 0).all() and (o[:, :, 0] != 0).all()


def test_no_copy_of_a_broadcast_mask(monkeypatch):
    seen = []
    real = tt._attention
    monkeypatch.setattr(tt, "_attention", lambda *a, **o: seen.append(o["bias"]) or real(*a, **o))
    mask = randn(4, 2, 1, 1, 50) > 0
    check(randn(1, 2, 4, 60, 8), randn(2, 2, 4, 50, 8), randn(3, 2, 4, 50, 8), mask)
    assert seen[0].data_ptr() == mask.data_ptr() and seen[0].stride() == (50, 0, 0, 1)


def test_autocast_as_pytorch():
    q, k, v, mask = randn(1, 2, 4, 3, 8), randn(2, 2, 4, 5, 8).half(), randn(3, 2, 4, 5, 8), randn(4, 3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, expected = sdpa(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask)
    assert o.dtype == expected.dtype == torch.bfloat16
    assert (o - expected).abs().max() <= 3e-2


def test_dropout_is_refused_by_name():
    q = randn(1, 1, 1, 3, 8)
    with pytest.raises(NotImplementedError, match="dropout_p: 0.1"):
        sdpa(q, q, q, dropout_p=0.1)


REFUSED = {
    "float64": lambda q: ((q.double(),) * 3, {}, "float64"),
    "head_dim": lambda q: ((q.repeat(1, 1, 1, 65),) * 3, {}, "head_dim 520"),
    "scale": lambda q: ((q,) * 3, {"scale": 0.0}, "scale: 0.0"),
    "scale below 0": lambda q: ((q,) * 3, {"scale": -1.0}, "scale: -1.0"),
    "heads": lambda q: ((q, q, q[:, :1]), {"enable_gqa": True}, "2 heads of query on 2 of key and 1 of value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_fallback_is_said_once_and_can_be_an_error(name):
    operands, options, text = REFUSED[name](randn(1, 2, 2, 3, 8))
    with pytest.raises(NotImplementedError, match=text):
        sdpa(*operands, **options)
    tt.set_fallback("warn")
    tt._told.clear()
    with pytest.warns(tt.FallbackWarning, match=text) as said:
        o = sdpa(*operands, **options)
    assert len(said) == 1 and said[0].filename == __file__
    assert torch.equal(o, F.scaled_dot_product_attention(*operands, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sdpa(*operands, **options)


@pytest.mark.parametrize(
    "operands, options",
    [((randn(1, 2, 4, 3, 8), randn(1, 2, 2, 3, 8), randn(1, 2, 2, 3, 8)), {}),  # heads without enable_gqa
     ((randn(1, 2, 4, 3, 8), randn(1, 2, 3, 3, 8), randn(1, 2, 3, 3, 8)), {"enable_gqa": True}),
     ((randn(1, 3, 8), randn(1, 3, 8).half(), randn(1, 3, 8)), {}),
     ((randn(1, 8), randn(1, 8), randn(1, 8)), {}),
     ((randn(1, 1, 3, 8),) * 3, {"attn_mask": torch.ones(3, 3, dtype=torch.int32)}),
     ((randn(1, 1, 3, 8),) * 3, {"attn_mask": torch.ones(2, 1, 3, 3, dtype=torch.bool)}),
     ((randn(1, 1, 3, 8),) * 3, {"attn_mask": torch.ones(3, 3, dtype=torch.bool), "is_causal": True})],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::tegula.torch.FallbackWarning")
def test_what_pytorch_refuses_is_refused(operands, options):
    with pytest.raises((RuntimeError, IndexError)):
        F.scaled_dot_product_attention(*operands, **options)
    with pytest.raises(NotImplementedError):
        sdpa(*operands, **options)
    tt.set_fallback("warn")
    with pytest.raises((RuntimeError, IndexError)):
        sdpa(*operands, **options)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_padding_masks_become_lengths(data):
    batch, seqlen_k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    ends = [sorted(data.draw(st.lists(st.integers(0, seqlen_k), min_size=2, max_size=2))) for _ in range(batch)]
    mask = torch.zeros(batch, 1, 1, seqlen_k, dtype=torch.bool)
    for b, (first, end) in enumerate(ends):
        mask[b, ..., first:end] = True
    leftpad, used = tt._padding(mask, mask.expand(batch, 2, 5, seqlen_k))
    assert leftpad.dtype == used.dtype == torch.int32
    for b, (first, end) in enumerate(ends):
        assert (leftpad[b], used[b]) == (first, end) or (first == end and leftpad[b] == used[b])
    # What they mean in the core is what the mask means to PyTorch.
    q, k, v = randn(1, batch, 2, 5, 8), randn(2, batch, 2, seqlen_k, 8), randn(3, batch, 2, seqlen_k, 8)
    o, _ = torch.ops.tegula.attention(*(x.transpose(1, 2) for x in (q, k, v)), leftpad_k=leftpad, seqused_k=used)
    expected = F.scaled_dot_product_attention(q, k, v, mask)
    assert (o.transpose(1, 2) - expected).abs().max() <= 1e-5


def test_other_masks_are_no_padding():
    hole = torch.tensor([True, False, True, False]).expand(1, 1, 1, 4)
    assert tt._padding(hole, hole.expand(1, 2, 3, 4)) is None
    by_row = torch.ones(1, 1, 3, 4, dtype=torch.bool)
    assert tt._padding(by_row, by_row.expand(1, 2, 3, 4)) is None
    assert tt._padding(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4)) is None
    kept = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    assert tt._padding(kept, kept)[1].item() == 4
    kept[..., 1] = False  # the answer of the object before does not stand
    assert tt._padding(kept, kept) is None
    kept[..., 2:] = False
    assert tt._padding(kept, kept)[1].item() == 1


def test_masks_on_cuda(device):
    if device != "cuda":
        pytest.skip("the CPU takes every mask")
    q, k, v = (randn(i, 2, 4, 70, 64, dtype=torch.bfloat16).to(device) for i in range(3))
    mask = torch.ones(2, 1, 1, 70, dtype=torch.bool, device=device)
    mask[0, ..., :7] = False
    mask[1, ..., 50:] = False
    check(q, k, v, mask)
    for other in (torch.zeros(70, 70, dtype=q.dtype, device=device), torch.ones(70, 70, device=device).tril().bool()):
        with pytest.raises(NotImplementedError, match="attn_mask"):
            sdpa(q, k, v, other)


def test_sdpa_routes_and_restores():
    real = F.scaled_dot_product_attention
    q = randn(1, 1, 1, 3, 8)
    with tt.sdpa():
        assert F.scaled_dot_product_attention is sdpa
        with tt.sdpa(fallback="warn"):
            assert F.scaled_dot_product_attention is sdpa and tt.set_fallback("warn") == "warn"
        assert tt.set_fallback("raise") == "raise"
        assert torch.equal(F.scaled_dot_product_attention(q, q, q), sdpa(q, q, q))
        with pytest.raises(NotImplementedError, match="float64"):
            F.scaled_dot_product_attention(q.double(), q.double(), q.double())
    assert F.scaled_dot_product_attention is real
    with pytest.raises(ZeroDivisionError), tt.sdpa():
        raise ZeroDivisionError
    assert F.scaled_dot_product_attention is real
    with pytest.raises(ValueError, match="'never'"), tt.sdpa(fallback="never"):
        pass
    assert F.scaled_dot_product_attention is real


def test_sdpa_left_in_another_order():
    real = F.scaled_dot_product_attention
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with tt.sdpa():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with tt.sdpa():
        thread.start()
        assert entered.wait(10)
    assert F.scaled_dot_product_attention is sdpa  # the other thread is inside
    leave.set()
    thread.join()
    assert F.scaled_dot_product_attention is real


def test_a_transformer_layer_of_pytorch(monkeypatch):
    calls = []
    real = tt._attention
    monkeypatch.setattr(tt, "_attention", lambda *a, **o: calls.append(o) or real(*a, **o))
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).train()  # no fused path
    x, padding = randn(1, 2, 9, 32), torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 6:] = True
    with torch.no_grad():
        expected = layer(x, src_key_padding_mask=padding)
        with tt.sdpa():
            o = layer(x, src_key_padding_mask=padding)
    assert len(calls) == 1 and (o - expected).abs().max() <= 2e-6
