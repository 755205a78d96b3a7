# SPDX-License-Identifier: Apache-2.0
"""Arguments of every kind that is no attention: each is converted without loss, or refused by name."""

import numpy as np
import pytest
import tegula
import torch
from core_util import int32, tensor

INTEGERS = ("window_left", "window_right", "attention_chunk", "num_splits", "fixed_split")
ARRAYS = ("out", "lse_out", "sink", "alibi_slopes", "bias", "descale_q", "descale_k", "descale_v", "error_word")
INDICES = ("seqused_q", "seqused_k", "leftpad_k")


@pytest.fixture
def qkv(rng):
    return tuple(tensor(rng, 2, s, h, 32) for s, h in ((5, 4), (9, 2), (9, 2)))


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(qkv, name):
    expected = tegula.attention(*qkv, **{name: 3})
    for value in (np.int32(3), np.uint8(3), torch.tensor(3), np.array(3)):
        assert torch.equal(tegula.attention(*qkv, **{name: value}), expected)
    for value in (2.7, float("nan"), float("inf"), "3", None, object(), torch.tensor(2.7), np.float32(3)):
        with pytest.raises(TypeError, match=f"^{name}: .* is no integer"):
            tegula.attention(*qkv, **{name: value})
    with pytest.raises(ValueError, match=f"^{name}: {10**30} does not fit"):
        tegula.attention(*qkv, **{name: 10**30})


@pytest.mark.parametrize("name", ["softcap", "softmax_scale"])
def test_reals(qkv, name):
    expected = tegula.attention(*qkv, **{name: 2.0})
    for value in (2, np.float32(2), torch.tensor(2.0), np.array(2.0)):
        assert torch.equal(tegula.attention(*qkv, **{name: value}), expected)
    for value in ("2", object(), torch.zeros(2)):
        with pytest.raises(TypeError, match=f"^{name}: .* is no number"):
            tegula.attention(*qkv, **{name: value})
    for value in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match=f"^{name}: {value:g}"):
            tegula.attention(*qkv, **{name: value})


@pytest.mark.parametrize("value", [2.5, "5", torch.tensor([5, 6]), object()], ids=type)
def test_b17_max_seqlen_is_an_integer(qkv, value):
    with pytest.raises(TypeError, match="^max_seqlen_q: .* is no integer"):
        tegula.attention_varlen(*qkv, max_seqlen_q=value)
    with pytest.raises(TypeError, match="^seqlen_new: .* is no integer"):
        tegula.attention_with_cache(*qkv, [3, 4], seqlen_new=value)


@pytest.mark.parametrize("convert", [lambda x: x, torch.Tensor.numpy], ids=["torch", "numpy"])
def test_what_is_no_array(qkv, convert):
    arrays = [convert(x) for x in qkv]
    for value in (object(), "abc", [1.0], 0.5):
        for name in ARRAYS:
            with pytest.raises(TypeError, match=f"^{name}: {type(value).__name__} is no array"):
                tegula.attention(*arrays, **{name: value})
        for i, name in enumerate("qkv"):
            with pytest.raises(TypeError, match=f"^{name}: {type(value).__name__} is no array"):
                tegula.attention(*(value if i == j else x for j, x in enumerate(arrays)))
    for value in (object(), "abc", [3.5, 4], [[1], [2, 3]], [True, False], {1: 2}):
        for name in INDICES:
            with pytest.raises(TypeError, match=f"^{name}: .* where integers are taken"):
                tegula.attention(*arrays, **{name: value})
    with pytest.raises(TypeError, match="^k_cache: list is no array"):
        tegula.append_kv(arrays[1], arrays[2], [], arrays[2], [0, 0])
    with pytest.raises(TypeError, match="^o_partial: list is no array"):
        tegula.combine([], arrays[0])
    with pytest.raises(TypeError, match="^lse_partial: object is no array"):
        tegula.combine(arrays[0], object())
    with pytest.raises(ValueError, match=r"^rotary_style: \[\] is neither"):
        tegula.append_kv(arrays[1], arrays[2], arrays[1], arrays[2], [0, 0], rotary_style=[])


