#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cells of `tegula bench --suite cpu` that PyTorch can run, on the same memory in one process: ours, PyTorch's
scaled_dot_product_attention and standard attention (matmul, softmax, matmul), in interleaved rounds. --out appends
result lines (docs/measuring.md). Needs torch and a build of the library and the program, nothing else.

  make peers-venv
  build/venv-peers/bin/python bench/peers_cpu.py --out FILE.jsonl"""
import argparse
import fnmatch
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import interleaved
import peers_cells
import tegula_ctypes
from peers_cells import OURS, SDPA, STANDARD

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUITE = "cpu"
PROBE_SECONDS = 0.003
SLOW_MATMUL = 8.0  # times the time of fp32


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="2", metavar="N,...", help="counts of threads (default: %(default)s)")
    parser.add_argument("--filter", default="*", metavar="PATTERN,...", help="cells, such as 'decode-*,small-*'")
    parser.add_argument("--quick", action="store_true", help="two rounds of cells that last milliseconds: a trial")
    parser.add_argument("--rounds", type=int, metavar="N", help="kept rounds (default: 5)")
    parser.add_argument("--memory", choices=("bhsd", "bshd"), default="bhsd",
                        help="order of the tensors' dimensions in memory; the cells of bshd are named so "
                        "(default: %(default)s, which PyTorch prefers)")
    parser.add_argument("--out", metavar="FILE", help="append the result lines")
    parser.add_argument("--commit", default=commit(), help="written into the lines (default: git's)")
    parser.add_argument("--lib", default=ROOT / "build/lib/libtegula.so", metavar="FILE")
    parser.add_argument("--program", default=ROOT / "build/tegula", metavar="FILE")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.threads = [int(count) for count in options.threads.split(",")]
    return options


def commit():
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def distinct_cores(count):
    """CPUs of this process, one of each core first."""
    first, siblings, seen = [], [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        path = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = path.read_text() if path.exists() else str(cpu)
        (siblings if core in seen else first).append(cpu)
        seen.add(core)
    cpus = (first + siblings)[:count]
    if len(cpus) < count:
        sys.exit(f"--threads {count}: this process may use {len(cpus)} CPUs")
    return cpus


def environment(cpus):
    """What OpenMP, MKL, the allocator and our pool read once when they start. Memory is kept between calls and on
    huge pages: fresh small ones for every result took PyTorch up to a tenth of its time, standard attention half
    (S 2048, Zen 4)."""
    count = str(len(cpus))
    return {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "TEGULA_NUM_THREADS": count,
            "OMP_PROC_BIND": "true", "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus),
            "THP_MEM_ALLOC_ENABLE": "1", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}


def threads_of_process():
    return {int(name) for name in os.listdir("/proc/self/task")}


def pin_workers(library, torch, cpus):
    """OpenMP binds this thread to the first CPU and its own threads to the others; so are ours."""
    before = threads_of_process()
    q = torch.zeros(1, 64, 64 * len(cpus), 64)
    tegula_ctypes.Forward(library, q, q, q, torch.empty_like(q))()
    for cpu, worker in zip(cpus[1:], sorted(threads_of_process() - before)):
        os.sched_setaffinity(worker, {cpu})


def probes_of(torch, threads):
    """Rates of the machine. vector: arithmetic on a few KiB, which nothing but a slow core slows (a product of
    matrices varies by a third with what neighbours leave of the caches). read: from memory, for caches beyond L3."""
    small = torch.rand(threads << 15)
    result = torch.empty_like(small)
    vector = interleaved.Burst([lambda: torch.lgamma(small, out=result)], PROBE_SECONDS)
    memory = []

    def read():
        if not memory:
            memory.append(torch.ones(1 << 27))  # 512 MiB
        return 1 / interleaved.Burst([memory[0].sum], 0)()

    return {"vector": lambda: 1 / min(vector() for _ in range(3)), "read": read}


def slow_matmuls(torch):
    """Types whose products PyTorch forms without vectors here, so that standard attention would take minutes."""

    def seconds(dtype):
        a = torch.randn(256, 256).to(getattr(torch, dtype))
        burst = interleaved.Burst([lambda: torch.matmul(a, a)], PROBE_SECONDS)
        return min(burst() for _ in range(5))

    best = {name: seconds(dtype) for name, dtype in peers_cells.DTYPES.items()}
    return {name: best[name] / best["f32"] for name in best if best[name] > SLOW_MATMUL * best["f32"]}


class Measurement:
    """A cell, its operands' results and rounds."""

    def __init__(self, cell, options, with_standard=True):
        self.cell, self.options, self.with_standard = cell, options, with_standard
        self.rounds, self.impl, self.differences = [], "", {}
        self.failure = ""

    def run(self, torch, library, probes):
        cell = self.cell
        operands = peers_cells.Operands(cell, torch, self.options.memory)
        calls = {OURS: peers_cells.ours(cell, operands, library), SDPA: peers_cells.sdpa(cell, operands, torch)}
        if self.with_standard:
            calls[STANDARD] = peers_cells.standard(cell, operands, torch)
        self.impl = calls[OURS][0].implementation()
        self.differences = peers_cells.differences(cell, operands, torch, calls)
        allowed = peers_cells.TOLERANCE[cell.dtype]
        wrong = [f"{name} {error:.1e}" for name, error in self.differences.items() if not error <= allowed]
        if wrong:
            self.failure = f"results differ by more than {allowed:.0e}: {', '.join(wrong)}"
            return
        length = 0.005 if self.options.quick else 0.02
        sides = {name: interleaved.Burst(side, length) for name, side in calls.items()}
        beside = {name: probe for name, probe in probes.items() if name != "read" or cell.residence == "dram"}
        self.rounds = interleaved.measure(sides, beside, self.options.rounds, self.rounds)

    def settled(self):
        return not self.failure and len(interleaved.kept(self.rounds)) >= self.options.rounds


