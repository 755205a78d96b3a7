# SPDX-License-Identifier: Apache-2.0
"""What the dialects refuse, by name; what they accept as hints; autograd."""

import pytest

torch = pytest.importorskip("torch")

import tegula.flash_attn as fa2  # noqa: E402
import tegula.flash_attn.cute as fa4  # noqa: E402
import tegula.flash_attn.cute.interface as fa4_interface  # noqa: E402
import tegula.flash_attn.flash_attn_3 as fa3  # noqa: E402
from tegula.flash_attn import flash_attn_interface as fa2_interface  # noqa: E402


@pytest.fixture
def qkv(device):
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(1, 4, 2, 32, generator=generator).to(device=device, dtype=torch.float16)
        for _ in range(3)
    ]


@pytest.fixture
def ragged(qkv, device):
    cu = torch.tensor([0, 4], dtype=torch.int32, device=device)
    return [*(t[0] for t in qkv), cu, cu, 4, 4]


def test_dropout_is_refused_with_its_value(qkv, ragged):
    q, k, v = qkv
    packed, kv = torch.stack(qkv, 2), torch.stack(qkv[1:], 2)
    calls = [
        lambda p: fa2.flash_attn_func(q, k, v, p),
        lambda p: fa2.flash_attn_qkvpacked_func(packed, p),
        lambda p: fa2.flash_attn_kvpacked_func(q, kv, p),
        lambda p: fa2.flash_attn_varlen_func(*ragged, p),
        lambda p: fa2.flash_attn_varlen_qkvpacked_func(packed[0], ragged[3], 4, p),
        lambda p: fa2.flash_attn_varlen_kvpacked_func(q[0], kv[0], *ragged[3:], p),
        lambda p: fa2_interface._flash_attn_forward(
            q, k, v, p, 0.1, True, -1, -1, 0.0, None, False
        ),
        lambda p: fa2_interface._flash_attn_varlen_forward(*ragged, p, 0.1, True),
    ]
    for call in calls:
        call(0.0)
        with pytest.raises(NotImplementedError, match=r"dropout_p: 0\.25 "):
            call(0.25)


def test_return_softmax_needs_dropout_and_is_refused(qkv, ragged):
    q, k, v = qkv
    with pytest.raises(NotImplementedError, match="return_softmax: True"):
        fa2_interface._flash_attn_forward(q, k, v, 0.0, 0.1, True, -1, -1, 0.0, None, True)
    with pytest.raises(NotImplementedError, match="zero_tensors: True"):
        fa2_interface._flash_attn_varlen_forward(*ragged, 0.0, 0.1, True, zero_tensors=True)


def test_qv_is_refused_everywhere(qkv, ragged):
    q, k, v = qkv
    for call in [
        lambda: fa3.flash_attn_func(q, k, v, qv=q),
        lambda: fa3.flash_attn_varlen_func(*ragged, qv=q[0]),
        lambda: fa3.flash_attn_with_kvcache(q, k, v, qv=q),
        lambda: fa3._flash_attn_forward(q, k, v, qv=q),
        lambda: fa4.flash_attn_func(q, k, v, q),
        lambda: fa4.flash_attn_varlen_func(q, k, v, q),
    ]:
        with pytest.raises(NotImplementedError, match=r"qv: a tensor of shape \("):
            call()


@pytest.mark.parametrize(
    "option, value",
    [
        ("gather_kv_indices", torch.zeros(1, dtype=torch.int32)),
        ("score_mod", max),
        ("score_mod_bwd", max),
        ("mask_mod", max),
        ("aux_tensors", [torch.zeros(1)]),
        ("aux_scalars", (1.0,)),
        ("block_sparse_tensors", ()),
    ],
)
def test_what_fa4_is_refused(qkv, option, value):
    for call in (fa4.flash_attn_func, fa4.flash_attn_varlen_func):
        with pytest.raises(NotImplementedError, match=f"^{option}: "):
            call(*qkv, **{option: value})


def test_fa4_block_sparse_backward_and_combine(qkv):
    with pytest.raises(NotImplementedError, match="^block_sparse_tensors_bwd: "):
        fa4.flash_attn_func(*qkv, block_sparse_tensors_bwd=())
    o, lse = torch.zeros(2, 1, 4, 2, 32), torch.zeros(2, 1, 4, 2)
    for option in ("seqused", "virtual_batch_idx"):
        with pytest.raises(NotImplementedError, match=f"^{option}: "):
            fa4_interface.flash_attn_combine(o, lse, **{option: torch.zeros(1)})


