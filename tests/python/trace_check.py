# SPDX-License-Identifier: Apache-2.0
"""Reading a trace file and holding it against data/README.md, without the tool that wrote it."""

import math

import numpy as np
import torch
from safetensors import safe_open

ULP = {
    "bf16": 2.0**-7,
    "fp16": 2.0**-10,
    "fp32": 2.0**-23,
}  # relative to the smallest value of a binade


class Trace:
    def __init__(self, path):
        with safe_open(path, "pt") as file:
            self.metadata = file.metadata()
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}
        self.layers = [int(layer) for layer in self.metadata["layers"].split(",")]

    def fact(self, layer, key):
        return self.metadata.get(f"layer{layer:02d}.{key}", self.metadata[key])

    def part(self, prompt, layer, phase, name):
        return self.tensors[f"prompt{prompt}.layer{layer:02d}.{phase}.{name}"]

    def rows(self, prompt, layer, name):
        return np.concatenate(
            [
                self.part(prompt, layer, phase, name).double().numpy()
                for phase in ("prefill", "decode")
            ]
        )


def naive_attention(trace, prompt, layer, query_rows=None):
    """fp64 in numpy, one row at a time: nothing shared with the tool. Row i sees keys 0..i."""
    q, k, v = (trace.rows(prompt, layer, name) for name in "qkv")
    scale, window, cap = (
        float(trace.fact(layer, key)) for key in ("scale", "window_left", "softcap")
    )
    sink = trace.tensors.get(f"layer{layer:02d}.sink")
    group = q.shape[1] // k.shape[1]
    query_rows = range(len(q)) if query_rows is None else query_rows
    out = np.empty((len(query_rows), q.shape[1], v.shape[2]))
    for r, i in enumerate(query_rows):
        first = 0 if window < 0 else max(0, i - int(window))
        for h in range(q.shape[1]):
            s = scale * (k[first : i + 1, h // group] @ q[i, h])
            if cap > 0:
                s = cap * np.tanh(s / cap)
            extra = [] if sink is None else [float(sink[h])]
            top = max([s.max(), *extra])
            p = np.exp(s - top)
            out[r, h] = (
                p @ v[first : i + 1, h // group] / (p.sum() + sum(math.exp(x - top) for x in extra))
            )
    return out


def assert_close(recorded, expected, dtype):
    # fp32 attention rounded once: half an ulp, and fp32's own error on the scale of the row.
    bound = 0.5 * ULP[dtype] * np.abs(expected) + 1e-5 * np.abs(expected).max(
        axis=-1, keepdims=True
    )
    excess = np.abs(recorded - expected) - bound
    assert excess.max() <= 0, (
        f"{(excess > 0).sum()} elements differ, the worst by {excess.max():.3g}"
    )


def check_structure(trace):
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[
        trace.metadata["dtype"]
    ]
    expected = {}
    for p in range(int(trace.metadata["num_prompts"])):
        count = {
            phase: int(trace.metadata[f"prompt{p}.{key}"])
            for phase, key in (("prefill", "prompt_tokens"), ("decode", "steps"))
        }
        expected[f"prompt{p}.tokens"] = ((count["prefill"] + count["decode"],), torch.int32)
        for layer in trace.layers:
            heads_q, heads_kv, dim, dim_v = (
                int(trace.fact(layer, key))
                for key in ("num_heads_q", "num_heads_kv", "head_dim", "head_dim_v")
            )
            shapes = {
                "q": (heads_q, dim),
                "k": (heads_kv, dim),
                "v": (heads_kv, dim_v),
                "o": (heads_q, dim_v),
            }
            for phase in count:
                for name, shape in shapes.items():
                    expected[f"prompt{p}.layer{layer:02d}.{phase}.{name}"] = (
                        (count[phase], *shape),
                        dtype,
                    )
    found = {
        name: (tuple(t.shape), t.dtype)
        for name, t in trace.tensors.items()
        if not name.endswith(".sink")
    }
    assert found == expected