def result_lines(measurement, kept, torch_version, common):
    """A line for each side, ours first: it carries PyTorch's time over ours."""
    cell, medians = measurement.cell, interleaved.medians(kept)
    peers = {SDPA: f"pytorch {torch_version} sdpa", STANDARD: f"pytorch {torch_version} matmul"}
    lines = []
    for side in (OURS, SDPA, STANDARD):
        if side not in medians:
            continue
        seconds = medians[side]
        line = {"suite": SUITE, "cell": cell.cell, "op": cell.op, "device": "cpu", "machine": common["machine"],
                "impl": measurement.impl if side == OURS else peers[side]}
        for name in ("dtype", "head_dim", "head_dim_v", "heads_q", "heads_kv", "batch", "seqlen_q", "seqlen_k", "mask",
                     "layout", "features", "threads"):
            line[name] = getattr(cell, name)
        if measurement.options.memory != "bhsd":
            line["cell"] += "-" + measurement.options.memory
        if cell.residence:
            line["residence"] = cell.residence
        line |= {"rounds": len(kept), "rounds_dropped": len(measurement.rounds) - len(kept), "ms": seconds * 1e3,
                 "tflops": cell.flops / seconds / 1e12}
        if cell.op == "decode":
            line["gbps"] = cell.kv_bytes / seconds / 1e9
        line |= {name: common[name] for name in ("commit", "clocks") if common[name]}
        if side == OURS:
            line |= {"peer": peers[SDPA], "ratio": medians[SDPA] / seconds}
        lines.append(line)
    return lines


def clocks():
    """'2600 MHz' of the first CPU, or '' where the system does not tell."""
    for text in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = text.partition(":")
        if name.strip() == "cpu MHz":
            return f"{float(value):.0f} MHz"
    return ""


