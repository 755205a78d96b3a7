# SPDX-License-Identifier: Apache-2.0
"""What is refused: the exception's type, and the text that names the argument and both values."""

import subprocess
import sys

import numpy as np
import pytest
import tegula
import torch
from core_util import int32, tensor


@pytest.fixture
def qkv(device, rng):
    return tuple(tensor(rng, 2, s, h, 32, device=device) for s, h in ((5, 4), (9, 2), (9, 2)))


def test_b15_shapes(rng):
    def t(*shape):
        return tensor(rng, *shape)

    cases = [
        ((t(1, 1, 3, 8), t(1, 5, 3, 8), t(1, 6, 3, 8)), ("5", "6")),
        ((t(1, 3, 1, 8), t(1, 1, 1, 8), t(1, 4_000_000, 1, 8)), ("1", "4000000")),
        ((t(1, 3, 4, 8), t(1, 5, 3, 8), t(1, 5, 3, 8)), ("3", "4")),
        ((t(1, 3, 4, 8), t(1, 5, 2, 8), t(1, 5, 4, 8)), ("2", "4")),
        ((t(2, 3, 4, 8), t(3, 5, 4, 8), t(3, 5, 4, 8)), ("2", "3")),
        ((t(1, 3, 4, 8), t(1, 5, 4, 16), t(1, 5, 4, 8)), ("8", "16")),
    ]
    for arguments, sizes in cases:
        with pytest.raises(ValueError) as error:
            tegula.attention(*arguments)
        assert all(size in str(error.value) for size in sizes), str(error.value)


def test_b15_cache_lengths(rng):
    q, cache = tensor(rng, 2, 1, 2, 32), tensor(rng, 4, 16, 2, 32)
    table = int32([[0, 1], [2, 3]])
    for used in ([5, 33], [5, -1]):
        with pytest.raises(ValueError, match="seqused_k.*" + str(used[1])):
            tegula.attention_with_cache(q, cache, cache, int32(used), page_table=table)
    with pytest.raises(ValueError, match="page_table.*7"):
        tegula.attention_with_cache(q, cache, cache, int32([5, 20]), page_table=int32([[0, 1], [7, 3]]))
    with pytest.raises(ValueError, match="seqused_k"):
        tegula.attention_with_cache(q, cache, cache, page_table=table)
    with pytest.raises(ValueError, match="page_table.*3"):
        tegula.attention_with_cache(q, cache, cache, int32([5, 20]), page_table=int32([[0, 1], [2, 3], [0, 1]]))


@pytest.mark.parametrize("types", [("float32", "float32", "bfloat16"), ("float16", "bfloat16", "bfloat16"), ("bfloat16", "float16", "float32")])
def test_b16_mixed_types(rng, types):
    q, k, v = (tensor(rng, 1, 4, 2, 32, dtype=dtype) for dtype in types)
    short = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    try:
        o = tegula.attention(q, k, v)
    except (TypeError, NotImplementedError) as error:
        named = [short[dtype] for dtype in types]
        assert sum(name in str(error) for name in set(named)) >= 2, str(error)
    else:  # a 16-bit cache under another query is in the contract
        import oracle

        assert types[1] == types[2]
        oracle.attention(q, k, v).check(o)


def test_b16_index_types(qkv):
    q, k, v = qkv
    expected = tegula.attention(q, k, v, seqused_k=torch.tensor([3, 7], dtype=torch.int32, device=q.device))
    for values in (torch.tensor([3, 7], device=q.device), torch.tensor([3, 0, 7, 0], device=q.device)[::2], [3, 7], np.array([3, 7]),
                   [np.int64(3), np.int32(7)], torch.tensor([3, 0, 7], dtype=torch.int32, device=q.device)[::2]):  # fmt: skip
        assert torch.equal(tegula.attention(q, k, v, seqused_k=values), expected)
    for dtype in (torch.float32, torch.int16, torch.float64):
        with pytest.raises(TypeError, match="seqused_k"):
            tegula.attention(q, k, v, seqused_k=torch.tensor([3, 7], device=q.device).to(dtype))


def test_arguments(qkv):
    q, k, v = qkv
    refused = [
        (dict(causal=True, window_right=3), ValueError, "window_right.*3"),
        (dict(window_left=-2), ValueError, "window_left.*-2"),
        (dict(softmax_scale=0.0), ValueError, "softmax_scale.*0.0"),
        (dict(softmax_scale=float("nan")), ValueError, "softmax_scale"),
        (dict(softcap=-1.0), ValueError, "softcap.*-1"),
        (dict(num_splits=2, fixed_split=64), ValueError, "num_splits.*fixed_split|fixed_split.*num_splits"),
        (dict(sink=torch.zeros(3, device=q.device)), ValueError, "sink.*3"),
        (dict(kv_dtype="int4"), TypeError, "kv_dtype.*int4"),
        (dict(kv_dtype="e4m3"), TypeError, "k.*kv_dtype"),
        (dict(out_dtype="float64"), TypeError, "out_dtype"),
        (dict(out=torch.empty_like(q), out_dtype="float16"), TypeError, "out_dtype"),
        (dict(out=torch.empty(2, 5, 4, 31, device=q.device)), ValueError, "31"),
        (dict(softcapp=1.0), TypeError, "softcapp"),
    ]
    for options, kind, text in refused:
        with pytest.raises(kind, match=text):
            tegula.attention(q, k, v, **options)


