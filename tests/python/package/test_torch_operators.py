# SPDX-License-Identifier: Apache-2.0
"""torch.ops.tegula.*: registration, fakes, torch.compile, export, gradients. Results: bit for bit those of the core."""

import pytest
import torch
import torch.nn.functional as F
from torch.library import opcheck

import tegula
import tegula.torch as tt

ops = torch.ops.tegula


def randn(seed: int, *shape: int):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def int32(*values: int):
    return torch.tensor(values, dtype=torch.int32)


def qkv(seqlen_q: int = 3, seqlen_k: int = 5):
    return randn(1, 2, seqlen_q, 4, 8), randn(2, 2, seqlen_k, 2, 8), randn(3, 2, seqlen_k, 2, 6)


def caches():
    return randn(4, 2, 9, 2, 8), randn(5, 2, 9, 2, 8)


def paged():
    return randn(4, 6, 4, 2, 8), randn(5, 6, 4, 2, 8)


def flat():
    return randn(1, 5, 4, 8), randn(2, 7, 2, 8), randn(3, 7, 2, 6)


# name, positional arguments, keywords of one call of each operator.
CALLS = {
    "attention": ("attention", qkv(), {}),
    "attention causal, sink": ("attention", qkv(), {"causal": True, "sink": randn(6, 4), "softcap": 3.0, "window_left": 2}),
    "attention bias": ("attention", qkv(), {"bias": randn(6, 3, 5).expand(2, 4, 3, 5), "softmax_scale": 0.3}),
    "attention lengths": ("attention", qkv(), {"seqused_k": int32(2, 5), "leftpad_k": int32(1, 0), "return_lse": False}),
    "attention out_dtype": ("attention", qkv(), {"out_dtype": torch.bfloat16}),
    "attention_varlen": ("attention_varlen", (*flat(), int32(0, 2, 5), int32(0, 3, 7)), {"max_seqlen_q": 3, "causal": True}),
    "attention_with_cache": ("attention_with_cache", (randn(1, 2, 1, 4, 8), *caches(), int32(3, 9)), {}),
    "attention_with_cache paged": (
        "attention_with_cache", (randn(1, 2, 1, 4, 8), *paged(), int32(3, 7)),
        {"page_table": torch.tensor([[5, 0], [2, 1]], dtype=torch.int32), "seqlen_new": 1},
    ),
    "combine": ("combine", (randn(1, 3, 2, 5, 4, 8), randn(2, 3, 2, 4, 5)), {"sink": randn(3, 4)}),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_bits_of_the_core(call, device):
    name, arguments, options = CALLS[call]
    if device == "cuda":
        if "bias" in options:
            pytest.skip("a bias tensor is refused on CUDA")
        arguments = [x.to(device, torch.bfloat16 if x.dtype == torch.float32 and x.shape[-1] > 5 else x.dtype) for x in arguments]
        options = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in options.items()}
        if arguments[2].shape[-1] == 6:
            arguments[2] = arguments[1].clone()
    o, lse = getattr(ops, name)(*arguments, **options)
    core_options = {key: value for key, value in options.items() if key != "return_lse"}
    expected, expected_lse = getattr(tegula, name)(*arguments, **core_options, return_lse=True)
    assert torch.equal(o, expected) and o.dtype == expected.dtype
    assert lse.shape == (0,) if options.get("return_lse") is False else torch.equal(lse, expected_lse)


@pytest.mark.parametrize("call", CALLS)
def test_opcheck(call):
    name, arguments, options = CALLS[call]
    opcheck(getattr(ops, name).default, arguments, options)


def test_opcheck_append_kv():
    new = randn(1, 2, 1, 2, 8), randn(2, 2, 1, 2, 8)
    opcheck(ops.append_kv.default, (*new, *caches(), int32(0, 3)))
    q = randn(3, 2, 1, 4, 8)
    rotary = {"cos": randn(4, 16, 4), "sin": randn(5, 16, 4), "q": q, "q_out": torch.empty_like(q)}
    opcheck(ops.append_kv.default, (*new, *caches(), int32(0, 3)), rotary)


def test_append_kv_is_the_core():
    new, q = (randn(1, 2, 1, 2, 8), randn(2, 2, 1, 2, 8)), randn(3, 2, 1, 4, 8)
    rotary = {"cos": randn(4, 16, 4), "sin": randn(5, 16, 4), "q": q}
    (k, v), (k_core, v_core) = caches(), caches()
    q_out = torch.empty_like(q)
    assert ops.append_kv(*new, k, v, int32(0, 3), q_out=q_out, **rotary) is None
    assert torch.equal(q_out, tegula.append_kv(*new, k_core, v_core, int32(0, 3), **rotary))
    assert torch.equal(k, k_core) and torch.equal(v, v_core) and not torch.equal(k, caches()[0])
    with pytest.raises(ValueError, match="q_out"):
        ops.append_kv(*new, k, v, int32(0, 3), **rotary)


def test_rows_past_seqused_q_are_defined():
    o, lse = ops.attention(*qkv(), seqused_q=int32(1, 3))
    assert (o[0, 1:] == 0).all() and (lse[0, :, 1:] == -torch.inf).all() and (o[0, 0] != 0).any() and lse[1].isfinite().all()
    full, full_lse = ops.attention(*qkv())
    assert torch.equal(o[1], full[1]) and torch.equal(lse[1], full_lse[1])
    assert ops.attention(*qkv(), seqused_q=int32(1, 3), out_dtype=torch.float16, return_lse=False)[0].dtype == torch.float16


