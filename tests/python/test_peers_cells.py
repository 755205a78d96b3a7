# SPDX-License-Identifier: Apache-2.0
"""bench/peers_cells.py: the cells of the suite, and that all sides compute the same attention."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))
import peers_cells  # noqa: E402
import tegula_ctypes  # noqa: E402
from peers_cells import OURS, SDPA, STANDARD, Cell  # noqa: E402

SHAPE = {
    "cell": "c", "group": "forward", "set": "s", "op": "forward", "dtype": "f32", "kv_dtype": "f32", "batch": 2,
    "heads_q": 4, "heads_kv": 4, "head_dim": 16, "head_dim_v": 16, "seqlen_q": 70, "seqlen_k": 70, "mask": "full",
    "layout": "dense", "features": "", "cache_sets": 1, "threads": 1, "limit": "fma", "flops": 1.0, "kv_bytes": 1.0,
}  # fmt: skip
CASES = {
    "full": {},
    "causal": {"mask": "causal"},
    "window": {"mask": "window", "window_left": 9},
    "ratio": {"heads_kv": 1, "mask": "causal"},
    "ratio-window": {"heads_kv": 2, "mask": "window", "window_left": 20},
    "ragged": {"layout": "ragged", "batch": 3, "lengths": [70, 1, 33], "heads_kv": 2},
    "ragged-causal": {"layout": "ragged", "batch": 3, "lengths": [70, 1, 33], "mask": "causal"},
    "decode": {"op": "decode", "seqlen_q": 1, "seqlen_k": 300, "heads_kv": 1, "cache_sets": 3},
    "chunk": {"seqlen_q": 5, "mask": "causal", "heads_kv": 2},
}


def cell_of(**changes):
    return Cell.of(SHAPE | changes)


@pytest.fixture(scope="session")
def library():
    return tegula_ctypes.Library(ROOT / "build/lib/libtegula.so")


def sides_of(cell, library, memory="bhsd"):
    operands = peers_cells.Operands(cell, torch, memory)
    return operands, {
        OURS: peers_cells.ours(cell, operands, library),
        SDPA: peers_cells.sdpa(cell, operands, torch),
        STANDARD: peers_cells.standard(cell, operands, torch),
    }


@pytest.mark.parametrize("memory", ("bhsd", "bshd"))
@pytest.mark.parametrize("dtype", peers_cells.DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_all_sides_agree(library, case, dtype, memory):
    cell = cell_of(**CASES[case], dtype=dtype, kv_dtype=dtype)
    operands, sides = sides_of(cell, library, memory)
    assert all(len(calls) == cell.cache_sets for calls in sides.values())
    differences = peers_cells.differences(cell, operands, torch, sides)
    assert differences.keys() == {SDPA, STANDARD}
    assert max(differences.values()) <= peers_cells.TOLERANCE[dtype], differences


@pytest.mark.parametrize("dtype", peers_cells.DTYPES)
@pytest.mark.parametrize("case", ("causal", "window", "ragged-causal", "decode"))
def test_one_key_too_many_is_noticed(library, case, dtype):
    cell = cell_of(**CASES[case], dtype=dtype, kv_dtype=dtype)
    operands, sides = sides_of(cell, library)
    wrong = {
        "causal": {"mask": "window", "window_left": cell.seqlen_k - 2},
        "window": {"window_left": cell.window_left + 1},
        "ragged-causal": {"mask": "full"},
        "decode": {"mask": "window", "window_left": cell.seqlen_k - 2},
    }[case]
    sides[OURS] = peers_cells.ours(dataclasses.replace(cell, **wrong), operands, library)
    differences = peers_cells.differences(cell, operands, torch, sides)
    assert min(differences.values()) > peers_cells.TOLERANCE[dtype], differences


def test_a_value_left_unwritten_is_noticed(library):
    cell = cell_of()
    operands, sides = sides_of(cell, library)
    sides[OURS] = [lambda: operands.o[:, :, :-1].zero_()]
    assert min(peers_cells.differences(cell, operands, torch, sides).values()) == float("inf")


def test_memory_is_shared_and_ordered(library):
    cell = cell_of(heads_kv=2, cache_sets=2)
    for memory, strides in (("bhsd", (70 * 16, 16)), ("bshd", (16, 4 * 16))):
        operands = peers_cells.Operands(cell, torch, memory)
        assert operands.q.shape == (2, 4, 70, 16) and operands.q.stride()[1:3] == strides
        assert len(operands.kv) == 2 and operands.kv[0][0].shape == (2, 2, 70, 16)
        data = torch.stack([operands.kv[0][0], operands.kv[1][0]])
        assert abs(data.mean()) < 0.05 and abs(data.std() - 1) < 0.05
        assert not torch.equal(data[0], data[1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    (
        ({}, ""),
        ({"op": "append"}, "no append"),
        ({"layout": "paged:16:permuted", "op": "decode"}, "no pages"),
        ({"kv_dtype": "e4m3", "dtype": "bf16"}, "no e4m3 caches"),
        ({"features": "softcap,sink"}, "no softcap,sink"),
        ({"layout": "ragged", "lengths": [3, 4]}, ""),
    ),
)
def test_what_pytorch_cannot_run_is_refused_by_name(changes, reason):
    assert cell_of(**changes).refusal() == reason


def test_the_programs_list_is_understood():
    cells = peers_cells.listed(ROOT / "build/tegula", 1)
    runnable = [cell for cell in cells if not cell.refusal()]
    assert len({cell.cell for cell in cells}) == len(cells)
    for wanted in ("forward-f32-d64-causal-s2048", "decode-bf16-ratio4-dense-dram", "small-bf16-s128"):
        assert wanted in {cell.cell for cell in runnable}
    for cell in runnable:
        assert cell.seqlen_k > 0 and cell.flops > 0 and cell.heads_q % cell.heads_kv == 0
        assert (cell.mask == "window") == (cell.window_left >= 0)
        assert (cell.layout == "ragged") == bool(cell.lengths)
        assert cell.op != "decode" or cell.residence in ("dram", "l3")
