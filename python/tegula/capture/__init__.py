# SPDX-License-Identifier: Apache-2.0
"""python -m tegula.capture: record what a causal language model asks of attention.

Runs real prompts and greedy generation through a transformers model and writes, for the chosen
layers, q, k, v, o of the prefill and of every decode step to one safetensors file. The format
stands in data/README.md; `tegula replay FILE` plays the file. Needs torch and transformers, and
gguf for a .gguf file.
"""

import argparse
import hashlib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from .trace_file import FORMAT, FORMAT_VERSION, reference_attention, write_safetensors
from .trace_model import (
    TORCH_DTYPES,
    CaptureError,
    encode,
    first_line,
    load_model,
    run_prompt,
    stop_tokens,
)

__all__ = ["CaptureError", "capture", "main"]

IMPLEMENTATION = "tegula_capture"  # our name in transformers' AttentionInterface
HEAD_KEYS = ("num_heads_q", "num_heads_kv", "head_dim", "head_dim_v")
LAYER_KEYS = (*HEAD_KEYS, "scale", "window_left", "softcap")
# Largest |model's o - our o| / max |o| from the same unrounded q, k, v: rounding, by compute dtype.
SELF_CHECK = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 4e-2}


# ---- the model's calls ---------------------------------------------------------------------------


@dataclass
class Layer:
    """One layer's calls for one prompt, rows in the order of positions."""

    facts: dict
    sink: "torch.Tensor | None"
    rows: dict = field(default_factory=lambda: {"q": [], "k": [], "v": [], "o": []})

    def joined(self, name):
        return torch.cat(self.rows[name])


