# SPDX-License-Identifier: Apache-2.0
"""python -m tegula.capture on tiny random models. Works offline."""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import numpy as np
import pytest
import torch
import transformers
from byte_tokenizer import byte_tokenizer
from tegula import capture

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trace_check import Trace, assert_close, check_structure, naive_attention  # noqa: E402

torch.set_num_threads(2)


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


COMMON = dict(
    vocab_size=257, hidden_size=60, intermediate_size=64, num_hidden_layers=3,
    num_attention_heads=6, num_key_value_heads=2,
    head_dim=16, max_position_embeddings=256, eos_token_id=256, bos_token_id=256, pad_token_id=256,
)  # fmt: skip


def save_model(folder, config, tokenizer):
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "_proj" in name:
                parameter.mul_(8)  # scores of a few units: a softmax that is not flat
            if "sinks" in name:
                parameter.uniform_(-1, 1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def llama(tmp_path_factory, tokenizer):
    return save_model(
        tmp_path_factory.mktemp("llama"), transformers.LlamaConfig(**COMMON), tokenizer
    )


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts")
    texts = {
        "first.txt": "The tide comes twice a day, and the mill waits for it. " * 2,
        "second.txt": "Why does it wait?",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in texts]


def run(model, prompts, output, *options):
    arguments = [
        "--model",
        str(model),
        "--prompts",
        *prompts,
        "--output",
        str(output),
        "--quiet",
        "--ignore-eos",
    ]
    assert capture.main([*arguments, *options]) == 0
    return Trace(output)


def test_structure_and_output(llama, prompts, tmp_path):
    trace = run(llama, prompts, tmp_path / "t.safetensors", "--steps", "5")
    check_structure(trace)
    assert trace.layers == [0, 1, 2]
    wanted = {
        "format": "tegula-trace", "format_version": "1", "architecture": "LlamaForCausalLM",
        "mask": "causal", "window_left": "-1",
        "softcap": "0.0", "scale": "0.25", "num_heads_q": "6", "num_heads_kv": "2",
        "head_dim": "16", "head_dim_v": "16",
        "model": llama.name, "model_layers": "3", "steps": "5", "dtype": "bf16",
        "compute_dtype": "fp32", "num_prompts": "2",
        "prompt1.name": "second.txt", "prompt1.text": "Why does it wait?",
        "prompt1.prompt_tokens": "17",
    }  # fmt: skip
    assert wanted.items() <= trace.metadata.items()
    assert (
        transformers.AutoTokenizer.from_pretrained(llama).decode(
            trace.tensors["prompt1.tokens"][:17]
        )
        == "Why does it wait?"
    )
    for prompt in range(2):
        for layer in trace.layers:
            assert_close(
                trace.rows(prompt, layer, "o"), naive_attention(trace, prompt, layer), "bf16"
            )


def test_rows_are_the_models_own(llama, prompts, tmp_path):
    """One forward of the whole text with transformers' eager attention gives the same k and v."""
    trace = run(
        llama,
        prompts,
        tmp_path / "t.safetensors",
        "--steps",
        "6",
        "--dtype",
        "fp32",
        "--prefill-chunk",
        "40",
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        llama, attn_implementation="eager"
    ).eval()
    for prompt in range(2):
        tokens = trace.tensors[f"prompt{prompt}.tokens"]
        with torch.no_grad():
            result = model(input_ids=tokens[None].long(), use_cache=True)
        greedy = result.logits[0].argmax(-1)
        first = int(trace.metadata[f"prompt{prompt}.prompt_tokens"])
        assert greedy[first - 1 : -1].tolist() == tokens[first:].tolist()
        cache = result.cache if hasattr(result, "cache") else result.past_key_values
        for layer in trace.layers:
            for name, tensor in (
                ("k", cache.layers[layer].keys),
                ("v", cache.layers[layer].values),
            ):
                np.testing.assert_allclose(
                    trace.rows(prompt, layer, name), tensor[0].transpose(0, 1), rtol=0, atol=2e-5
                )


@pytest.mark.parametrize(
    "dtype, compute_dtype", [("fp16", "fp32"), ("fp32", "fp32"), ("bf16", "bf16"), ("fp32", "fp16")]
)
def test_dtypes(llama, prompts, tmp_path, dtype, compute_dtype):
    trace = run(
        llama,
        prompts[1:],
        tmp_path / "t.safetensors",
        "--steps",
        "2",
        "--dtype",
        dtype,
        "--compute-dtype",
        compute_dtype,
    )
    check_structure(trace)
    assert trace.metadata["compute_dtype"] == compute_dtype
    assert_close(trace.rows(0, 1, "o"), naive_attention(trace, 0, 1), dtype)


def test_chunked_prefill_layers_and_no_steps(llama, prompts, tmp_path):
    whole = run(
        llama,
        prompts[:1],
        tmp_path / "a.safetensors",
        "--steps",
        "0",
        "--layers=-1,0",
        "--dtype",
        "fp32",
    )
    chunks = run(
        llama,
        prompts[:1],
        tmp_path / "b.safetensors",
        "--steps",
        "0",
        "--layers",
        "0,2",
        "--dtype",
        "fp32",
        "--prefill-chunk",
        "7",
    )
    check_structure(whole)
    assert whole.layers == chunks.layers == [0, 2]
    assert whole.part(0, 0, "decode", "k").shape == (0, 2, 16)
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(tensor, chunks.tensors[name], rtol=0, atol=2e-5)


def test_equal_runs_give_equal_bytes(llama, prompts, tmp_path):
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        run(llama, prompts, path, "--steps", "4")
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_header(llama, prompts, tmp_path):
    path = tmp_path / "t.safetensors"
    run(llama, prompts[1:], path, "--steps", "1", "--layers", "1")
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % 64 == 0
    spans = [
        entry["data_offsets"]
        for name, entry in json.loads(data[8 : 8 + length]).items()
        if name != "__metadata__"
    ]
    assert spans[0][0] == 0 and spans[-1][1] == len(data) - 8 - length
    assert all(left[1] == right[0] for left, right in zip(spans, spans[1:]))
    assert not list(tmp_path.glob("*.partial"))


def test_layers_that_differ(tmp_path, tokenizer, prompts):
    """Gemma 2: windows in every other layer, softcaps, a scale that is not head_dim^-1/2."""
    config = transformers.Gemma2Config(
        **COMMON, sliding_window=9, attn_logit_softcapping=2.0, query_pre_attn_scalar=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    )  # fmt: skip
    folder = save_model(tmp_path / "gemma", config, tokenizer)
    trace = run(folder, prompts, tmp_path / "t.safetensors", "--steps", "12")
    check_structure(trace)
    assert [trace.fact(layer, "window_left") for layer in trace.layers] == ["8", "-1", "8"]
    assert trace.metadata["softcap"] == "2.0" and trace.metadata["scale"] == "0.5"
    for layer in trace.layers:
        assert_close(trace.rows(0, layer, "o"), naive_attention(trace, 0, layer), "bf16")


def test_sinks(tmp_path, tokenizer, prompts):
    config = transformers.GptOssConfig(
        **COMMON, num_local_experts=2, num_experts_per_tok=1, sliding_window=8,
        rope_scaling={"rope_type": "default", "rope_theta": 1e4},
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    )  # fmt: skip
    trace = run(
        save_model(tmp_path / "sinks", config, tokenizer),
        prompts,
        tmp_path / "t.safetensors",
        "--steps",
        "3",
    )
    check_structure(trace)
    for layer in trace.layers:
        assert trace.tensors[f"layer{layer:02d}.sink"].shape == (6,)
        assert_close(trace.rows(0, layer, "o"), naive_attention(trace, 0, layer), "bf16")


def test_value_dim_of_its_own(tmp_path, tokenizer, prompts):
    """DeepSeek V3: keys of 24, values of 12."""
    dims = dict(
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=12,
        head_dim=8,
    )
    experts = dict(
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=16,
    )
    config = transformers.DeepseekV3Config(
        **{**COMMON, **dims, **experts, "num_key_value_heads": 6}
    )
    trace = run(
        save_model(tmp_path / "mla", config, tokenizer),
        prompts[:1],
        tmp_path / "t.safetensors",
        "--steps",
        "3",
    )
    check_structure(trace)
    assert (trace.metadata["head_dim"], trace.metadata["head_dim_v"]) == ("24", "12")
    assert_close(trace.rows(0, 2, "o"), naive_attention(trace, 0, 2), "bf16")


def test_a_model_without_the_interface_is_refused(tmp_path, tokenizer, prompts, capsys):
    config = transformers.BloomConfig(vocab_size=257, hidden_size=32, n_layer=1, n_head=2)
    arguments = ["--prompts", prompts[1], "--output", str(tmp_path / "t.safetensors"), "--quiet"]
    assert (
        capture.main(
            ["--model", str(save_model(tmp_path / "bloom", config, tokenizer)), *arguments]
        )
        == 1
    )
    assert (
        "BloomForCausalLM does not call attention through transformers' AttentionInterface"
        in capsys.readouterr().err
    )


def test_end_of_sequence_ends_a_prompt(llama, prompts, tmp_path):
    free = run(llama, prompts[1:], tmp_path / "a.safetensors", "--steps", "5", "--layers", "0")
    tokens = free.tensors["prompt0.tokens"][17:].tolist()
    folder = tmp_path / "stopping"
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    model.generation_config.eos_token_id = [tokens[2]]
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(llama).save_pretrained(folder)
    path = tmp_path / "b.safetensors"
    arguments = [
        "--model",
        str(folder),
        "--prompts",
        prompts[1],
        "--output",
        str(path),
        "--steps",
        "5",
        "--layers",
        "0",
        "--quiet",
    ]
    assert capture.main(arguments) == 0
    stopped = Trace(path)
    check_structure(stopped)
    assert stopped.tensors["prompt0.tokens"][17:].tolist() == tokens[: tokens.index(tokens[2])]


def test_an_attention_that_a_trace_cannot_describe_is_refused(
    llama, prompts, tmp_path, monkeypatch, capsys
):
    from transformers.models.llama import modeling_llama

    own = modeling_llama.eager_attention_forward

    def with_bias(module, query, key, value, attention_mask, **kwargs):
        distance = torch.arange(key.shape[2]) - (key.shape[2] - 1)
        return own(
            module,
            query,
            key,
            value,
            attention_mask + 0.05 * distance * (torch.arange(6).view(1, 6, 1, 1) + 1),
            **kwargs,
        )

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", with_bias)
    path = tmp_path / "t.safetensors"
    assert (
        capture.main(
            ["--model", str(llama), "--prompts", *prompts, "--output", str(path), "--quiet"]
        )
        == 1
    )
    assert "is not the causal attention that a trace can describe" in capsys.readouterr().err
    assert not path.exists()


BAD_CALLS = [
    ({"--model": "{tmp}/none.gguf"}, "--model {tmp}/none.gguf: no such file"),
    ({"--model": "{tmp}"}, "--model {tmp}: the folder has no config.json"),
    ({"--model": "./none/at/all"}, "neither a folder, a .gguf file, package:NAME nor a hub id"),
    ({"--model": "package:no_such_package"}, "no Python package 'no_such_package' is installed"),
    ({"--model": "package:numpy"}, "the package holds 0 GGUF files, one is needed"),
    ({"--model": "{tmp}/broken.gguf"}, "--model {tmp}/broken.gguf: "),
    ({"--prompts": "{tmp}/none.txt"}, "--prompts {tmp}/none.txt: No such file or directory"),
    ({"--prompts": "{tmp}/empty.txt"}, "--prompts {tmp}/empty.txt: the file is empty"),
    ({"--prompts": "{tmp}/latin.txt"}, "--prompts {tmp}/latin.txt: not UTF-8 text"),
    ({"--prompts": "{tmp}/long.txt"}, "400 tokens + 32 steps exceed the model's 256 positions"),
    ({"--output": "{tmp}/none/t.safetensors"}, "no such folder: {tmp}/none"),
    ({"--layers": "3"}, "--layers 3: '3' is outside the model's 3 layers (0 to 2)"),
    ({"--layers": "-4"}, "--layers -4: '-4' is outside the model's 3 layers (0 to 2)"),
    ({"--layers": "2-1"}, "--layers 2-1: '2-1' is outside"),
    ({"--layers": "0,x"}, "--layers 0,x: 'x' is not a number or a range"),
]


@pytest.mark.parametrize("change, message", BAD_CALLS)
def test_bad_calls(llama, prompts, tmp_path, capsys, change, message):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe caf\xe9")
    (tmp_path / "long.txt").write_text("a" * 400)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\xff" * 60)
    options = {
        "--model": str(llama),
        "--prompts": prompts[1],
        "--output": str(tmp_path / "t.safetensors"),
    } | change
    arguments = [f"{name}={value.format(tmp=tmp_path)}" for name, value in options.items()]
    assert capture.main([*arguments, "--quiet"]) == 1
    error = capsys.readouterr().err
    assert message.format(tmp=tmp_path) in error
    assert len([line for line in error.splitlines() if "tegula.capture: error:" in line]) == 1
    assert not (tmp_path / "t.safetensors").exists()


@pytest.mark.parametrize(
    "option", [["--steps", "-1"], ["--dtype", "int8"], ["--prefill-chunk", "0"]]
)
def test_bad_options(option, capsys):
    with pytest.raises(SystemExit) as stopped:
        capture.main(["--model", "m", "--prompts", "p", "--output", "o", *option])
    assert stopped.value.code == 2
    assert option[0] in capsys.readouterr().err


def test_the_command(llama, prompts, tmp_path):
    """python -m tegula.capture writes the same bytes as main(), and reports errors in one line."""
    command = [sys.executable, "-m", "tegula.capture", "--model", str(llama), "--quiet"]
    options = ["--prompts", prompts[1], "--steps", "2", "--layers", "1", "--ignore-eos"]
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    subprocess.run([*command, *options, "--output", paths[0]], check=True)
    run(llama, prompts[1:], paths[1], "--steps", "2", "--layers", "1")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    failed = subprocess.run(
        [*command, *options, "--output", tmp_path / "none" / "t.safetensors"],
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith("tegula.capture: error: --output ")
