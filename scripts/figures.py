#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes README's figures, between the markers `<!-- figures -->` and `<!-- /figures -->`, and the pictures of
docs/figures/ from the newest lines of bench/results/*.jsonl. --check writes nothing and fails where they differ.
Pictures need the matplotlib of bench/requirements-peers.txt; without it only the text is compared."""
import importlib.util
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
TABLE_THREADS = 2  # the bars are judged on two
DTYPES = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "e4m3": "e4m3"}
SEQLENS = (128, 512, 1024, 2048, 4096)
RATIOS = (1, 4, 8, 16)
PLACES = {"dram": "memory", "l3": "L3"}
ORDERS = {"dense": "contiguous", "permuted16": "permuted pages"}


class Machine:
    """The newest results of a machine class on TABLE_THREADS threads, and its scaling."""

    def __init__(self, key, title):
        self.key, self.title = key, title
        self.limits = {}  # cell -> our line of tegula bench
        self.sdpa = {}  # cell -> our line of bench/peers_cpu.py, whose ratio is to PyTorch's attention
        self.standard = {}  # cell -> ratio to standard attention in the same run
        self.scaling = {}  # cell without its count -> {threads: rate}
        self.torch = ""

    def add(self, line):
        cell = line["cell"]
        if cell.startswith("scaling-"):
            self.add_scaling(line)
        elif line["threads"] != TABLE_THREADS or line["op"] == "limit":
            pass
        elif line["impl"].startswith("pytorch"):
            if line["impl"].endswith("matmul") and cell in self.sdpa:
                self.standard[cell] = line["ms"] / self.sdpa[cell]["ms"]
        elif line.get("peer", "").startswith("pytorch"):
            self.sdpa[cell] = line
            self.standard.pop(cell, None)  # of an earlier run
            self.torch = line["peer"].split()[1]
        else:
            self.limits[cell] = line

    def add_scaling(self, line):
        if "peer" in line or line["impl"].startswith("pytorch"):
            return
        base, threads = re.fullmatch(r"scaling-(.*)-t(\d+)", line["cell"]).groups()
        rate = line["gbps"] if line["op"] == "decode" else line["tflops"]
        if threads == "1":  # each run measures all counts, beginning with one thread
            self.scaling.setdefault(base, []).append({})
        if base in self.scaling:
            self.scaling[base][-1][int(threads)] = rate

    def speedups(self):
        """cell -> {threads: speed over one thread} of the newest run with the most counts."""
        best = {base: max(enumerate(runs), key=lambda run: (len(run[1]), run[0]))[1]
                for base, runs in self.scaling.items()}
        return {base: {threads: rate / run[1] for threads, rate in run.items()}
                for base, run in best.items() if len(run) > 1}


def results(folder):
    """Machines by class, from the lines of the suite."""
    machines = {}
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["suite"] != "cpu":
                continue
            name = line["machine"].split(";")[0]
            found = re.search(r"class (\w+)", line["machine"])
            key = found.group(1) if found else re.sub(r"\W+", "_", name).strip("_").lower()
            machine = machines.setdefault(key, Machine(key, ""))
            machine.title = name
            machine.add(line)
    return [machines[key] for key in sorted(machines)]


def entry(machine, cell):
    """'1.33 / 1.59, 82 %': ratio to SDPA, ratio to standard attention, share of the limit; what there is of it."""
    ratios = [f"{machine.sdpa[cell]['ratio']:.2f}"] if cell in machine.sdpa else []
    if cell in machine.standard:
        ratios.append(f"{machine.standard[cell]:.2f}")
    share = machine.limits.get(cell, {}).get("of_limit")
    parts = [" / ".join(ratios)] if ratios else []
    return ", ".join(parts + ([f"{100 * share:.0f} %"] if share else []))


def matrix(head, columns, rows):
    """A Markdown table of the rows that have an entry. rows: (name, entries)."""
    rows = [(name, entries) for name, entries in rows if any(entries)]
    if not rows:
        return []
    return ["", f"| {head} | " + " | ".join(map(str, columns)) + " |", "|---" * (len(columns) + 1) + "|",
            *(f"| {name} | " + " | ".join(entries) + " |" for name, entries in rows)]


def tables(machine):
    forward = [(f"{DTYPES[dtype]}, {dim}, {mask}",
                [entry(machine, f"forward-{dtype}-d{dim}-{mask}-s{seqlen}") for seqlen in SEQLENS])
               for dtype in ("f32", "bf16", "f16") for dim in (64, 128) for mask in ("full", "causal")]
    kinds = {"4 query heads a kv head, S 2048": "full-s2048-ratio4", "ragged, long tail": "full-s2048-ragged",
             "ragged, long tail, causal": "causal-s2048-ragged", "window 1024, S 4096": "window1024-s4096",
             "window 256, S 4096": "window256-s4096"}
    types = [(dtype, dim) for dtype in ("f32", "bf16", "f16") for dim in (64, 128)]
    others = [(name, [entry(machine, f"forward-{dtype}-d{dim}-{kind}") for dtype, dim in types])
              for name, kind in kinds.items()]
    decode = [(f"{DTYPES[dtype]}, {place}, {order}",
               [entry(machine, f"decode-{dtype}-ratio{ratio}-{order_key}-{place_key}") for ratio in RATIOS])
              for place_key, place in PLACES.items() for dtype in ("bf16", "f32", "e4m3")
              for order_key, order in ORDERS.items()]
    small = [(DTYPES[dtype], [entry(machine, f"small-{dtype}-s{seqlen}") for seqlen in (1, 16, 64, 128)])
             for dtype in ("f32", "bf16")]
    return (matrix("forward: type, head_dim, mask; S", SEQLENS, forward)
            + matrix("forward", [f"{DTYPES[dtype]}, {dim}" for dtype, dim in types], others)
            + matrix("decode: cache type, where, order; query heads a kv head", RATIOS, decode)
            + matrix("small calls, head_dim 64, 8 heads: type; S", (1, 16, 64, 128), small))


def pictures(machine):
    """Name of each picture that the machine's lines give, and what it shows."""
    shown = {}
    if machine.sdpa:
        shown["pytorch"] = "PyTorch's time over ours"
    if any(line.get("of_limit") for line in machine.limits.values()):
        shown["limits"] = "Share of the machine's limit"
    if machine.speedups():
        shown["scaling"] = "Speed over one thread"
    return {f"{machine.key}-{kind}.svg": (kind, text) for kind, text in shown.items()}


def section(machines):
    lines = []
    for machine in machines:
        torch = f", PyTorch {machine.torch}" if machine.torch else ""
        lines += ["", f"**{machine.title}** ({machine.key}), {TABLE_THREADS} threads{torch}"]
        lines += tables(machine)
        for name, (_, text) in pictures(machine).items():
            lines += ["", f"![{text}, {machine.title}](docs/figures/{name})"]
    return "\n".join(lines[1:])


def readme_with(text, made):
    head, rest = text.split(BEGIN)
    return head + BEGIN + "\n" + made + "\n" + END + rest.split(END)[1]


def drawn(machines):
    """File name -> SVG, or None without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import figures_draw
    return {name: figures_draw.draw(kind, machine, f"{machine.title}, {machine.key}: {text}")
            for machine in machines for name, (kind, text) in pictures(machine).items()}


def differences(root, text, svgs):
    """What --check complains about."""
    wrong = ["README.md"] if (root / "README.md").read_text() != text else []
    folder = root / "docs/figures"
    if svgs is not None:
        for name in sorted(svgs.keys() | {path.name for path in folder.glob("*.svg")}):
            there = (folder / name).read_text() if (folder / name).exists() else None
            if there != svgs.get(name):
                wrong.append(f"docs/figures/{name}")
    return wrong


def main(arguments, root=ROOT):
    machines = results(root / "bench/results")
    readme = root / "README.md"
    text = readme_with(readme.read_text(), section(machines))
    svgs = drawn(machines)
    if "--check" in arguments:
        if svgs is None:
            print("no matplotlib: pictures are not compared")
        wrong = differences(root, text, svgs)
        return f"{', '.join(wrong)}: not what bench/results gives; run scripts/figures.py" if wrong else 0
    readme.write_text(text)
    if svgs is None:
        return "no matplotlib: README's text is written, its pictures are not"
    folder = root / "docs/figures"
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.svg"):
        path.unlink()
    for name, svg in svgs.items():
        (folder / name).write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