def test_aliasing(qkv):
    q, k, v = qkv
    with pytest.raises(ValueError, match="o.*q|out.*q"):
        tegula.attention(q, k, v, out=q)
    overlapping = torch.empty(1, 5, 4, 32, device=q.device).expand(2, -1, -1, -1)
    with pytest.raises(ValueError, match="overlap|stride"):
        tegula.attention(q, k, v, out=overlapping)


def test_last_dimension(qkv):
    q, k, v = qkv
    for i, name in enumerate("qkv"):
        bad = [x.transpose(1, 3).contiguous().transpose(1, 3) if j == i else x for j, x in enumerate((q, k, v))]
        with pytest.raises(ValueError, match=rf"{name}: .*stride"):
            tegula.attention(*bad)


def test_outputs_are_untouched_on_error(qkv):
    q, k, v = qkv
    out = torch.full_like(q, 3.0)
    with pytest.raises(ValueError):
        tegula.attention(q, k, v, seqused_k=torch.tensor([3, 70], dtype=torch.int32), out=out)
    assert bool((out == 3).all())


def test_read_only_outputs(rng):
    q, k, v = (rng.standard_normal((1, s, 2, 32), np.float32) for s in (5, 9, 9))
    out = np.empty_like(q)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: .*read-only"):
        tegula.attention(q, k, v, out=out)
    k.flags.writeable = False
    tegula.attention(q, k, v)  # inputs may be
    with pytest.raises(ValueError, match="k_cache: .*read-only"):
        tegula.append_kv(v, v, k, v, [0])


def test_no_arrays(qkv):
    q, k, v = qkv
    for arguments, name in ((([1.0], k, v), "q"), ((q, "k", v), "k"), ((q, k, object()), "v"), ((None, k, v), "q")):
        with pytest.raises(TypeError, match=f"{name}: "):
            tegula.attention(*arguments)


def test_numpy_types_that_are_refused(rng):
    q, k, v = (rng.standard_normal((1, s, 2, 32)) for s in (5, 9, 9))
    with pytest.raises(TypeError, match="f64|float64"):
        tegula.attention(q, k, v)
    with pytest.raises(TypeError, match="q: .*"):
        tegula.attention(*(x.astype(">f4") for x in (q, k, v)))
    with pytest.raises(TypeError, match="q: .*complex"):
        tegula.attention(*(x.astype(np.complex64) for x in (q, k, v)))


def test_requires_grad(qkv):
    q, k, v = qkv
    for i, name in enumerate("qkv"):
        arguments = [x.clone().requires_grad_() if i == j else x for j, x in enumerate((q, k, v))]
        with pytest.raises(RuntimeError, match=f"{name}: requires_grad"):
            tegula.attention(*arguments)
        with torch.no_grad():
            assert not tegula.attention(*arguments).requires_grad
        with torch.inference_mode():
            tegula.attention(*arguments)
    with pytest.raises(RuntimeError, match="sink: requires_grad"):
        tegula.attention(q, k, v, sink=torch.zeros(4, device=q.device, requires_grad=True))
    with pytest.raises(RuntimeError, match="o_partial: requires_grad"):
        tegula.combine(torch.zeros(1, 2, 5, 4, 32, requires_grad=True), torch.zeros(1, 2, 4, 5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_mixed_devices(rng):
    q, k = tensor(rng, 1, 4, 2, 64), tensor(rng, 1, 4, 2, 64, device="cuda")
    with pytest.raises(ValueError, match="cpu.*cuda|cuda.*cpu"):
        tegula.attention(q, k, k)
    with pytest.raises(ValueError, match="cpu.*cuda|cuda.*cpu"):
        tegula.attention(k, k, k, sink=torch.zeros(2))


def test_meta_tensors():
    """A device that the library does not know is refused, not read."""
    q = torch.empty(1, 4, 2, 64, device="meta")
    with pytest.raises((ValueError, TypeError, NotImplementedError, BufferError, RuntimeError)):
        tegula.attention(q, q, q)


def fresh(code: str, **environment: str) -> subprocess.CompletedProcess:
    import os

    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_b18_import_is_light():
    """No torch, no numpy, no CUDA at import, and the CPU serves where no GPU is visible."""
    done = fresh(
        "import sys, tegula; assert not {'torch', 'numpy', 'jax', 'inspect'} & set(sys.modules), sorted(sys.modules)\n"
        "maps = open('/proc/self/maps').read(); assert 'libcuda' not in maps and 'nvrtc' not in maps\n"
        "import numpy as np; x = np.ones((1, 2, 1, 8), np.float32); assert (tegula.attention(x, x, x) == 1).all()\n",
        CUDA_VISIBLE_DEVICES="",
    )
    assert done.returncode == 0, done.stderr


def test_b18_cuda_without_a_gpu():
    done = fresh("import tegula; tegula.capability('compute_capability', 0)", CUDA_VISIBLE_DEVICES="")
    if torch.cuda.is_available() and done.returncode == 0:
        pytest.skip("the driver ignores CUDA_VISIBLE_DEVICES")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and "cuda" in last.lower(), done.stderr


def test_program_module():
    done = subprocess.run([sys.executable, "-m", "tegula", "--help"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        assert done.stderr.startswith("tegula: this package was built without the command-line program")
        assert len(done.stderr.strip().splitlines()) == 1
    else:
        assert "verify" in done.stdout and "doctor" in done.stdout
