# SPDX-License-Identifier: Apache-2.0
"""bench/peers_cpu.py: its lines, its choice of cells, and a run from outside."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_peers_cells import cell_of

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))
import interleaved  # noqa: E402
import peers_cpu  # noqa: E402
from peers_cells import OURS, SDPA, STANDARD  # noqa: E402


SECONDS = {STANDARD: 2.0, SDPA: 1.0, OURS: 0.5}  # in the order of some round


def measurement_of(cell, memory="bhsd", seconds=SECONDS):
    measurement = peers_cpu.Measurement(cell, SimpleNamespace(memory=memory, rounds=3))
    measurement.impl, measurement.differences = "cpu_avx2", {SDPA: 1e-6}
    measurement.rounds = [interleaved.Round(seconds, {}, {})] * 3
    return measurement


def lines_of(cell, memory="bhsd"):
    measurement = measurement_of(cell, memory)
    kept = measurement.rounds
    common = {"machine": "A machine", "commit": "abc1234", "clocks": ""}
    return peers_cpu.result_lines(measurement, kept, "2.13.0+cpu", common)


def test_lines_are_those_of_measuring_md():
    cell = cell_of(op="decode", residence="dram", flops=3e12, kv_bytes=2e9, threads=2)
    ours, sdpa, standard = lines_of(cell)
    wanted = {
        "suite": "cpu", "cell": "c", "op": "decode", "machine": "A machine", "impl": "cpu_avx2", "threads": 2,
        "residence": "dram", "rounds": 3, "rounds_dropped": 0, "ms": 500.0, "tflops": 6.0, "gbps": 4.0, "commit": "abc1234",
        "peer": "pytorch 2.13.0+cpu sdpa", "ratio": 2.0,
    }  # fmt: skip
    assert wanted.items() <= ours.items() and "clocks" not in ours
    assert (sdpa["impl"], sdpa["ms"], sdpa["gbps"]) == ("pytorch 2.13.0+cpu sdpa", 1000.0, 2.0)
    assert (standard["impl"], standard["ms"]) == ("pytorch 2.13.0+cpu matmul", 2000.0)
    assert "ratio" not in sdpa and "peer" not in standard
    documented = set(re.findall(r"\w+", "".join(
        row.split("|")[1] for row in (ROOT / "docs/measuring.md").read_text().splitlines() if row.startswith("| "))))  # fmt: skip
    assert ours.keys() <= documented
    assert "gbps" not in lines_of(cell_of())[0] and "residence" not in lines_of(cell_of())[0]
    assert lines_of(cell_of(), "bshd")[0]["cell"] == "c-bshd"


def test_cells_are_chosen_by_threads_filter_and_what_pytorch_can():
    def names(pattern, threads=1, quick=False):
        cells = [
            cell_of(cell="a-long", seqlen_q=4096),
            cell_of(cell="a-short"),
            cell_of(cell="b-two", threads=2),
            cell_of(cell="b-paged", layout="paged:16", op="decode"),
        ]
        taken, refused = peers_cpu.chosen(cells, SimpleNamespace(filter=pattern, quick=quick), threads)
        return [cell.cell for cell in taken], refused

    assert names("*") == (["a-long", "a-short"], {"no pages": 1})
    assert names("*", threads=2) == (["b-two"], {})
    assert names("b-*,*-short") == (["a-short"], {"no pages": 1})
    assert names("a-*", quick=True) == (["a-short"], {})


def test_a_cell_with_wrong_results_is_not_timed():
    measurement = peers_cpu.Measurement(cell_of(), SimpleNamespace(memory="bhsd", quick=True, rounds=1))
    measurement.failure = "results differ"
    assert not measurement.settled()
    assert "results differ" in peers_cpu.table([measurement])


def test_table_has_a_row_for_each_cell():
    short = {OURS: 5e-6, SDPA: 1e-5}
    rows = peers_cpu.table(
        [measurement_of(cell_of(flops=1e9)), measurement_of(cell_of(cell="short"), seconds=short)]
    ).splitlines()
    assert rows[1].split() == "c 1 500.00 ms 2 GF/s 1000.00 ms 2.00x 2000.00 ms 4.00x 3/3 1e-06".split()
    assert rows[2].split() == "short 1 5.0 us 0 GF/s 10.0 us 2.00x - - 3/3 1e-06".split()


def test_threads_get_cpus_of_their_own():
    environment = peers_cpu.environment([3, 5])
    assert environment["OMP_PLACES"] == "{3},{5}" and environment["TEGULA_NUM_THREADS"] == "2"
    assert peers_cpu.distinct_cores(1)
    with pytest.raises(SystemExit, match="may use"):
        peers_cpu.distinct_cores(100000)


def test_program_measures_a_cell(tmp_path):
    out = tmp_path / "lines.jsonl"
    run = subprocess.run(
        [sys.executable, str(ROOT / "bench/peers_cpu.py"), "--threads", "1", "--filter", "small-f32-s16", "--rounds",
         "1", "--quick", "--out", str(out)], capture_output=True, text=True)  # fmt: skip
    assert "Traceback" not in run.stderr and run.returncode in (0, 1), run.stderr
    assert re.search(r"^small-f32-s16 +1 ", run.stdout, re.MULTILINE), run.stdout
    # On a busy machine no round may be fit; then there are no lines and the status says so.
    assert (run.returncode == 0) == (len(out.read_text().splitlines()) == 3)