def time_text(seconds):
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def table(measurements):
    rows = [("cell", "threads", "ours", "rate", "sdpa", "sdpa/ours", "standard", "std/ours", "rounds", "difference")]
    for measurement in measurements:
        cell, kept = measurement.cell, interleaved.kept(measurement.rounds)
        if not kept:
            why = measurement.failure or ("no round kept" if measurement.rounds else "not measured")
            rows.append((cell.cell, str(cell.threads), why, *[""] * 7))
            continue
        medians = interleaved.medians(kept)
        rate = (f"{cell.kv_bytes / medians[OURS] / 1e9:.1f} GB/s" if cell.op == "decode"
                else f"{cell.flops / medians[OURS] / 1e9:.0f} GF/s")
        peers = []
        for side in (SDPA, STANDARD):
            seconds = medians.get(side)
            peers += [time_text(seconds), f"{seconds / medians[OURS]:.2f}x"] if seconds else ["-", "-"]
        rows.append((cell.cell, str(cell.threads), time_text(medians[OURS]), rate, *peers,
                     f"{len(kept)}/{len(measurement.rounds)}", f"{max(measurement.differences.values()):.0e}"))
    widths = [max(len(row[i]) for row in rows if i == 0 or row[3]) for i in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                               for i, (text, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def chosen(cells, options, threads):
    """Cells of as many threads that match, and by reason how many PyTorch cannot run."""
    taken, refused = [], {}
    for cell in cells:
        if cell.threads != threads or not any(fnmatch.fnmatchcase(cell.cell, pattern)
                                              for pattern in options.filter.split(",")):
            continue
        if cell.refusal():
            refused[cell.refusal()] = refused.get(cell.refusal(), 0) + 1
        elif not options.quick or (max(cell.seqlen_q, *cell.lengths, 0) <= 1024 and cell.residence != "dram"):
            taken.append(cell)
    return taken, refused


def measure_all(measurements, torch, library, probes):
    """Each cell once, then those again whose rounds turned out to be of a slow state."""
    for attempt in range(2):
        waiting = [m for m in measurements if not m.failure and not m.settled()]
        for number, measurement in enumerate(waiting, 1):
            measurement.run(torch, library, probes)
            note(f"{'again ' if attempt else ''}{number}/{len(waiting)} {measurement.cell.cell} "
                 f"{measurement.failure}")


def note(text):
    """Progress, for people who watch."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def run(options, threads, cpus):
    os.sched_setaffinity(0, cpus)
    library = tegula_ctypes.Library(options.lib)  # it and the program count CPUs: torch binds this thread to one
    cells, refused = chosen(peers_cells.listed(options.program, threads), options, threads)
    machine = peers_cells.machine(options.program, threads)
    import torch
    torch.set_num_threads(threads)
    if library.num_workers != threads:
        sys.exit(f"tegula has {library.num_workers} workers, wanted {threads}")
    common = {"machine": machine, "commit": options.commit, "clocks": clocks()}
    print(f"{machine}\nCPUs {cpus}, torch {torch.__version__}, {len(cells)} cells; left out: "
          + (", ".join(f"{count} ({reason})" for reason, count in refused.items()) or "none"), flush=True)
    with torch.inference_mode():
        slow = slow_matmuls(torch)
        for name, ratio in slow.items():
            print(f"no standard attention in {name}: its matmul takes {ratio:.0f} times as long as fp32's")
        measurements = [Measurement(cell, options, cell.dtype not in slow) for cell in cells]
        pin_workers(library, torch, cpus)
        probes = probes_of(torch, threads)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            measure_all(measurements, torch, library, probes)
        except KeyboardInterrupt:
            pass  # what is measured is worth a table and its lines
    note("")
    print(table(measurements))
    settled = [m for m in measurements if m.settled()]
    if options.out:
        with open(options.out, "a") as out:
            for measurement in settled:
                for line in result_lines(measurement, interleaved.kept(measurement.rounds), torch.__version__, common):
                    out.write(json.dumps(line, separators=(",", ":")) + "\n")
    if len(settled) < len(measurements):
        print(f"{len(measurements) - len(settled)} of {len(measurements)} cells failed or were not settled: "
              "no lines for them")
    return 0 if len(settled) == len(measurements) else 1


def main():
    begin = time.monotonic()
    options = parse(sys.argv[1:])
    if len(options.threads) > 1:  # a process for each count: thread pools read theirs once
        status = 0
        for threads in options.threads:
            command = [sys.executable, __file__, *sys.argv[1:], "--threads", str(threads)]
            status = max(status, subprocess.run(command).returncode)
        print(f"all: {time.monotonic() - begin:.0f} s")
        sys.exit(status)
    threads = options.threads[0]
    cpus = distinct_cores(threads)
    wanted = environment(cpus)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)
    status = run(options, threads, cpus)
    print(f"{time.monotonic() - begin:.0f} s")
    sys.exit(status)


if __name__ == "__main__":
    main()
