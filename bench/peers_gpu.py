#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cells of `tegula bench --suite h200-forward` beside cuDNN and FlashAttention-2 (through PyTorch),
FlashAttention-3 (fa3-fwd, unpacked on PYTHONPATH) and standard attention, on the same memory in one process. A round
is one burst of each side and one more of each in the other order (A B B A), each after a pause. --out appends result
lines (docs/measuring.md).

  PYTHONPATH=/where/fa3_fwd/is/unpacked python3 bench/peers_gpu.py --out FILE.jsonl"""
import argparse
import ctypes
import fnmatch
import json
import math
import statistics
import sys
import time
import warnings

import peers_gpu_cells as cells_of
import tegula_ctypes
from peers_cpu import ROOT, commit
from peers_gpu_cells import BASE, CUDNN, FA2, FA3, MATMUL, OURS, PEERS, STANDARD, SUITE

GRAPH_SEQLEN = 1024  # up to it everyone's calls run inside CUDA graphs: a Python call costs more than the kernel
GRAPH_CALLS = 16
MOST_CALLS = 50


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="*", metavar="PATTERN,...", help="cells, such as '*-d64-*,*-ragged'")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="balanced rounds (default: %(default)s)")
    parser.add_argument("--sides", default="ours,cudnn,fa2,fa3,base", metavar="NAME,...",
                        help="of ours, cudnn, fa2, fa3, standard, base (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0.15, metavar="S", help="before a burst (default: %(default)s)")
    parser.add_argument("--warm", type=float, default=0.025, metavar="S", help="of calls before it")
    parser.add_argument("--burst", type=float, default=0.15, metavar="S", help="of calls (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="S", help="begin no cell after so long")
    parser.add_argument("--out", metavar="FILE", help="append the result lines")
    parser.add_argument("--commit", default=commit(), help="written into the lines (default: git's)")
    parser.add_argument("--lib", default=ROOT / "build/lib/libtegula.so", metavar="FILE")
    parser.add_argument("--program", default=ROOT / "build/tegula", metavar="FILE")
    return parser.parse_args(arguments)


class Clocks:
    """'1755 MHz, 690 W' of the GPU by NVML; nothing without it."""

    def __init__(self, bus_id):
        self.device = ctypes.c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            found = (self.nvml.nvmlInit_v2() == 0 and
                     self.nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(self.device)) == 0)
        except (OSError, AttributeError):
            found = False
        self.readings = [] if found else None

    def read(self):
        if self.readings is None:
            return
        mhz, milliwatts = ctypes.c_uint(), ctypes.c_uint()
        self.nvml.nvmlDeviceGetClockInfo(self.device, 1, ctypes.byref(mhz))
        self.nvml.nvmlDeviceGetPowerUsage(self.device, ctypes.byref(milliwatts))
        self.readings.append((mhz.value, milliwatts.value / 1000))

    def text(self):
        """Of the readings since the last call."""
        if not self.readings:
            return ""
        mhz, watts = (statistics.median(values) for values in zip(*self.readings))
        self.readings.clear()
        return f"{mhz:.0f} MHz, {watts:.0f} W"


def bus_id(properties):
    return f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


class Burst:
    """Seconds of a call by events: after the pause, some calls that warm up, then those that count. The calls are
    made in turn (each has operands of its own); as_graph: GRAPH_CALLS of them replayed as one."""

    def __init__(self, calls, torch, options, as_graph):
        self.torch, self.options, self.calls, self.next, self.size = torch, options, calls, 0, 1
        if as_graph:
            for call in calls:
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for number in range(GRAPH_CALLS):
                    self.kept = calls[number % len(calls)]()
            self.graph, self.calls, self.size = graph, [graph.replay], GRAPH_CALLS
        self.time(2)
        self.estimate = self.time(1)

    def time(self, count):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            self.calls[self.next]()
            self.next = (self.next + 1) % len(self.calls)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / count

    def count(self, seconds, most):
        return max(1, min(most, math.ceil(seconds / self.estimate)))

    def __call__(self):
        time.sleep(self.options.pause)
        self.time(self.count(self.options.warm, 1000))
        self.estimate = self.time(self.count(self.options.burst, max(1, MOST_CALLS // self.size)))
        return self.estimate / self.size


def sides_of(cell, base, operands, base_operands, torch, library, module, options):
    """name -> calls, and name -> why it has none."""
    makers = {OURS: lambda: cells_of.ours(cell, operands, library),
              CUDNN: lambda: cells_of.sdpa(cell, operands, torch, CUDNN),
              FA2: lambda: cells_of.sdpa(cell, operands, torch, FA2),
              FA3: lambda: cells_of.fa3(cell, operands, module),
              STANDARD: lambda: cells_of.standard(cell, operands, torch)}
    if base is not None:
        makers[BASE] = lambda: cells_of.ours(base, base_operands, library)
    sides, refusals = {}, {}
    for name in options.sides.split(","):
        if name not in makers:
            continue
        try:
            calls = makers[name]()
            for call in calls:
                call()
            torch.cuda.synchronize()
            sides[name] = calls
        except cells_of.Refused as why:
            refusals[name] = str(why)
        except (RuntimeError, tegula_ctypes.Error) as why:  # what a peer, or ours, says of a problem it does not take
            refusals[name] = str(why).splitlines()[0]
    if cell.cell in cells_of.LIMITED:
        sides[MATMUL] = cells_of.matmul(torch, operands.lse.device)
    return sides, refusals


class Measurement:
    def __init__(self, cell):
        self.cell, self.seconds, self.refusals, self.differences = cell, {}, {}, {}
        self.impl = self.failure = self.clocks = ""
        self.peak_bytes = {}

    def run(self, base, torch, library, module, options, clocks):
        device = torch.device("cuda", torch.cuda.current_device())
        cell = self.cell
        operands = cells_of.Operands(cell, torch, device)
        base_operands = cells_of.Operands(base, torch, device) if base is not None else None
        sides, self.refusals = sides_of(cell, base, operands, base_operands, torch, library, module, options)
        if OURS not in sides:
            self.failure = f"ours: {self.refusals.get(OURS, 'not asked for')}"
            return
        self.impl = sides[OURS][0].implementation()
        self.differences = cells_of.differences(operands, torch, sides)
        allowed = cells_of.TOLERANCE[cell.dtype]
        wrong = [f"{name} {error:.1e}" for name, error in self.differences.items() if not error <= allowed]
        if wrong:
            self.failure = f"results differ by more than {allowed:.0e}: {', '.join(wrong)}"
            return
        for name, calls in sides.items():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            calls[0]()
            self.peak_bytes[name] = torch.cuda.max_memory_allocated() - before
        as_graph = max(cell.seqlen_q, *cell.lengths, 0) <= GRAPH_SEQLEN
        bursts = {name: Burst(calls, torch, options, as_graph and name != MATMUL) for name, calls in sides.items()}
        self.seconds = {name: [] for name in bursts}
        for _ in range(options.rounds):
            for name in (*bursts, *reversed(bursts)):
                self.seconds[name].append(bursts[name]())
                clocks.read()
        self.clocks = clocks.text()

    def median(self, name):
        return statistics.median(self.seconds[name])

    def ratio(self, name):
        """A peer's time over ours: the median of its rounds over that of ours."""
        return self.median(name) / self.median(OURS)

    def peers(self):
        return [name for name in PEERS if name in self.seconds]

    def best(self):
        return min(self.peers(), key=self.median, default=None)


