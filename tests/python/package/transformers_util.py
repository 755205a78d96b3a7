# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of the architectures in test_transformers.py, and how results are compared."""

import copy
import functools

import torch
import transformers

torch.set_num_threads(1)  # tiny matrices: a second thread costs more than it brings

VOCABULARY = 97
WINDOW = 7

COMMON = dict(
    vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=4,
    num_attention_heads=6, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
    eos_token_id=None, bos_token_id=None, pad_token_id=0,
)  # fmt: skip


def configs() -> dict:
    """Full attention, windows in some layers, windows in all, softcaps, sinks.

    gpt_oss takes all its experts: which one of two it takes would hang on rounding.
    """
    half = ["sliding_attention", "full_attention"] * 2
    qwen_window = dict(use_sliding_window=True, sliding_window=WINDOW, layer_types=half)
    return {
        "llama": transformers.LlamaConfig(**COMMON),
        "qwen2": transformers.Qwen2Config(**COMMON, **qwen_window),
        "qwen3": transformers.Qwen3Config(**COMMON),
        "gemma2": transformers.Gemma2Config(
            **COMMON, sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=9
        ),
        "gemma3": transformers.Gemma3TextConfig(**COMMON, sliding_window=WINDOW, layer_types=half),
        "gpt_oss": transformers.GptOssConfig(
            **COMMON, num_local_experts=2, num_experts_per_tok=2, sliding_window=WINDOW,
            layer_types=half, rope_scaling={"rope_type": "default", "rope_theta": 1e4},
        ),
        "mistral": transformers.MistralConfig(**COMMON, sliding_window=WINDOW),
    }  # fmt: skip


ARCHITECTURES = list(configs())


@functools.lru_cache(maxsize=None)
def model_of(architecture, implementation, dtype, device):
    """The same weights for every implementation; scores of a few units, so no softmax is flat."""
    config = copy.deepcopy(configs()[architecture])
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "_proj" in name:
                parameter.mul_(8)
            if "sinks" in name:
                parameter.uniform_(-1, 1)
    assert model.config._attn_implementation == implementation
    return model.eval().to(device=device, dtype=dtype)


def tokens(rows, columns, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (rows, columns), generator=generator).to(device)


def padding(side, device="cpu"):
    """int [3, 29]: one row without padding; on the left up to more than a window of it.

    On the right less: "eager" gives a row that sees nothing the mean of all values, tegula zeros.
    """
    mask = torch.ones(3, 29, dtype=torch.int64)
    if side == "left":
        mask[1, :5], mask[2, :11] = 0, 0
    elif side == "right":
        mask[1, -2:], mask[2, -5:] = 0, 0
    return mask.to(device)


def assert_as_good(ours, eager, exact, rows=None):
    """`ours` is as close to the fp32 model as "eager" is in the same dtype, up to a factor of two.

    fp32: both are within rounding of each other. rows: bool, which of the leading dimensions count.
    """
    ours, eager, exact = ours.double().cpu(), eager.double().cpu(), exact.double().cpu()
    if rows is not None:
        rows = rows.bool().cpu()
        ours, eager, exact = ours[rows], eager[rows], exact[rows]
    assert torch.isfinite(ours).all()
    rounding = 2e-5 * float(exact.abs().max())
    error = float((ours - exact).abs().max())
    bound = 2 * float((eager - exact).abs().max()) + rounding
    assert error <= bound, f"error {error:.3g}, of eager {bound:.3g} / 2"


def assert_same_text(ours, eager, tolerance):
    """Equal greedy tokens; a sequence may part from "eager" only where two logits nearly tie."""
    for row in range(len(eager.sequences)):
        for step, (mine, its) in enumerate(zip(ours.logits, eager.logits)):
            torch.testing.assert_close(mine[row], its[row], rtol=0, atol=tolerance)
            if mine[row].argmax() != its[row].argmax():
                best = its[row].topk(2).values
                assert best[0] - best[1] <= 2 * tolerance, f"row {row}, step {step}"
                break