class Recorder:
    """The attention function that transformers calls: runs the model's own, keeps wanted layers."""

    def __init__(self, wanted):
        self.wanted = wanted  # None: every layer
        self.layers = {}
        self.seen = set()

    def __call__(
        self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs
    ):
        # The model file's own eager function is the one that knows its softcap and sinks.
        own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        if own is None:
            own = transformers.integrations.sdpa_attention.sdpa_attention_forward
        out, weights = own(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
        index = getattr(module, "layer_idx", None)
        if index is None:
            raise CaptureError(
                f"{type(module).__name__} has no layer_idx: its layers cannot be told apart"
            )
        self.seen.add(index)
        if self.wanted is None or index in self.wanted:
            self._keep(index, query, key, value, out, scaling, kwargs)
        return out, weights

    def _keep(self, index, query, key, value, out, scaling, kwargs):
        batch, heads_q, count, head_dim = query.shape
        if batch != 1:
            raise CaptureError(
                f"layer {index}: batch {batch}, a trace holds one sequence per prompt"
            )
        window = kwargs.get("sliding_window")
        facts = {
            "num_heads_q": heads_q,
            "num_heads_kv": key.shape[1],
            "head_dim": head_dim,
            "head_dim_v": value.shape[-1],
            "scale": float(head_dim**-0.5 if scaling is None else scaling),
            "window_left": -1
            if window is None
            else int(window) - 1,  # transformers counts the query's own key
            "softcap": float(kwargs.get("softcap") or 0.0),
        }
        sink = kwargs.get("s_aux")
        layer = self.layers.setdefault(
            index, Layer(facts, None if sink is None else sink.detach().float().cpu())
        )
        if layer.facts != facts:
            raise CaptureError(f"layer {index} changed between calls: {layer.facts} and {facts}")
        # A cache may hand over all keys or only its window: the new rows are the last ones.
        for name, rows in (("q", query), ("k", key[:, :, -count:]), ("v", value[:, :, -count:])):
            layer.rows[name].append(rows[0].transpose(0, 1).detach().cpu().clone())
        layer.rows["o"].append(
            out[0].detach().cpu().reshape(count, heads_q, value.shape[-1]).clone()
        )


# ---- the file ------------------------------------------------------------------------------------


def layer_tensors(prefix, layer, prompt_tokens, dtype, compute_dtype):
    """The eight tensors of one layer and prompt, once our attention has proved the model's."""
    rows = {name: layer.joined(name) for name in "qkvo"}
    index = prefix.rsplit(".", 1)[1]
    for name in "qkv":
        if not torch.isfinite(rows[name].to(dtype)).all():
            raise CaptureError(
                f"{index}: {name} is not finite everywhere in {dtype}; try --dtype bf16 or fp32"
            )
    options = {key: layer.facts[key] for key in ("scale", "window_left", "softcap")} | {
        "sink": layer.sink
    }
    own = reference_attention(rows["q"], rows["k"], rows["v"], **options)
    error = float((own - rows["o"].float()).abs().max() / own.abs().max().clamp_min(1e-30))
    if not error <= SELF_CHECK[compute_dtype]:
        raise CaptureError(
            f"{index}: the model's attention is not the causal attention that a trace can describe "
            f"(largest difference / largest value: {error:.2g}, "
            f"expected at most {SELF_CHECK[compute_dtype]:.2g})"
        )
    stored = {name: rows[name].to(dtype) for name in "qkv"}
    stored["o"] = reference_attention(stored["q"], stored["k"], stored["v"], **options).to(dtype)
    result = {f"{prefix}.prefill.{name}": stored[name][:prompt_tokens] for name in "qkvo"}
    return result | {f"{prefix}.decode.{name}": stored[name][prompt_tokens:] for name in "qkvo"}


def text_of(value):
    return repr(value) if isinstance(value, float) else str(value)


def layer_metadata(layers):
    """The first layer's facts for the whole file, and under layerLL.KEY what differs from them."""
    common = next(iter(layers.values())).facts
    metadata = {key: text_of(common[key]) for key in LAYER_KEYS}
    for index, layer in layers.items():
        for key in LAYER_KEYS:
            if layer.facts[key] != common[key]:
                metadata[f"layer{index:02d}.{key}"] = text_of(layer.facts[key])
    return metadata


def parse_layers(text, count):
    """None (all) or a set of indices from "0,3-5,-1"; negative ones count from the end."""
    if text == "all":
        return None
    chosen = set()
    for part in text.split(","):
        match = re.fullmatch(r"(-?\d+)(?:-(\d+))?", part.strip())
        if not match:
            raise CaptureError(f"--layers {text}: {part!r} is not a number or a range")
        first = int(match[1])
        first = first + count if first < 0 else first
        last = int(match[2]) if match[2] else first
        if not 0 <= first <= last < count:
            raise CaptureError(
                f"--layers {text}: {part.strip()!r} is outside the model's "
                f"{count} layers (0 to {count - 1})"
            )
        chosen.update(range(first, last + 1))
    return chosen


def read_prompt(path):
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise CaptureError(f"--prompts {path}: {reason}") from error
    if not text:
        raise CaptureError(f"--prompts {path}: the file is empty")
    return text


def capture(arguments, say):
    texts = [read_prompt(path) for path in arguments.prompts]
    folder = Path(arguments.output).resolve().parent
    if not folder.is_dir():
        raise CaptureError(f"--output {arguments.output}: no such folder: {folder}")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    say(f"loading {arguments.model}")
    model, tokenizer, public_name, file = load_model(arguments)
    config = model.config.get_text_config(decoder=True)
    wanted = parse_layers(arguments.layers, config.num_hidden_layers)
    longest = getattr(config, "max_position_embeddings", None)
    dtype = TORCH_DTYPES[arguments.dtype]

    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": arguments.name or public_name,
        "architecture": type(model).__name__,
        "model_layers": str(config.num_hidden_layers),
        "mask": "causal",
        "dtype": arguments.dtype,
        "compute_dtype": arguments.compute_dtype,
        "num_prompts": str(len(texts)),
        "steps": str(arguments.steps),
        "made_with": f"torch {torch.__version__}, transformers {transformers.__version__}",
    }
    if file is not None:
        with open(file, "rb") as handle:
            metadata["model_sha256"] = hashlib.file_digest(handle, "sha256").hexdigest()
    tensors = {}
    for p, (path, text) in enumerate(zip(arguments.prompts, texts)):
        fed_text, ids = encode(tokenizer, text, arguments.raw)
        if longest and len(ids) + arguments.steps > longest:
            raise CaptureError(
                f"{path}: {len(ids)} tokens + {arguments.steps} steps exceed the model's "
                f"{longest} positions"
            )
        recorder = Recorder(wanted)
        AttentionInterface.register(IMPLEMENTATION, recorder)
        AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)
        try:
            model.set_attn_implementation(IMPLEMENTATION)
        except ValueError as error:
            raise CaptureError(f"{type(model).__name__}: {first_line(error)}") from error
        stops = set() if arguments.ignore_eos else stop_tokens(model, tokenizer)
        fed = run_prompt(model, ids, arguments.steps, stops, arguments.prefill_chunk)
        if not recorder.seen:
            raise CaptureError(
                f"{type(model).__name__} does not call attention through transformers' "
                "AttentionInterface"
            )
        missing = sorted((wanted or set()) - recorder.seen)
        if missing:
            raise CaptureError(
                f"--layers: layers without attention: {missing}; with it: {sorted(recorder.seen)}"
            )
        say(f"{path}: {len(ids)} prompt tokens, {len(fed)} decode steps")

        layers = dict(sorted(recorder.layers.items()))
        tensors[f"prompt{p}.tokens"] = torch.tensor(ids + fed, dtype=torch.int32)
        for index, layer in layers.items():
            prefix = f"prompt{p}.layer{index:02d}"
            tensors |= layer_tensors(prefix, layer, len(ids), dtype, arguments.compute_dtype)
            if layer.sink is not None:
                tensors[f"layer{index:02d}.sink"] = layer.sink
        metadata |= layer_metadata(layers)
        metadata["layers"] = ",".join(map(str, layers))
        metadata |= {
            f"prompt{p}.name": Path(path).name,
            f"prompt{p}.prompt_tokens": str(len(ids)),
            f"prompt{p}.steps": str(len(fed)),
            f"prompt{p}.text": fed_text,
            f"prompt{p}.generated": tokenizer.decode(fed),
        }
    try:
        size = write_safetensors(arguments.output, tensors, metadata)
    except OSError as error:
        raise CaptureError(f"--output {arguments.output}: {error.strerror}") from error
    say(f"{arguments.output}: {len(tensors)} tensors, {size:,} bytes")


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def not_negative(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m tegula.capture",
        description="Record q, k, v, o of a causal language model to a safetensors file.",
    )
    parser.add_argument(
        "--model",
        required=True,
        help="folder, .gguf file, hub id, or package:NAME (its one GGUF file)",
    )
    parser.add_argument(
        "--prompts", required=True, nargs="+", metavar="FILE", help="UTF-8 text, one prompt a file"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="safetensors file to write")
    parser.add_argument(
        "--layers",
        default="all",
        help='"all" or like 0,3-5; --layers=-1 is the last (default: all)',
    )
    parser.add_argument(
        "--steps", type=not_negative, default=32, help="decode steps per prompt (default: 32)"
    )
    parser.add_argument(
        "--dtype",
        choices=TORCH_DTYPES,
        default="bf16",
        help="of the stored tensors (default: bf16)",
    )
    parser.add_argument(
        "--compute-dtype",
        choices=TORCH_DTYPES,
        default="fp32",
        help="the model runs in (default: fp32)",
    )
    parser.add_argument(
        "--prefill-chunk",
        type=positive,
        default=1024,
        help="prompt tokens per forward (default: 1024)",
    )
    parser.add_argument("--device", default="cpu", help="the model runs on (default: cpu)")
    parser.add_argument(
        "--threads", type=not_negative, default=0, help="CPU threads (default: torch's choice)"
    )
    parser.add_argument("--name", help="name of the model in the metadata")
    parser.add_argument(
        "--raw", action="store_true", help="feed the text as it is, without the chat template"
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", help="go on decoding past an end-of-sequence token"
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="allow a model's own Python code"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    arguments = parser.parse_args(argv)
    if arguments.quiet:
        transformers.utils.logging.disable_progress_bar()
    try:
        capture(
            arguments,
            (lambda text: None) if arguments.quiet else (lambda text: print(text, file=sys.stderr)),
        )
    except CaptureError as error:
        print(f"tegula.capture: error: {error}", file=sys.stderr)
        return 1
    return 0
