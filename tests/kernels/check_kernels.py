#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every kernel of `tegula pack` with NVRTC 12.9 and 13.0 and looks at what came out; needs no GPU.

A kernel fails if a compiler serialises wgmma (`tegula pack` refuses it), if a thread has more than 32 bytes of local
memory, if a loop with wgmma touches local memory (SASS), or if registers or memory are not those of the committed
table. Closes with "N passed, N failed", one for each kernel and compiler. --update writes the table.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs/design/kernels_sm90.md"
MOST_LOCAL = 32
COMPILERS = {"12.9": "cuda_nvrtc", "13.0": "cu13"}  # version -> folder of the Python package
HEAD = """# The kernels of a pack

Written by `tests/kernels/check_kernels.py --update` and compared by `scripts/test_all.sh kernels`: registers, and local
memory of a thread in bytes, as NVRTC 12.9 / 13.0 give them; shared memory of a block; seconds to compile with each on one
core of the machine that wrote the table (not compared).

| kernel | registers | local | shared | seconds |
|---|---|---|---|---|
"""

LABEL = re.compile(r"^(\.L_x_\d+):")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")


def flow_of(sass):
    """Names of the instructions, and for each the set of those that may run next."""
    names, labels, jumps, ends = [], {}, {}, set()
    for line in sass.splitlines():
        if label := LABEL.match(line):
            labels[label.group(1)] = len(names)
        elif instruction := INSTRUCTION.match(line):
            predicate, name, operands = instruction.groups()
            base = name.split(".")[0]
            target = TARGET.search(operands)
            if base in ("BRA", "JMP") and target:
                jumps[len(names)] = target.group(1)
            # A predicate among the operands (BRA.U UP0, BRA.DIV UR4) makes a branch conditional too.
            conditional = predicate or re.search(r"\bU?P\d|\bUR\d", operands)
            if base == "EXIT" and not predicate or base in ("BRA", "JMP") and not conditional:
                ends.add(len(names))
            names.append(name)
    following = [set() if at in ends else {at + 1} for at in range(len(names))]
    for at, label in jumps.items():
        following[at].add(labels[label])
    for after in following:
        after.discard(len(names))
    return names, following


def dominators_of(following):
    """Of each reachable instruction its immediate dominator (Cooper, Harvey and Kennedy)."""
    order, seen, stack = [], {0}, [(0, iter(sorted(following[0])))]
    while stack:
        at, rest = stack[-1]
        for after in rest:
            if after not in seen:
                seen.add(after)
                stack.append((after, iter(sorted(following[after]))))
                break
        else:
            order.append(at)
            stack.pop()
    rank = {at: number for number, at in enumerate(order)}
    before = {at: [] for at in order}
    for at in order:
        for after in following[at]:
            before[after].append(at)
    parent, changed = {0: 0}, True
    while changed:
        changed = False
        for at in reversed(order[:-1]):
            known = [b for b in before[at] if b in parent]
            new = known[0]
            for other in known[1:]:
                while new != other:
                    if rank[new] < rank[other]:
                        new = parent[new]
                    else:
                        other = parent[other]
            if parent.get(at) != new:
                parent[at], changed = new, True
    return parent, before


def loops_of(following):
    """The natural loops as sets of instructions, one a head. Cold code (waits) may lie far from its loop."""
    parent, before = dominators_of(following)
    depth = {0: 0}

    def depth_of(at):
        path = []
        while at not in depth:
            path.append(at)
            at = parent[at]
        for number, item in enumerate(reversed(path), depth[at] + 1):
            depth[item] = number
        return depth[path[0]] if path else depth[at]

    def dominates(first, second):
        while depth_of(second) > depth_of(first):
            second = parent[second]
        return first == second

    loops = {}
    for at in parent:
        for head in following[at]:
            if not dominates(head, at):
                continue
            body = loops.setdefault(head, {head})
            stack = [at]
            while stack:
                item = stack.pop()
                if item not in body:
                    body.add(item)
                    stack.extend(before[item])
    return list(loops.values())


