#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs: tiny shapes, one thread, beside PyTorch's scaled_dot_product_attention; time of `import tegula`.

Usage: PYTHONPATH=build/python python3 bench/python_overhead.py [--out FILE] [--commit ID] [--rounds N] [--device cpu|cuda]
Sides take turns, a round is a burst of calls of each; medians of bursts, in microseconds a call (docs/measuring.md). On a
GPU the time is that of the caller, not of the kernels: a burst is short enough for the queue, and the device is awaited after it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import types
from typing import Callable

os.environ.setdefault("TEGULA_NUM_THREADS", "1")
BURST = 200


def sides(device: str) -> dict[str, Callable[[], object]]:
    import torch

    import tegula
    from tegula import _core, core

    torch.set_num_threads(1)
    torch.manual_seed(0)
    q = torch.randn(1, 1, 1, 64, device=device, dtype=torch.float16 if device == "cuda" else torch.float32)
    cache = torch.randn(1, 16, 1, 64, device=device, dtype=q.dtype)
    used = torch.tensor([3], dtype=torch.int32, device=device)
    out = torch.empty_like(q)
    q_sdpa, kv_sdpa = q.transpose(1, 2), cache[:, :3].transpose(1, 2)
    attend = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(tegula.attention_with_cache(q, cache, cache, used).transpose(1, 2), attend(q_sdpa, kv_sdpa, kv_sdpa))
    # The tuples that core.py makes, kept: the extension and the library's call alone.
    kept: list[tuple] = []
    core._core = types.SimpleNamespace(**{**vars(_core), "forward": lambda *arguments: kept.append(arguments)})
    tegula.attention_with_cache(q, cache, cache, used, out=out)
    core._core = _core
    arguments = kept[0]
    found: dict[str, Callable[[], object]] = {
        "sdpa": lambda: attend(q_sdpa, kv_sdpa, kv_sdpa),
        "attention_with_cache": lambda: tegula.attention_with_cache(q, cache, cache, used),
        "attention_with_cache-out": lambda: tegula.attention_with_cache(q, cache, cache, used, out=out),
        "extension": lambda: _core.forward(*arguments),
    }
    if device == "cpu":
        found["attention_with_cache-numpy"] = lambda a=(q.numpy(), cache.numpy(), cache.numpy(), used.numpy()): (
            tegula.attention_with_cache(*a)
        )
    try:
        from tegula import torch as operators  # the registered operator
    except ImportError:
        pass
    else:
        found["operator-sdpa"] = lambda: operators.scaled_dot_product_attention(q_sdpa, kv_sdpa, kv_sdpa)
    return found


def microseconds(call: Callable[[], object], wait: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(BURST):
        call()
    spent = time.perf_counter() - start
    wait()
    return spent / BURST * 1e6


def import_milliseconds() -> float:
    """Of `import tegula` in a fresh process, without the interpreter's own start."""
    code = "import time; t = time.perf_counter(); import tegula; print((time.perf_counter() - t) * 1e3)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append result lines to this file")
    parser.add_argument("--commit", default="")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    import torch

    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    calls = sides(options.device)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        microseconds(call, wait)  # warms up
    order = list(calls)
    for _ in range(options.rounds):
        for name in order:
            times[name].append(microseconds(calls[name], wait))
        order.append(order.pop(0))
    imports = sorted(import_milliseconds() for _ in range(9))
    lines = [
        {"suite": "python-overhead", "cell": f"python-{name}", "op": "call", "device": options.device, "us": round(statistics.median(us), 3),
         "us_least": round(min(us), 3), "of_sdpa": round(statistics.median(us) / statistics.median(times["sdpa"]), 3),
         "rounds": options.rounds, "calls": BURST, "torch": torch.__version__, "python": sys.version.split()[0], "commit": options.commit}
        for name, us in times.items()
    ]  # fmt: skip
    lines.append({"suite": "python-overhead", "cell": "python-import", "op": "import", "device": options.device,
                  "ms": round(statistics.median(imports), 3), "rounds": len(imports), "python": sys.version.split()[0],
                  "commit": options.commit})  # fmt: skip
    for line in lines:
        print(f"{line['cell']:36} {line.get('us', line.get('ms'))} {'us' if 'us' in line else 'ms'}")
    if options.out:
        with open(options.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


if __name__ == "__main__":
    main()
