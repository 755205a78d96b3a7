# SPDX-License-Identifier: Apache-2.0
"""The committed trace: size, shapes, and o recomputed from its q, k, v."""

from pathlib import Path

import pytest
from trace_check import Trace, assert_close, check_structure, naive_attention

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "data" / "smollm2-135m.safetensors"
MAX_COMMITTED_BYTES = 8_000_000
MAX_COMMITTED_TOKENS = 1290


@pytest.fixture(scope="session")
def committed():
    return Trace(COMMITTED)


def test_committed_trace(committed):
    assert COMMITTED.stat().st_size <= MAX_COMMITTED_BYTES
    check_structure(committed)
    wanted = {
        "format": "tegula-trace", "format_version": "1", "dtype": "bf16", "mask": "causal",
        "scale": "0.125", "num_heads_q": "9",
        "num_heads_kv": "3", "head_dim": "64", "head_dim_v": "64", "model_layers": "30",
        "num_prompts": "2", "window_left": "-1", "softcap": "0.0",
    }  # fmt: skip
    assert wanted.items() <= committed.metadata.items()
    assert len(committed.layers) == 2 and committed.layers[0] < 10 and committed.layers[1] >= 20
    lengths = [int(committed.metadata[f"prompt{p}.prompt_tokens"]) for p in range(2)]
    steps = [int(committed.metadata[f"prompt{p}.steps"]) for p in range(2)]
    assert 800 <= lengths[0] <= 1000 and 250 <= lengths[1] <= 350 and steps == [48, 48]
    assert sum(lengths) + sum(steps) <= MAX_COMMITTED_TOKENS
    for p in range(2):
        text = (
            (ROOT / "data" / "prompts" / committed.metadata[f"prompt{p}.name"])
            .read_text(encoding="utf-8")
            .strip()
        )
        assert text in committed.metadata[f"prompt{p}.text"]
        assert committed.metadata[f"prompt{p}.generated"].strip()


@pytest.mark.parametrize("prompt", [0, 1])
@pytest.mark.parametrize("place", [0, 1])
def test_committed_output(committed, prompt, place):
    layer = committed.layers[place]
    rows = len(committed.rows(prompt, layer, "q"))
    # Rows around every 64th, the last prompt row and all decode steps.
    steps = int(committed.metadata[f"prompt{prompt}.steps"])
    chosen = sorted(
        {*range(0, rows, 64), *range(63, rows, 64), *range(rows - steps - 1, rows), 1, 2}
    )
    assert_close(
        committed.rows(prompt, layer, "o")[chosen],
        naive_attention(committed, prompt, layer, chosen),
        "bf16",
    )
