# SPDX-License-Identifier: Apache-2.0
"""docs/contract.md, 12, on the committed trace: right kernels pass, wrong ones fail.

Emulates kernels in fp64 with chosen roundings. `pytest -s` prints the tables of docs/numerics.md.
"""

import math

import pytest
import torch
from test_committed_trace import COMMITTED
from trace_check import Trace

U = 2.0**-8  # bf16's unit roundoff


def ulp(x):
    return 2.0 ** (torch.floor(torch.log2(x.abs().clamp_min(2.0**-126))) - 7)


class Example:
    """Prompt 0, every 7th query row from row 200 on, all heads; one layer."""

    def __init__(self, trace, layer):
        q, k, v = (torch.from_numpy(trace.rows(0, layer, name)) for name in "qkv")
        group = q.shape[1] // k.shape[1]
        k, self.v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        rows = torch.arange(200, len(q), 7)
        self.position, self.key = rows[:, None], torch.arange(len(k))[None]
        self.visible = self.key <= self.position
        self.scores = 0.125 * torch.einsum("ihd,jhd->hij", q[rows], k)
        sbar = 0.125 * torch.einsum("ihd,jhd->hij", q[rows].abs(), k.abs())
        self.ref, p = self.attend(self.scores, self.visible, round_p=False)

        def average(weight, value):
            return torch.einsum("hij,jhd->hid", weight, value)

        a = average(p, self.v.abs())
        r = average(p**2, self.v**2).sqrt()
        b = average(p * sbar, self.v.abs()) + self.ref.abs() * (p * sbar).sum(-1, keepdim=True)
        n = (rows + 1).double()[None, :, None]
        self.terms = {
            "4 u R": 4 * U * r,
            "e A": 1e-4 * a,
            "2^-23 sqrt(n) A": 2.0**-23 * n.sqrt() * a,
            "2^-20 B": 2.0**-20 * b,
            "ulp of o": ulp(self.ref),
        }
        self.bound = sum(self.terms.values())

    def attend(self, scores, visible, round_p=True):
        s = scores.masked_fill(~visible, -math.inf)
        p = torch.exp(s - s.max(-1, keepdim=True).values)
        total = p.sum(-1, keepdim=True)
        stored = p.bfloat16().double() if round_p else p
        return torch.einsum("hij,jhd->hid", stored, self.v) / total, p / total

    def judge(self, name, scores=None, visible=None):
        """Of o in bf16: (largest error / tolerance, share of failing rows, largest error)."""
        scores = self.scores if scores is None else scores
        o, _ = self.attend(scores, self.visible if visible is None else visible)
        error = (o.bfloat16().double() - self.ref).abs()
        ratio = error / self.bound
        failing = float((ratio > 1).any(-1).double().mean())
        print(f"  {name:32s} {float(ratio.max()):8.2f} {failing:8.1%} {float(error.max()):10.1e}")
        return float(ratio.max()), failing, float(error.max())


@pytest.fixture(scope="module", params=[0, 1], ids=["early", "late"])
def example(request):
    trace = Trace(COMMITTED)
    return Example(trace, trace.layers[request.param])


def test_right_kernel_passes_and_wrong_ones_fail(example):
    print("\n  median share of the tolerance:")
    for name, term in example.terms.items():
        print(f"  {name:32s} {float((term / example.bound).median()):8.2%}")
    print(f"  {'kernel':32s} {'ratio':>8s} {'rows':>8s} {'max error':>10s}")
    right, _, right_error = example.judge("right, P in bf16")
    assert right < 0.5
    lost = (example.key >= 100) & (example.key < 108)
    wrong = {
        "own key hidden": dict(visible=example.key < example.position),
        "keys 100 to 107 lost": dict(visible=example.visible & ~lost),
        "key 100 lost": dict(visible=example.visible & (example.key != 100)),
        "scale times 1.01": dict(scores=1.01 * example.scores),
        "scores rounded to bf16": dict(scores=example.scores.bfloat16().double()),
    }
    for name, change in wrong.items():
        ratio, failing, error = example.judge(name, **change)
        assert ratio > 1 and failing > 0
        if name == "key 100 lost":
            # A comparison of largest errors cannot tell this kernel from the right one.
            assert error <= right_error
    example.judge("scale times 1.002", scores=1.002 * example.scores)  # at the edge: printed only