def test_b16_index_arrays_of_other_frameworks(qkv):
    expected = tegula.attention(*qkv, seqused_k=int32([3, 7]))
    for dtype in (np.int32, np.int64):
        for index in (np.array([3, 7], dtype), torch.from_numpy(np.array([3, 7], dtype)), np.array([7, 3], dtype)[::-1]):
            assert torch.equal(tegula.attention(*qkv, seqused_k=index), expected)
            o = tegula.attention(*(x.numpy() for x in qkv), seqused_k=index)
            np.testing.assert_array_equal(o, expected.numpy())
    for index in (np.array([3.0, 7.0]), torch.tensor([3.0, 7.0])):
        for arrays in (qkv, [x.numpy() for x in qkv]):
            with pytest.raises(TypeError, match="^seqused_k: "):
                tegula.attention(*arrays, seqused_k=index)


def test_b16_int64_is_never_cut_to_32_bits(qkv, rng):
    """2^32 + 4 in 32 bits would be 4, a length that fits."""
    for value in (2**32 + 4, -(2**32) + 4):
        for index in ([3, value], np.array([3, value]), torch.tensor([3, value])):
            for arrays in (qkv, [x.numpy() for x in qkv]):
                with pytest.raises(ValueError, match="^seqused_k: "):
                    tegula.attention(*arrays, seqused_k=index)
    with pytest.raises((TypeError, ValueError), match="^seqused_k: "):
        tegula.attention(*qkv, seqused_k=[3, 2**70])
    # An entry that nobody reads may be anything, in 64 bits too.
    cache = tensor(rng, 4, 4, 2, 32)
    tables = [torch.tensor([[2, last], [1, 3]]) for last in (0, 2**40, -(2**40))]
    results = [tegula.attention_with_cache(qkv[0], cache, cache, [4, 8], page_table=table) for table in tables]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    with pytest.raises(ValueError, match="^page_table: "):
        tegula.attention_with_cache(qkv[0], cache, cache, [5, 8], page_table=tables[1])


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_ranks(qkv, rng, framework):
    def make(*shape):
        x = tensor(rng, *shape)
        return x if framework == "torch" else x.numpy()

    q, k, v = (make(*x.shape) for x in qkv)
    for rank in (1, 2, 5):
        shape = (2,) * rank
        for return_lse in (False, True):
            with pytest.raises(ValueError, match=f"^q: rank {rank} is not 4"):
                tegula.attention(make(*shape), k, v, return_lse=return_lse)
        with pytest.raises(ValueError, match=f"^k: rank {rank} is not 4"):
            tegula.attention(q, make(*shape), v)
        with pytest.raises(ValueError, match=f"^v: rank {rank} "):
            tegula.attention(q, k, make(*shape))
    for rank in (6, 9, 20):
        for i, name in enumerate("qkv"):
            with pytest.raises(ValueError, match=f"^{name}: {rank} dimensions are more than 5"):
                tegula.attention(*(make(*(1,) * rank) if i == j else x for j, x in enumerate((q, k, v))))
    with pytest.raises(ValueError, match="^cu_seqlens_q: .*rank is 3"):
        tegula.attention(q[0], k, v)


def test_rank_zero(qkv):
    q, k, v = qkv
    one = torch.tensor(1.0)
    for arguments, name in (((one, k, v), "q"), ((q, one, v), "k"), ((q, k, one), "v")):
        with pytest.raises(ValueError, match=f"^{name}: rank 0 "):
            tegula.attention(*arguments)
    for index in (3, torch.tensor(3), np.int64(3), np.array(3, np.int32)):
        for arrays in (qkv, [x.numpy() for x in qkv]):
            with pytest.raises(ValueError, match="^seqused_k: rank 0 is not 1"):
                tegula.attention(*arrays, seqused_k=index)