def test_fa4_hints_change_nothing(qkv):
    plain, _ = fa4.flash_attn_func(*qkv, causal=True)
    hinted, _ = fa4.flash_attn_func(
        *qkv, causal=True, num_splits=1, pack_gqa=True, deterministic=True, aux_tensors=[],
        aux_scalars=(), gather_bwd_recompute_p=True, gather_bwd_token_chunk=64,
    )
    assert torch.equal(plain, hinted)
    hinted, _ = fa4.flash_attn_varlen_func(
        *qkv, causal=True, scheduler_metadata=object(), disable_scheduler_metadata=True,
        min_seqlen_k=4,
    )
    assert torch.equal(plain, hinted)


@pytest.mark.parametrize("pair", [(-1, 4), (4, -1), (None, -1), (-2, None)])
def test_fa4_shifted_windows_are_refused(qkv, pair):
    with pytest.raises(NotImplementedError, match="window_size: .* None for an edge"):
        fa4.flash_attn_func(*qkv, window_size=pair)


def test_fa4_causal_with_a_negative_left_edge(qkv):
    with pytest.raises(NotImplementedError, match="window_size"):
        fa4.flash_attn_func(*qkv, causal=True, window_size=(-1, 0))
    both, _ = fa4.flash_attn_func(*qkv, causal=True, window_size=(-1, -1))
    assert torch.equal(both, fa4.flash_attn_func(*qkv, causal=True)[0])


@pytest.mark.parametrize("pair", [3, (1,), (1, 2, 3)])
def test_windows_that_are_no_pair(qkv, pair):
    for call in (fa2.flash_attn_func, fa3.flash_attn_func, fa4.flash_attn_func):
        with pytest.raises(ValueError, match="window_size: .* is no .left, right."):
            call(*qkv, window_size=pair)


def test_windows_that_are_no_whole_numbers(qkv):
    with pytest.raises(TypeError, match=r"window_size\[0\]: 1\.5"):
        fa2.flash_attn_func(*qkv, window_size=(1.5, 0))


def test_page_table_beside_cu_seqlens_k(qkv, ragged):
    with pytest.raises(ValueError, match="cu_seqlens_k is given beside page_table"):
        fa4.flash_attn_varlen_func(
            *qkv, cu_seqlens_k=ragged[3], page_table=torch.zeros(1, 1, dtype=torch.int32)
        )


def test_new_rows_without_their_companions(qkv):
    q, k, v = qkv
    for with_cache in (fa2.flash_attn_with_kvcache, fa3.flash_attn_with_kvcache):
        with pytest.raises(ValueError, match="^v: None"):
            with_cache(q, k, v, k=k[:, :1], cache_seqlens=1)
        with pytest.raises(ValueError, match="^cache_seqlens: None"):
            with_cache(q, k, v, k=k[:, :1], v=v[:, :1])
        with pytest.raises(ValueError, match="^rotary_cos is given, but k is None"):
            with_cache(q, k, v, rotary_cos=q, rotary_sin=q, cache_seqlens=1)
        with pytest.raises(ValueError, match="rotary_cos and rotary_sin"):
            with_cache(q, k, v, k[:, :1], v[:, :1], rotary_cos=q, cache_seqlens=1)


def test_errors_of_the_core_come_through(qkv):
    q, k, v = qkv
    with pytest.raises(ValueError, match="num_heads"):
        fa2.flash_attn_func(torch.cat([q, q[:, :, :1]], 2), k, v)
    with pytest.raises(NotImplementedError, match="v: dtype f32 differs from k: dtype f16"):
        fa2.flash_attn_func(q, k, v.float())
    with pytest.raises(TypeError, match="q: dtype"):
        fa2.flash_attn_func(q.int(), k.int(), v.int())


def test_forward_works_under_grad_mode_and_backward_says_no(qkv):
    q, k, v = qkv
    plain = fa2.flash_attn_func(q, k, v, causal=True)
    assert not plain.requires_grad
    q = q.clone().requires_grad_()
    for o in (
        fa2.flash_attn_func(q, k, v, causal=True),
        fa3.flash_attn_func(q, k, v, causal=True),
        fa4.flash_attn_func(q, k, v, causal=True)[0],
    ):
        assert torch.equal(o, plain) and o.requires_grad
        with pytest.raises(NotImplementedError, match="backward"):
            o.sum().backward()
    assert fa4.flash_attn_func(q, k, v)[1] is not None  # FlashAttention-4 returns lse then
    with torch.no_grad():
        assert not fa2.flash_attn_func(q, k, v).requires_grad


def test_a_sink_that_requires_grad(qkv):
    sink = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16, device=qkv[0].device))
    o, _ = fa4.flash_attn_func(*qkv, learnable_sink=sink)
    with pytest.raises(NotImplementedError, match="backward"):
        o.sum().backward()


def test_backwards_say_no():
    for function in (
        fa2_interface._flash_attn_backward,
        fa2_interface._wrapped_flash_attn_varlen_backward,
        fa3._flash_attn_backward,
    ):
        with pytest.raises(NotImplementedError, match="backward"):
            function()