def test_errors_are_those_of_the_core():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="num_heads_kv 2.*num_heads_q 3"):
        ops.attention(q[:, :, :3], k, v)
    with pytest.raises(NotImplementedError, match="v: dtype f32 differs from k: dtype f16"):
        ops.attention(q, k.half(), v)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "combine"])
def test_gradients_wait_for_their_backward(call):
    name, arguments, options = CALLS[call]
    q = arguments[0].clone().requires_grad_()
    o, lse = getattr(ops, name)(q, *arguments[1:], **options)
    expected, _ = getattr(ops, name)(*arguments, **options)
    assert o.requires_grad and torch.equal(o, expected)
    with pytest.raises(NotImplementedError, match=f"tegula::{name}: there is no backward"):
        o.float().sum().backward()
    with torch.no_grad():
        assert not getattr(ops, name)(q, *arguments[1:], **options)[0].requires_grad
    with pytest.raises(RuntimeError, match="requires_grad"):
        getattr(tegula, name)(q, *arguments[1:])


def test_a_learned_bias_counts():
    bias = randn(1, 2, 4, 3, 5).requires_grad_()
    o, _ = ops.attention(*qkv(), bias=bias)
    with pytest.raises(NotImplementedError, match="tegula::attention"):
        o.sum().backward()


def test_append_kv_refuses_gradients():
    k, v = caches()
    new = randn(1, 2, 1, 2, 8).requires_grad_()
    with pytest.raises(NotImplementedError, match="tegula::append_kv"):
        ops.append_kv(new, new, k, v, int32(0, 3))
    with torch.no_grad():
        ops.append_kv(new, new, k, v, int32(0, 3))
    assert torch.equal(k[1, 3], new[1, 0])


def compiled(function, backend="aot_eager"):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def test_compile_with_changing_lengths():
    f = compiled(lambda q, k, v: tt.scaled_dot_product_attention(q * 2, k, v, is_causal=True))
    for seqlen_q, seqlen_k in [(5, 5), (5, 9), (9, 5), (7, 7), (1, 1)]:
        q, k, v = randn(1, 2, 4, seqlen_q, 8), randn(2, 2, 4, seqlen_k, 8), randn(3, 2, 4, seqlen_k, 8)
        assert (f(q, k, v) - F.scaled_dot_product_attention(q * 2, k, v, is_causal=True)).abs().max() <= 3e-6


def test_compile_with_inductor():
    """A decode step: both caches written in place, then read; a mask beside it."""

    def step(q, k_new, v_new, k, v, length, mask):
        ops.append_kv(k_new, v_new, k, v, length)
        o = ops.attention_with_cache(q + 1, k, v, length, seqlen_new=1)[0]
        return o, tt.scaled_dot_product_attention(o.transpose(1, 2) * 2, k.transpose(1, 2), v.transpose(1, 2), mask, enable_gqa=True)

    arguments = randn(1, 2, 1, 4, 8), randn(2, 2, 1, 2, 8), randn(3, 2, 1, 2, 8)
    rest = int32(0, 3), torch.tensor([True, False, True] * 3)[None]
    expected_caches, its_caches = caches(), caches()
    expected = step(*arguments, *expected_caches, *rest)
    o = compiled(step, "inductor")(*arguments, *its_caches, *rest)
    assert all(torch.equal(a, b) for a, b in zip(its_caches, expected_caches))
    assert all((a - b).abs().max() <= 1e-6 for a, b in zip(o, expected))


def test_compile_under_grad_mode():
    q, k, v = qkv()
    o = compiled(lambda q: ops.attention(q * 2, k, v)[0] + 1)(q.requires_grad_())
    assert o.requires_grad
    with pytest.raises(NotImplementedError, match="tegula::attention"):
        o.sum().backward()


def test_compiled_code_follows_sdpa():
    """What was compiled outside of sdpa() is not used inside it, nor the other way round."""
    graphs = []

    def backend(graph, _):
        graphs.append(str(graph.code))
        return graph

    x = randn(1, 1, 2, 3, 8)
    f = compiled(lambda x: F.scaled_dot_product_attention(x, x, x), backend)
    f(x)
    with tt.sdpa():
        f(x)
    assert len(graphs) == 2 and "tegula" not in graphs[0] and "tegula" in graphs[1]
    f(x)
    assert len(graphs) == 2 or "tegula" not in graphs[2]


def test_compiled_fallback_is_said():
    tt._told.clear()
    f = compiled(lambda x: tt.scaled_dot_product_attention(x, x, x))
    x = randn(1, 1, 2, 3, 8).double()
    with pytest.warns(tt.FallbackWarning, match="float64"):
        o = f(x)
    assert torch.equal(o, F.scaled_dot_product_attention(x, x, x))


class Layer(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    q, k, v = randn(1, 2, 4, 6, 8), randn(2, 2, 4, 6, 8), randn(3, 2, 4, 6, 8)
    length = torch.export.Dim("length", min=2, max=512)
    shapes = {name: {2: length} for name in "qkv"}
    with tt.sdpa():
        program = torch.export.export(Layer(), (q, k, v), dynamic_shapes=shapes, strict=strict)
    assert "tegula.attention" in str(program.graph)
    longer = tuple(randn(i, 2, 4, 70, 8) for i in range(3))
    expected = F.scaled_dot_product_attention(*longer, is_causal=True)
    assert (program.module()(*longer) - expected).abs().max() <= 3e-6
