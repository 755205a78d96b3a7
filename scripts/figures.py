#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes README's table of figures from bench/results/*.jsonl: for each machine the newest line of
each cell, between the markers `<!-- figures -->` and `<!-- /figures -->`. --check only compares."""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HIDDEN = ("f16",)  # close to bf16; all cells stand in the files
SHOWN = (2048,)  # of the forward cells
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"


def newest():
    """(machine's name, threads, cell) -> our line; later lines of a file replace earlier ones."""
    lines = {}
    for path in sorted((ROOT / "bench/results").glob("*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            shown = line["op"] != "forward" or line["seqlen_k"] in SHOWN
            if "peer" in line and shown and line["dtype"] not in HIDDEN:
                lines[line["machine"].split(";")[0], line["threads"], line["cell"]] = line
    return lines


def rate(line):
    if line["op"] == "decode":
        return f"{line['gbps']:.1f} GB/s"
    return f"{1000 * line['tflops']:.0f} GFLOP/s"


def table(lines):
    rows = ["| machine, threads | cell | time | rate | of the limit | standard attention / ours |",
            "|---|---|---|---|---|---|"]
    for (machine, threads, _), line in sorted(lines.items(), key=lambda item: (item[0][:2], item[1]["op"],
                                              item[1]["dtype"], item[1]["head_dim"], item[1]["mask"],
                                              item[1]["seqlen_k"], item[1]["layout"])):
        share = f"{100 * line['of_limit']:.0f} %" if "of_limit" in line else ""
        cell = (f"{line['op']} {line['dtype']}, {line['heads_q']}/{line['heads_kv']} heads of {line['head_dim']}, "
                f"{line['mask']}, {line['seqlen_k']} keys, {line['layout']}")
        rows.append(f"| {machine}, {threads} | {cell} | {line['ms']:.2f} ms | {rate(line)} | {share} | "
                    f"{line['ratio']:.1f} |")
    return "\n".join(rows)


def main():
    readme = ROOT / "README.md"
    text = readme.read_text()
    head, rest = text.split(BEGIN)
    made = head + BEGIN + "\n" + table(newest()) + "\n" + END + rest.split(END)[1]
    if "--check" in sys.argv:
        sys.exit("README.md: figures differ from bench/results; run scripts/figures.py" if made != text else 0)
    readme.write_text(made)


if __name__ == "__main__":
    main()