def result_lines(measurement, versions, common, base):
    """A line for each side, ours first: it carries the best peer's time over ours, and a line of each peer stands
    behind it. A variant without peers carries its base."""
    cell, lines = measurement.cell, []
    for side in (OURS, *PEERS, STANDARD):
        if side not in measurement.seconds:
            continue
        seconds = measurement.median(side)
        line = {"suite": SUITE, "cell": cell.cell, "op": cell.op, "device": "cuda", "machine": common["machine"],
                "impl": measurement.impl if side == OURS else versions[side]}
        for name in ("dtype", "head_dim", "head_dim_v", "heads_q", "heads_kv", "batch", "seqlen_q", "seqlen_k", "mask",
                     "layout", "features", "residence"):
            line[name] = getattr(cell, name)
        line |= {"rounds": len(measurement.seconds[side]) // 2, "ms": seconds * 1e3,
                 "tflops": cell.flops / seconds / 1e12, "extra_bytes": measurement.peak_bytes[side]}
        if MATMUL in measurement.seconds:
            limit = 2 * cells_of.MATMUL_SIZE ** 3 / measurement.median(MATMUL) / 1e12
            line |= {"limit": limit, "of_limit": line["tflops"] / limit}
        line |= {name: value for name, value in (("commit", common["commit"]), ("clocks", measurement.clocks)) if value}
        if side == OURS and measurement.best():
            best = measurement.best()
            line |= {"peer": versions[best], "ratio": measurement.ratio(best)}
            if CUDNN in measurement.seconds:
                line["ratio_cudnn"] = measurement.ratio(CUDNN)
        if side == OURS and BASE in measurement.seconds:
            line |= {"base": base.cell, "of_base": line["tflops"] / (base.flops / measurement.median(BASE) / 1e12)}
        lines.append(line)
    return lines


