# SPDX-License-Identifier: Apache-2.0
"""Cells of `tegula bench --suite cpu --list --json` as calls of ours and of PyTorch's on the same memory."""
import dataclasses
import json
import math
import subprocess

import tegula_ctypes

OURS, SDPA, STANDARD = "ours", "sdpa", "standard"
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
# Largest |ours - theirs| / |theirs| of a row (2-norms). Standard attention rounds its scores and its weights to the
# type, which errs by about 1/200 (bf16); a key too many or too few among 4096 shows as 1/64.
TOLERANCE = {"f32": 5e-5, "f16": 8e-3, "bf16": 5e-2}


@dataclasses.dataclass(frozen=True)
class Cell:
    """The fields that the list has and this program needs, under the list's names."""
    cell: str
    op: str
    dtype: str
    kv_dtype: str
    batch: int
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    seqlen_q: int
    seqlen_k: int
    mask: str
    layout: str
    features: str
    cache_sets: int
    threads: int
    flops: float
    kv_bytes: float
    group: str = ""
    residence: str = ""
    window_left: int = -1
    lengths: tuple = ()

    @classmethod
    def of(cls, shape):
        names = {field.name for field in dataclasses.fields(cls)}
        taken = {name: value for name, value in shape.items() if name in names}
        taken["lengths"] = tuple(taken.get("lengths", ()))
        return cls(**taken)

    def refusal(self):
        """Why PyTorch cannot run it, or ''."""
        if self.op not in ("forward", "decode"):
            return f"no {self.op}"
        if self.kv_dtype != self.dtype or self.dtype not in DTYPES:
            return f"no {self.kv_dtype} caches"
        if self.layout.startswith("paged"):
            return "no pages"
        if self.features:
            return f"no {self.features}"
        return ""

    def ratio(self):
        return self.heads_q // self.heads_kv