def test_sizes_of_zero(qkv):
    q, k, v = qkv
    for arrays in (qkv, [x.numpy() for x in qkv]):
        q, k, v = arrays
        for a, b, c in ((q[:0], k[:0], v[:0]), (q[:, :0], k, v), (q[:, :0], k[:, :0], v[:, :0])):
            o, lse = tegula.attention(a, b, c, return_lse=True)
            assert tuple(o.shape) == tuple(a.shape) and tuple(lse.shape) == (a.shape[0], 4, a.shape[1])
        for a, b, c, name in ((q[:, :, :0], k[:, :, :0], v[:, :, :0], "num_heads_q"), (q, k[:, :, :0], v[:, :, :0], "num_heads_kv"),
                              (q[..., :0], k[..., :0], v, "head_dim"), (q, k, v[..., :0], "head_dim_v")):  # fmt: skip
            with pytest.raises(ValueError, match=f"^{name}: 0 is not within 1"):
                tegula.attention(a, b, c)


def test_strides_of_numpy(qkv):
    q, k, v = (x.numpy() for x in qkv)
    for i, name in enumerate("qkv"):
        for axis in range(4):
            arrays = [np.flip(x, axis) if i == j else x for j, x in enumerate((q, k, v))]
            with pytest.raises(ValueError, match=rf"^{name}: strides\[{axis}\] -\d+ is less than 0"):
                tegula.attention(*arrays)
    wide = np.repeat(k, 2, axis=-1)[..., ::2]
    with pytest.raises(ValueError, match=r"^k: strides\[3\] 2 is not 1"):
        tegula.attention(q, wide, v)
    bytes_ = np.zeros(q.nbytes + 1, np.uint8)
    shifted = np.ndarray(q.shape, np.float32, bytes_, 1)
    with pytest.raises(ValueError, match="^q: the address is .* 4 bytes"):
        tegula.attention(shifted, k, v)
    records = np.zeros(q.shape[:-1], [("a", np.uint8, 2), ("b", np.float32, 32)])["b"]
    with pytest.raises(ValueError, match="^q: stride .* is no multiple of the element's 4"):
        tegula.attention(records, k, v)


def test_outputs_that_do_not_fit(qkv):
    q, k, v = qkv
    empty = torch.empty
    refused = [
        ({"out": empty(2, 5, 4, 16)}, ValueError, "^o: head_dim_v 16 differs from v: head_dim_v 32"),
        ({"out": empty(2, 6, 4, 32)}, ValueError, "^o: .* 6 differs from .* 5"),
        ({"out": empty(5, 4, 32)}, ValueError, "^o: rank 3 is not 4"),
        ({"out": empty(2, 5, 4, 64)[..., ::2]}, ValueError, r"^o: strides\[3\] 2 is not 1"),
        ({"out": empty(2, 5, 4, 32, dtype=torch.float64)}, TypeError, "^o: dtype float64"),
        ({"out": empty(2, 5, 4, 32, dtype=torch.int32)}, TypeError, "^o: dtype i32"),
        ({"out": empty(2, 5, 4, 32, dtype=torch.float8_e5m2)}, TypeError, "^o: dtype e5m2"),
        ({"lse_out": empty(2, 5, 4)}, ValueError, "^lse: .* 5 differs from .* 4"),
        ({"lse_out": empty(2, 4, 5, dtype=torch.half)}, TypeError, "^lse: dtype f16 is not f32"),
        ({"out_dtype": "e4m3"}, TypeError, "^o: dtype e4m3"),
    ]
    for options, kind, text in refused:
        with pytest.raises(kind, match=text):
            tegula.attention(q, k, v, **options)
    same = [tensor(np.random.default_rng(1), 2, 5, 2, 32) for _ in "qkv"]
    for i, name in enumerate("qkv"):
        with pytest.raises(ValueError, match=f"^o: has the address of {name}"):
            tegula.attention(*same, out=same[i])
    out = torch.empty(2, 5, 4, 32)
    with pytest.raises(ValueError, match="^lse: has the address of o"):
        tegula.attention(q, k, v, out=out, lse_out=out.view(-1)[:40].view(2, 4, 5))
    frozen = np.zeros((2, 4, 5), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="^lse_out: the array is read-only"):
        tegula.attention(q.numpy(), k.numpy(), v.numpy(), lse_out=frozen)
    assert not frozen.any()