def table(measurements, bases):
    rows = [("cell", "TFLOP/s", "cudnn", "fa2", "fa3", "standard", "best", "of base", "of limit", "spread")]
    for m in measurements:
        if m.failure:
            rows.append((m.cell.cell, m.failure, *[""] * 8))
            continue
        rate = {name: (bases[m.cell.cell].flops if name == BASE else m.cell.flops) / m.median(name) / 1e12
                for name in m.seconds if name != MATMUL}
        beside = [f"{m.ratio(name):.3f}x" if name in m.seconds else "-" for name in (CUDNN, FA2, FA3, STANDARD)]
        best = f"{m.ratio(m.best()):.3f}x" if m.best() else "-"
        of_base = f"{rate[OURS] / rate[BASE]:.3f}" if BASE in rate else "-"
        limit = 2 * cells_of.MATMUL_SIZE ** 3 / m.median(MATMUL) / 1e12 if MATMUL in m.seconds else 0
        spread = (max(m.seconds[OURS]) - min(m.seconds[OURS])) / m.median(OURS)
        rows.append((m.cell.cell, f"{rate[OURS]:.0f}", *beside, best, of_base,
                     f"{rate[OURS] / limit:.3f}" if limit else "-", f"{spread:.1%}"))
    widths = [max(len(row[i]) for row in rows if i == 0 or row[2]) for i in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                               for i, (text, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def means(measurements):
    """Geometric means over the grid, and its lowest cells."""
    grid = [m for m in measurements if m.cell.group == "grid" and m.best() and CUDNN in m.seconds]
    if not grid:
        return ""
    geometric = statistics.geometric_mean

    def text(name, part, ratio):
        worst = min(part, key=ratio)
        return f"{name}: {geometric(ratio(m) for m in part):.3f}x, lowest {ratio(worst):.3f}x ({worst.cell.cell})"

    lines = [f"geometric means over {len(grid)} cells of the grid",
             text("  beside cuDNN", grid, lambda m: m.ratio(CUDNN)),
             text("  beside the best peer", grid, lambda m: m.ratio(m.best()))]
    narrow = [m for m in grid if m.cell.head_dim == 64]
    if narrow:
        lines.append(text("  head_dim 64 beside cuDNN", narrow, lambda m: m.ratio(CUDNN)))
    return "\n".join(lines)


def fa3_module():
    try:
        import fa3_fwd_interface
        return fa3_fwd_interface
    except ImportError:
        return None


def run(options):
    library = tegula_ctypes.Library(options.lib)
    cells = cells_of.listed(options.program)
    import torch
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    machine = (f"{properties.name}; sm_{properties.major}{properties.minor}, {properties.multi_processor_count} SMs, "
               f"CUDA {torch.version.cuda}")
    cudnn = torch.backends.cudnn.version()
    versions = {CUDNN: f"cudnn {cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100} (pytorch {torch.__version__})",
                FA2: f"flash-attention-2 (pytorch {torch.__version__})", FA3: "flash-attention-3 (fa3-fwd 0.0.3)",
                STANDARD: f"pytorch {torch.__version__} matmul"}
    module = fa3_module()
    clocks = Clocks(bus_id(properties))
    taken = [cell for name, cell in cells.items()
             if any(fnmatch.fnmatchcase(name, pattern) for pattern in options.filter.split(","))]
    print(f"{machine}\n{', '.join(versions.values())}; {len(taken)} cells"
          f"{'' if module else '; no fa3_fwd_interface'}{'' if clocks.readings is not None else '; no NVML'}", flush=True)
    warnings.simplefilter("ignore", UserWarning)  # PyTorch's lists of what it cannot run; the table says it shorter
    begin, measurements, bases = time.monotonic(), [], {}
    with torch.inference_mode():
        for number, cell in enumerate(taken, 1):
            if time.monotonic() - begin > options.seconds:
                print(f"{len(taken) - number + 1} cells left out: {options.seconds:.0f} s are over")
                break
            bases[cell.cell] = base = cells.get(cell.base())
            measurement = Measurement(cell)
            measurement.run(base, torch, library, module, options, clocks)
            measurements.append(measurement)
            print(table([measurement], bases).splitlines()[-1], flush=True)
            if options.out and not measurement.failure:
                with open(options.out, "a") as out:
                    for line in result_lines(measurement, versions, {"machine": machine, "commit": options.commit},
                                             base):
                        out.write(json.dumps(line, separators=(",", ":")) + "\n")
            torch.cuda.empty_cache()
    print(f"\n{table(measurements, bases)}\n\n{means(measurements)}")
    for reason in sorted({f"{name}: {why}" for m in measurements for name, why in m.refusals.items()}):
        print(f"left out: {reason}")
    return 1 if any(m.failure for m in measurements) else 0


def main():
    begin = time.monotonic()
    status = run(parse(sys.argv[1:]))
    print(f"{time.monotonic() - begin:.0f} s")
    sys.exit(status)


if __name__ == "__main__":
    main()