def bench_json(program, suite, *options):
    command = [program, "bench", "--suite", suite, "--json", *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def listed(program, threads):
    return [Cell.of(shape) for shape in bench_json(program, "cpu", "--threads", str(threads), "--list")]


def machine(program, threads):
    """The processor, its class and its limits in these seconds, as the program's own lines name them."""
    return bench_json(program, "cpu", "--threads", str(threads), "--limits", "--quick")["machine"]


class Operands:
    """Random normal q, k, v and our o: [batch, heads, tokens, dim] views, ragged ones [1, heads, all tokens, dim].
    memory: 'bhsd' keeps the tokens of a head together, which PyTorch's decode prefers by far; 'bshd' the heads of
    a token. k and v are as many as the cell has cache sets."""

    def __init__(self, cell, torch, memory="bhsd"):
        generator = torch.Generator().manual_seed(5)
        dtype = getattr(torch, DTYPES[cell.dtype])

        def normal(heads, tokens, dim):
            sequences = 1 if cell.lengths else cell.batch
            shape = (sequences, heads, tokens, dim) if memory == "bhsd" else (sequences, tokens, heads, dim)
            tensor = torch.empty(shape, dtype=dtype)
            flat = tensor.view(-1)
            for part in flat.split(1 << 24):  # a float32 copy of the whole would not fit beside large caches
                part.copy_(torch.randn(part.shape, generator=generator))
            return tensor if memory == "bhsd" else tensor.transpose(1, 2)

        tokens_q, tokens_k = (sum(cell.lengths),) * 2 if cell.lengths else (cell.seqlen_q, cell.seqlen_k)
        self.q = normal(cell.heads_q, tokens_q, cell.head_dim)
        self.kv = [(normal(cell.heads_kv, tokens_k, cell.head_dim), normal(cell.heads_kv, tokens_k, cell.head_dim_v))
                   for _ in range(cell.cache_sets)]
        self.o = normal(cell.heads_q, tokens_q, cell.head_dim_v)
        self.o.zero_()
        self.cu_seqlens = None
        if cell.lengths:
            self.cu_seqlens = torch.tensor([0, *cell.lengths]).cumsum(0).to(torch.int32)


def ours(cell, operands, library):
    """One planned call for each set of caches."""
    problem = {"causal": int(cell.mask != "full"), "window_left": cell.window_left if cell.mask == "window" else -1}

    def tokens_first(tensor):  # [batch, tokens, heads, dim]; ragged [tokens, heads, dim]
        view = tensor.transpose(1, 2)
        return view[0] if cell.lengths else view

    return [tegula_ctypes.Forward(library, tokens_first(operands.q), tokens_first(k), tokens_first(v),
                                  tokens_first(operands.o), cu_seqlens=operands.cu_seqlens, **problem)
            for k, v in operands.kv]


def sequences(cell, q, k, v):
    """A ragged batch is a call for each sequence: without padding, which would cost more."""
    if not cell.lengths:
        return [(q, k, v)]
    split = [tensor.split(cell.lengths, dim=2) for tensor in (q, k, v)]
    return list(zip(*split))


def visible(cell, torch):
    """Boolean [seqlen_q, seqlen_k] of a mask that is_causal cannot say (that one is aligned at the top left)."""
    if cell.mask == "full" or (cell.mask == "causal" and (cell.lengths or cell.seqlen_q == cell.seqlen_k)):
        return None
    ahead = (torch.arange(cell.seqlen_k)[None, :] - torch.arange(cell.seqlen_q)[:, None]
             - (cell.seqlen_k - cell.seqlen_q))
    seen = ahead <= 0
    return seen & (ahead >= -cell.window_left) if cell.mask == "window" else seen


def sdpa(cell, operands, torch):
    attention = torch.nn.functional.scaled_dot_product_attention
    mask = visible(cell, torch)
    options = {"is_causal": cell.mask == "causal" and mask is None, "attn_mask": mask}
    if cell.ratio() > 1:
        options["enable_gqa"] = True

    def call_of(parts):
        if len(parts) == 1:
            q, k, v = parts[0]
            return lambda: attention(q, k, v, **options)
        return lambda: [attention(q, k, v, **options) for q, k, v in parts]

    return [call_of(sequences(cell, operands.q, k, v)) for k, v in operands.kv]


def standard(cell, operands, torch):
    """matmul, softmax, matmul in the cell's type, with stored scores. The query heads of a kv head are one matrix."""
    scale = 1 / math.sqrt(cell.head_dim)
    mask = visible(cell, torch)
    hidden = None if mask is None else ~mask
    if cell.mask == "causal" and mask is None:
        hidden = torch.ones(cell.seqlen_q, cell.seqlen_q, dtype=torch.bool).triu_(1)

    def attention(q, k, v):
        batch, heads, tokens, dim = q.shape
        grouped = (q * scale).reshape(batch, cell.heads_kv, -1, dim)
        scores = torch.matmul(grouped, k.transpose(-2, -1))
        if hidden is not None:
            by_head = scores.view(batch, heads, tokens, -1)
            by_head.masked_fill_(hidden[:tokens, :tokens] if cell.lengths else hidden, -math.inf)
        weights = torch.softmax(scores, dim=-1)
        return torch.matmul(weights, v).view(batch, heads, tokens, -1)

    def call_of(parts):
        if len(parts) == 1:
            q, k, v = parts[0]
            return lambda: attention(q, k, v)
        return lambda: [attention(q, k, v) for q, k, v in parts]

    return [call_of(sequences(cell, operands.q, k, v)) for k, v in operands.kv]


def worst_row(torch, mine, theirs):
    """The largest relative difference of a row. NaN counts as the largest."""
    mine, theirs = mine.double(), theirs.double()
    rows = (mine - theirs).norm(dim=-1) / theirs.norm(dim=-1)
    return math.inf if rows.isnan().any() else rows.max().item()


def differences(cell, operands, torch, sides):
    """side -> how far ours is from it, over all sets of caches. sides: name -> calls."""
    worst = {name: 0.0 for name in sides if name != OURS}
    for number, mine in enumerate(sides[OURS]):
        operands.o.fill_(math.nan)
        mine()
        for name in worst:
            theirs = sides[name][number]()
            theirs = torch.cat(theirs, dim=2) if isinstance(theirs, list) else theirs
            worst[name] = max(worst[name], worst_row(torch, operands.o, theirs))
    return worst
