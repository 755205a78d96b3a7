# SPDX-License-Identifier: Apache-2.0
"""bench/tegula_ctypes.py against include/tegula/tegula.h, and calls through it."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))
import tegula_ctypes as binding  # noqa: E402

LIBRARY = ROOT / "build/lib/libtegula.so"


@pytest.fixture(scope="session")
def header(tmp_path_factory):
    """Every size, offset and value as the C compiler sees it: 'struct', 'struct.field', 'CONSTANT' -> numbers."""
    rows = [f'  row("{name}", {name}, 0);' for name in binding.CONSTANTS]
    for structure in binding.STRUCTURES:
        c_name = structure.c_name
        rows.append(f'  row("{c_name}", sizeof({c_name}), 0);')
        for field, _ in structure._fields_:
            size = f"sizeof((({c_name}*)0)->{field})"
            rows.append(f'  row("{c_name}.{field}", {size}, offsetof({c_name}, {field}));')
    folder = tmp_path_factory.mktemp("header")
    source = folder / "probe.c"
    source.write_text(
        "#include <stdio.h>\n#include <tegula/tegula.h>\n"
        "static void row(const char* name, size_t size, size_t offset) {\n"
        '  printf("%s %zu %zu\\n", name, size, offset);\n}\n'
        "int main(void) {\n" + "\n".join(rows) + "\n}\n"
    )
    compiler = next(name for name in ("cc", "gcc", "clang") if shutil.which(name))
    subprocess.run(
        [compiler, "-I", str(ROOT / "include"), str(source), "-o", str(folder / "probe")], check=True
    )
    lines = subprocess.run(
        [str(folder / "probe")], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {name: (int(size), int(offset)) for name, size, offset in map(str.split, lines)}


@pytest.mark.parametrize("structure", binding.STRUCTURES, ids=lambda s: s.c_name)
def test_structure_is_the_headers(header, structure):
    assert header[structure.c_name][0] == ctypes.sizeof(structure)
    for field, _ in structure._fields_:
        member = getattr(structure, field)
        assert header[f"{structure.c_name}.{field}"] == (member.size, member.offset), field


def test_constants_are_the_headers(header):
    assert {name: header[name][0] for name in binding.CONSTANTS} == binding.CONSTANTS


@pytest.fixture(scope="session")
def library():
    return binding.Library(LIBRARY)


def test_forward_is_attention(library):
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 33, heads, 16) for heads in (4, 2, 2))
    o = torch.full_like(q, torch.nan)
    forward = binding.Forward(library, q, k, v, o, causal=1, window_left=9)
    forward()
    ahead = torch.arange(33)[None, :] - torch.arange(33)[:, None]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).double() for x in (q, k, v)),
        attn_mask=(ahead <= 0) & (ahead >= -9),
        enable_gqa=True,
    ).transpose(1, 2)
    torch.testing.assert_close(o.double(), wanted, rtol=0, atol=1e-6)
    assert forward.implementation().startswith("cpu_")


def test_a_view_carries_its_strides_and_type():
    view = torch.zeros(2, 3, 5, 8, dtype=torch.bfloat16).transpose(1, 2)[:, 1:]
    tensor = binding.Tensor.of(view)
    assert tensor.data == view.data_ptr()
    assert list(tensor.shape)[:4] == [2, 4, 3, 8] and list(tensor.strides)[:4] == [120, 8, 40, 1]
    assert (tensor.type_code, tensor.type_bits, tensor.type_lanes, tensor.ndim) == (4, 16, 1, 4)


def test_failures_are_the_librarys_own_words(library):
    q = torch.zeros(1, 4, 3, 16)
    with pytest.raises(binding.Error, match="num_heads"):
        binding.Forward(library, q, q[:, :, :2], q[:, :, :2], torch.zeros_like(q))
    with pytest.raises(binding.Error, match="nonsense"):
        library.capability("nonsense")
    with pytest.raises(TypeError, match="no windowleft"):
        binding.Forward(library, q, q, q, torch.zeros_like(q), windowleft=3)
