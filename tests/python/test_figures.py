# SPDX-License-Identifier: Apache-2.0
"""scripts/figures.py: tables and pictures of made-up lines, and that the committed ones are those of bench/results."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402

MACHINE = "A CPU; class zen4, 2 of 2 CPUs; fp32 FMA 234.0 GFLOP/s"
README = "# Title\n\n<!-- figures -->\nold\n<!-- /figures -->\n\nEnd.\n"
GOLDEN = """# Title

<!-- figures -->
**A CPU** (zen4), 2 threads, PyTorch 2.13.0

| forward: type, head_dim, mask; S | 128 | 512 | 1024 | 2048 | 4096 |
|---|---|---|---|---|---|
| fp32, 64, full |  |  |  | 1.25 / 1.50, 90 % |  |
| bf16, 128, causal | 3.00 |  | 81 % |  |  |

| decode: cache type, where, order; query heads a kv head | 1 | 4 | 8 | 16 |
|---|---|---|---|---|
| e4m3, memory, permuted pages |  | 70 % |  |  |

![PyTorch's time over ours, A CPU](docs/figures/zen4-pytorch.svg)

![Share of the machine's limit, A CPU](docs/figures/zen4-limits.svg)

![Speed over one thread, A CPU](docs/figures/zen4-scaling.svg)
<!-- /figures -->

End.
"""


def line(cell, op="forward", impl="cpu_avx512", threads=2, **fields):
    return {"suite": "cpu", "cell": cell, "op": op, "machine": MACHINE, "impl": impl, "threads": threads} | fields


def compared(cell, ours, sdpa, standard=None):
    """What a run of bench/peers_cpu.py writes about a cell."""
    lines = [
        line(cell, ms=ours, peer="pytorch 2.13.0 sdpa", ratio=sdpa / ours),
        line(cell, ms=sdpa, impl="pytorch 2.13.0 sdpa"),
    ]
    return lines + ([line(cell, ms=standard, impl="pytorch 2.13.0 matmul")] if standard else [])


LINES = [
    {"suite": "another", "cell": "left out", "op": "decode", "machine": MACHINE, "impl": "x", "threads": 2},
    # an older run, whose ratio to standard attention must not stand beside the newer one's
    *compared("forward-bf16-d128-causal-s128", 1.0, 9.0, 9.0),
    *compared("forward-bf16-d128-causal-s128", 1.0, 3.0),
    *compared("forward-f32-d64-full-s2048", 2.0, 2.5, 3.0),
    line("forward-f32-d64-full-s2048", of_limit=0.8),
    line("forward-f32-d64-full-s2048", of_limit=0.9),
    line("forward-f32-d64-full-s2048", of_limit=0.1, threads=1),
    line("forward-bf16-d128-causal-s1024", of_limit=0.81),
    line("decode-e4m3-ratio4-permuted16-dram", op="decode", of_limit=0.7),
    line("limit-fma-t2", op="limit", tflops=0.2),
    *(line(f"scaling-forward-f32-t{n}", threads=n, tflops=n * 0.9 + 0.1) for n in (1, 2, 4)),
    *(line(f"scaling-forward-f32-t{n}", threads=n, tflops=float(n)) for n in (1, 2)),
]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "bench/results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "bench/results/a.jsonl").write_text("".join(json.dumps(x) + "\n" for x in LINES))
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def test_readme_shows_the_newest_lines(root):
    assert figures.main([], root) == 0
    assert (root / "README.md").read_text() == GOLDEN


def test_pictures_are_the_same_each_time_and_small(root):
    assert figures.main([], root) == 0
    folder = root / "docs/figures"
    first = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(first) == {"zen4-pytorch.svg", "zen4-limits.svg", "zen4-scaling.svg"}
    assert figures.main([], root) == 0
    assert first == {path.name: path.read_text() for path in folder.iterdir()}
    for text in first.values():
        assert len(text) < 100 * 1024 and "<dc:date>" not in text
    assert "bf16, head_dim 128" in first["zen4-pytorch.svg"]
    assert "e4m3 in memory, permuted pages, ratio 4" in first["zen4-limits.svg"]


@pytest.mark.parametrize(
    ("damage", "named"),
    (
        (lambda root: (root / "README.md").write_text(GOLDEN.replace("90 %", "91 %")), "README.md"),
        (lambda root: (root / "docs/figures/zen4-limits.svg").unlink(), "zen4-limits.svg"),
        (lambda root: (root / "docs/figures/left.svg").write_text("<svg/>"), "left.svg"),
        (lambda root: (root / "bench/results/b.jsonl").write_text(
            json.dumps(line("forward-f32-d64-full-s2048", of_limit=0.5))), "README.md, docs/figures/zen4-limits.svg"),
    ),
)  # fmt: skip
def test_check_names_what_differs(root, damage, named):
    assert figures.main([], root) == 0 and figures.main(["--check"], root) == 0
    damage(root)
    assert re.match(rf".*{named}: not what bench/results gives", figures.main(["--check"], root))


def test_text_is_checked_without_matplotlib(root, monkeypatch):
    monkeypatch.setattr(figures.importlib.util, "find_spec", lambda name: None)
    assert "its pictures are not" in figures.main([], root)
    assert figures.main(["--check"], root) == 0
    (root / "README.md").write_text(README)
    assert "README.md" in figures.main(["--check"], root)


def test_scaling_is_of_one_run_with_the_most_counts(root):
    (machine,) = figures.results(root / "bench/results")
    (run,) = machine.speedups().values()
    assert run == pytest.approx({1: 1.0, 2: 1.9, 4: 3.7})


def test_committed_figures_are_those_of_the_committed_lines():
    assert figures.main(["--check"]) == 0