def local_in_consumer_loops(sass):
    """Accesses of local memory inside the loops that hold wgmma, over keys and over tiles, and the number of loops."""
    names, following = flow_of(sass)
    consumers = [loop for loop in loops_of(following) if any(names[at].startswith("HGMMA") for at in loop)]
    touching = {at for loop in consumers for at in loop if names[at].split(".")[0] in ("LDL", "STL")}
    return len(touching), len(consumers)


def compile_all(program, nvrtc, folder):
    command = [program, "pack", "--nvrtc", nvrtc, "--json", "--keep", folder]
    run = subprocess.run(command, capture_output=True, text=True)
    document = json.loads(run.stdout) if run.stdout else {"error": run.stderr.strip()}
    if run.returncode != 0 or "error" in document:
        raise SystemExit(f"{' '.join(map(str, command))}: {document.get('error', run.returncode)}")
    return document["kernels"]


def faults(kernel, nvdisasm, folder):
    found = []
    if kernel["local_bytes"] > MOST_LOCAL:
        found.append(f"{kernel['local_bytes']} bytes of local memory a thread, at most {MOST_LOCAL} are taken")
    if kernel["local_bytes"] == 0 or not kernel["wgmma"]:
        return found  # nothing to find in SASS, which takes nvdisasm half a second
    cubin = folder / (kernel["file"] + ".cubin")
    sass = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    touching, loops = local_in_consumer_loops(sass)
    if touching:
        found.append(f"{touching} accesses of local memory inside a consumer's loop")
    if loops == 0:
        found.append("no loop with wgmma was found in its SASS")
    return found


def rows_of(results):
    """name -> the cells of its line in the table."""
    versions = list(COMPILERS)
    rows = {}
    for name in sorted(set().union(*(results[v] for v in versions))):
        each = [results[v].get(name) for v in versions]

        def cell(field, form="{}"):
            return " / ".join(form.format(kernel[field]) if kernel else "-" for kernel in each)

        shared = {kernel["shared_bytes"] for kernel in each if kernel}
        rows[name] = [cell("registers"), cell("local_bytes"), " / ".join(map(str, sorted(shared))), cell("seconds", "{:.1f}")]
    return rows


def read_table():
    rows = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else []:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "kernel":
            rows[cells[0]] = cells[1:]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=ROOT / "build/tegula", type=pathlib.Path)
    parser.add_argument("--venv", default=ROOT / "build/kernels-venv", type=pathlib.Path)
    parser.add_argument("--folder", default=ROOT / "build/kernels", type=pathlib.Path, help="for cubins and logs")
    parser.add_argument("--update", action="store_true", help="write the table")
    options = parser.parse_args()
    packages = next(options.venv.glob("lib/python3*/site-packages/nvidia"))
    nvdisasm = packages / "cu13/bin/nvdisasm"
    nvdisasm.chmod(0o755)

    results, passed, failed = {}, 0, 0
    committed = read_table()
    for version, package in COMPILERS.items():
        folder = options.folder / version
        kernels = compile_all(options.program, packages / package / "lib", folder)
        results[version] = {kernel["name"]: kernel for kernel in kernels}
        seconds = [kernel["seconds"] for kernel in kernels]
        print(f"NVRTC {version}: {len(kernels)} kernels, {sum(seconds):.1f} s, the slowest {max(seconds):.2f} s")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            found = list(pool.map(lambda kernel: faults(kernel, nvdisasm, folder), kernels))
        column = list(COMPILERS).index(version)
        for kernel, why in zip(kernels, found):
            row = committed.get(kernel["name"])
            if row is None and not options.update:
                why.append("is not in the committed table")
            elif row is not None and not options.update:
                for cell, field in zip(row, ("registers", "local_bytes", "shared_bytes")):
                    values = cell.split(" / ")
                    if str(kernel[field]) != values[min(column, len(values) - 1)]:
                        why.append(f"{field} {kernel[field]}, the committed table has {cell}")
            for text in why:
                print(f"  {version} {kernel['name']}: {text}")
            passed += not why
            failed += bool(why)
    rows = rows_of(results)
    if options.update:
        TABLE.write_text(HEAD + "".join(f"| {name} | {' | '.join(cells)} |\n" for name, cells in rows.items()))
    for name in sorted(set(committed) - set(rows)) if not options.update else []:
        print(f"  {name}: stands in the committed table, but no call launches it")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
