# SPDX-License-Identifier: Apache-2.0
"""bench/peers_gpu.py without a GPU: the suite's cells, what is compared with what, and the lines."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))
import peers_gpu  # noqa: E402
import peers_gpu_cells as cells_of  # noqa: E402
from peers_gpu_cells import BASE, CUDNN, FA2, FA3, MATMUL, OURS  # noqa: E402

PROGRAM = ROOT / "build/tegula"


@pytest.fixture(scope="session")
def cells():
    return cells_of.listed(PROGRAM)


def test_the_grid_is_36_cells_of_16384_tokens(cells):
    grid = [cell for cell in cells.values() if cell.group == "grid"]
    assert len(grid) == 36
    assert {cell.batch * cell.seqlen_q for cell in grid} == {16384}
    assert {(cell.head_dim, cell.heads_q) for cell in grid} == {(64, 32), (128, 16), (256, 8)}
    causal = cells["forward-bf16-d128-causal-s8192"]
    assert causal.flops == 4 * 2 * 16 * 8192**2 * 128 / 2


def test_every_variant_has_its_plain_cell(cells):
    for cell in cells.values():
        base = cell.base()
        assert not base or (base in cells and not cells[base].features and not cells[base].lengths), cell.cell
    assert cells["forward-bf16-d128-causal-s2048-ragged"].base() == "forward-bf16-d128-causal-s2048"
    assert all(name in cells for name in cells_of.LIMITED)


def test_the_long_tail_has_the_even_batchs_tokens_and_pairs(cells):
    ragged, even = cells["forward-bf16-d128-full-s2048-ragged"], cells["forward-bf16-d128-full-s2048"]
    assert sum(ragged.lengths) == even.batch * even.seqlen_q
    assert ragged.flops == pytest.approx(even.flops, rel=1e-3)


def test_what_a_problem_gets(cells):
    window = cells["forward-bf16-d128-window-s16384-w1024"]
    assert window.options() == {"causal": 1, "softcap": 0.0, "window_left": 1023}
    assert cells["forward-bf16-d128-full-s4096-plain"].options()["unaligned"] == 7
    assert cells["forward-bf16-d128-full-s4096-softcap"].options()["softcap"] == 30.0


def measurement_of(cell, seconds):
    measurement = peers_gpu.Measurement(cell)
    measurement.seconds = {name: [value] * 10 for name, value in seconds.items()}
    measurement.peak_bytes = dict.fromkeys(seconds, 0)
    measurement.impl = "cuda_forward_sm90"
    return measurement


def test_lines_carry_the_best_peer_and_the_limit(cells):
    cell = cells["forward-bf16-d128-full-s8192"]
    measurement = measurement_of(cell, {OURS: 0.004, CUDNN: 0.005, FA2: 0.009, FA3: 0.0045, MATMUL: 0.0014})
    versions = {CUDNN: "cudnn", FA2: "fa2", FA3: "fa3"}
    common = {"machine": "GPU", "commit": "abc"}
    ours, *peers = peers_gpu.result_lines(measurement, versions, common, None)
    assert (ours["peer"], ours["ratio"], ours["ratio_cudnn"]) == ("fa3", pytest.approx(1.125), pytest.approx(1.25))
    assert ours["of_limit"] == pytest.approx(cell.flops / 0.004 / (2 * 8192**3 / 0.0014))
    assert [line["impl"] for line in peers] == ["cudnn", "fa2", "fa3"] and ours["rounds"] == 5
    json.dumps(ours)
    assert "1.125x" in peers_gpu.table([measurement], {cell.cell: None})
    assert "beside cuDNN: 1.250x" in peers_gpu.means([measurement])


def test_a_variant_is_held_against_its_base(cells):
    cell, base = cells["forward-bf16-d128-full-s2048-ragged"], cells["forward-bf16-d128-full-s2048"]
    measurement = measurement_of(cell, {OURS: 0.0011, BASE: 0.001})
    (line,) = peers_gpu.result_lines(measurement, {}, {"machine": "GPU", "commit": ""}, base)
    assert line["of_base"] == pytest.approx(1 / 1.1, rel=1e-3) and "peer" not in line


def test_peers_say_what_they_lack(cells):
    sink = cells["forward-bf16-d128-full-s4096-sink"]

    class Sink:
        sink = True

    for call in (lambda: cells_of.sdpa(sink, Sink, torch, CUDNN), lambda: cells_of.fa3(sink, Sink, object())):
        with pytest.raises(cells_of.Refused):
            call()
