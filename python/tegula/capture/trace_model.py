# SPDX-License-Identifier: Apache-2.0
"""Finding and loading the model of a trace, and running a prompt through it."""

import importlib.util
import inspect
import re
from pathlib import Path

import torch
import transformers

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class CaptureError(Exception):
    """What the user can correct; printed as one line."""


def resolve_model(name):
    """Of --model: (source and keywords of from_pretrained, public name, the one file or None)."""
    if name.startswith("package:"):
        package = name.split(":", 1)[1]
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise CaptureError(f"--model {name}: no Python package {package!r} is installed")
        files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
        if len(files) != 1:
            raise CaptureError(
                f"--model {name}: the package holds {len(files)} GGUF files, one is needed"
            )
        name = str(files[0])
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise CaptureError(f"--model {name}: no such file")
        if importlib.util.find_spec("gguf") is None:
            raise CaptureError("a GGUF model needs two more packages: pip install gguf accelerate")
        return str(path.parent), {"gguf_file": path.name}, path.name, path
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise CaptureError(f"--model {name}: the folder has no config.json")
        return str(path), {}, path.resolve().name, None
    if path.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise CaptureError(
            f"--model {name}: neither a folder, a .gguf file, package:NAME nor a hub id"
        )
    return name, {}, name, None


def load_model(arguments):
    source, keywords, public_name, file = resolve_model(arguments.model)
    keywords["trust_remote_code"] = arguments.trust_remote_code
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **keywords)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=TORCH_DTYPES[arguments.compute_dtype], **keywords
        )
    except (
        Exception
    ) as error:  # transformers raises a dozen types here; the first line says what is wrong
        raise CaptureError(f"--model {arguments.model}: {first_line(error)}") from error
    return model.eval().to(arguments.device), tokenizer, public_name, file


def first_line(error):
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def encode(tokenizer, text, raw):
    """(text as fed, token ids): one user message in the model's chat template where it has one."""
    if raw or not tokenizer.chat_template:
        return text, tokenizer(text)["input_ids"]
    fed = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return fed, tokenizer(fed, add_special_tokens=False)["input_ids"]


def stop_tokens(model, tokenizer):
    stops = model.generation_config.eos_token_id if model.generation_config else None
    stops = stops if isinstance(stops, list) else [stops]
    return {token for token in [*stops, tokenizer.eos_token_id] if token is not None}


@torch.no_grad()
def run_prompt(model, ids, steps, stops, prefill_chunk):
    """Prefill, then up to `steps` greedy decode steps. Returns the tokens fed in decode steps."""
    accepted = inspect.signature(model.forward).parameters
    keywords = {"use_cache": True} | ({"logits_to_keep": 1} if "logits_to_keep" in accepted else {})
    cache_name = "cache" if "cache" in accepted else "past_key_values"  # renamed in transformers 5
    device = next(model.parameters()).device
    cache, fed = None, []

    def forward(tokens):
        nonlocal cache
        result = model(
            input_ids=torch.tensor([tokens], device=device), **{cache_name: cache}, **keywords
        )
        cache = getattr(result, cache_name, None)
        if cache is None:
            raise CaptureError(
                f"{type(model).__name__} returns no KV cache: it cannot decode token by token"
            )
        return int(result.logits[0, -1].argmax())

    for begin in range(0, len(ids), prefill_chunk):
        token = forward(ids[begin : begin + prefill_chunk])
    while len(fed) < steps and token not in stops:
        fed.append(token)
        token = forward([token])
    return fed