def test_tensors_without_memory_to_share(qkv):
    q, k, v = qkv
    for bad in (q.to_sparse(), q.to("meta")):
        with pytest.raises(TypeError, match="^q: [^\n]+$"):  # one line, although PyTorch's has its stack
            tegula.attention(bad, k, v)
    with pytest.raises(TypeError, match="^q: a masked array"):
        tegula.attention(np.ma.array(q.numpy()), k.numpy(), v.numpy())
    with pytest.raises(TypeError, match="^q: .*other byte order"):
        tegula.attention(q.numpy().astype(">f4"), k.numpy(), v.numpy())


def test_b15_pairs(rng):
    """A length, head count, batch or dim that differs in one operand is named with both values."""
    shape = {"q": [2, 5, 4, 32], "k": [2, 9, 2, 32], "v": [2, 9, 2, 32]}
    other = {0: 3, 1: 11, 2: 3, 3: 48}
    for name, axis in (("q", 0), ("q", 2), ("q", 3), ("k", 0), ("k", 1), ("k", 2), ("k", 3), ("v", 0), ("v", 1), ("v", 2)):
        shapes = {key: list(value) for key, value in shape.items()}
        shapes[name][axis] = other[axis]
        with pytest.raises(ValueError) as error:
            tegula.attention(*(tensor(rng, *shapes[key]) for key in "qkv"))
        text = str(error.value)
        kept = {shape[key][axis] for key in "qkv"}
        assert str(other[axis]) in text and any(str(size) in text.replace(str(other[axis]), "") for size in kept), text
    q, k, v = (tensor(rng, *shape[key]) for key in "qkv")
    for options, sizes in (
        ({"seqused_k": [1, 2, 3]}, "3 2"), ({"seqused_q": [1]}, "1 2"), ({"leftpad_k": [0, 0, 0]}, "3 2"),
        ({"seqused_k": [3, 10]}, "10 9"), ({"seqused_q": [6, 1]}, "6 5"), ({"sink": torch.zeros(2)}, "2 4"),
        ({"alibi_slopes": torch.zeros(3, 4)}, "3 2"), ({"bias": torch.zeros(2, 4, 5, 8)}, "8 9"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            tegula.attention(q, k, v, **options)
        assert str(error.value).startswith(next(iter(options))), str(error.value)
        assert all(size in str(error.value) for size in sizes.split()), str(error.value)


class Foreign:
    """An array of a framework that tegula knows nothing of: DLPack and a shape, no `empty` beside it."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_another_framework(qkv):
    arrays = [x.numpy() for x in qkv]
    expected = tegula.attention(*arrays)
    foreign = [Foreign(x) for x in arrays]
    with pytest.raises(TypeError, match="^q: Foreign has no `empty` in its module.*out="):
        tegula.attention(*foreign)
    room = Foreign(np.empty_like(expected))
    assert tegula.attention(*foreign, out=room) is room
    np.testing.assert_array_equal(room.array, expected)
    assert tegula.attention(*foreign, out=room, seqused_k=np.array([9, 9])) is room
    frozen = np.zeros_like(expected)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, TypeError), match="^out: "):
        tegula.attention(*foreign, out=Foreign(frozen))
    assert not frozen.any()
