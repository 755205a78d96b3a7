# SPDX-License-Identifier: Apache-2.0
"""Cells of `tegula bench --suite h200-forward --list --json` as calls of ours and of the peers' on the same memory:
cuDNN and FlashAttention-2 through PyTorch, FlashAttention-3 (fa3-fwd), standard attention."""
import dataclasses
import math

import peers_cells
import tegula_ctypes

SUITE = "h200-forward"
OURS, CUDNN, FA2, FA3, STANDARD, BASE, MATMUL = "ours", "cudnn", "fa2", "fa3", "standard", "base", "matmul"
PEERS = (CUDNN, FA2, FA3)
DTYPES = {"bf16": "bfloat16", "f16": "float16"}
TOLERANCE = {"bf16": 2e-2, "f16": 4e-3}  # largest |ours - theirs| / |theirs| of a row (2-norms)
SETS = 2  # of operands, in turn: with o more than twice the L2
# Cells beside which the rate of a matrix product is taken.
LIMITED = ("forward-bf16-d128-full-s8192", "forward-bf16-d128-causal-s8192", "forward-bf16-d256-full-s4096")
MATMUL_SIZE = 8192


@dataclasses.dataclass(frozen=True)
class Cell(peers_cells.Cell):
    softcap: float = 0.0

    def base(self):
        """The name of the plain cell that a variant is compared with, or ''."""
        if self.group in ("grid", "short", "head dims"):
            return ""
        if self.group == "window":
            return "forward-bf16-d128-full-s16384"
        return f"forward-bf16-d128-{self.mask}-s{2048 if self.lengths else self.seqlen_k}"

    def options(self):
        """What tegula_problem gets besides what the tensors say."""
        options = {"causal": int(self.mask != "full"), "softcap": self.softcap}
        if self.mask == "window":
            options["window_left"] = self.window_left
        if self.lengths:
            options["max_seqlen_q"] = options["max_seqlen_k"] = max(self.lengths)
        if "plain_loads" in self.features:
            options["unaligned"] = tegula_ctypes.UNALIGNED
        return options


def listed(program):
    return {shape["cell"]: Cell.of(shape) for shape in peers_cells.bench_json(program, SUITE, "--list")}


class Operands:
    """Random normal q, k, v, our o and lse: [batch, tokens, heads, dim], ragged ones [tokens, heads, dim]; SETS of
    each. The features say how they begin and what is beside them."""

    def __init__(self, cell, torch, device):
        generator = torch.Generator(device).manual_seed(5)
        dtype = getattr(torch, DTYPES[cell.dtype])
        shift = 1 if "unaligned" in cell.features else 0

        def tensor(heads, tokens, dim):
            shape = (sum(cell.lengths), heads, dim) if cell.lengths else (cell.batch, tokens, heads, dim)
            flat = torch.empty(math.prod(shape) + 8, dtype=dtype, device=device)
            flat.normal_(generator=generator)
            return flat[shift:shift + math.prod(shape)].view(shape)

        rows = (cell.heads_q, sum(cell.lengths)) if cell.lengths else (cell.batch, cell.heads_q, cell.seqlen_q)
        self.sets = [(tensor(cell.heads_q, cell.seqlen_q, cell.head_dim),
                      tensor(cell.heads_kv, cell.seqlen_k, cell.head_dim),
                      tensor(cell.heads_kv, cell.seqlen_k, cell.head_dim_v),
                      tensor(cell.heads_q, cell.seqlen_q, cell.head_dim_v)) for _ in range(SETS)]
        self.lse = torch.empty(rows, dtype=torch.float32, device=device)
        self.cu_seqlens = None
        if cell.lengths:
            offsets = torch.tensor([0, *cell.lengths]).cumsum(0)
            self.cu_seqlens = offsets.to(device=device, dtype=torch.int32)
        self.sink = torch.ones(cell.heads_q, device=device) if "sink" in cell.features else None


class Refused(Exception):
    """A side that has no such call; the text says what it lacks."""


def ours(cell, operands, library):
    return [tegula_ctypes.Forward(library, q, k, v, o, cu_seqlens=operands.cu_seqlens, lse=operands.lse,
                                  sink=operands.sink, **cell.options()) for q, k, v, o in operands.sets]


def sdpa(cell, operands, torch, backend):
    """cuDNN or FlashAttention-2 by PyTorch; ragged batches and windows by FlashAttention-2's own entry."""
    if cell.softcap or operands.sink is not None:
        raise Refused(f"no {cell.features}")
    if cell.lengths or cell.mask == "window":
        if backend == CUDNN:
            raise Refused("no ragged batches" if cell.lengths else "no windows")
        longest = max(cell.lengths) if cell.lengths else 0
        window = {"window_size_left": cell.window_left, "window_size_right": 0} if cell.mask == "window" else {}
        entry = torch.ops.aten._flash_attention_forward
        return [lambda q=q, k=k, v=v: entry(q, k, v, operands.cu_seqlens, operands.cu_seqlens,
                                            longest or cell.seqlen_q, longest or cell.seqlen_k, 0.0,
                                            cell.mask == "causal", False, **window)[0]
                for q, k, v, _ in operands.sets]
    kernels = torch.nn.attention.SDPBackend
    chosen = kernels.CUDNN_ATTENTION if backend == CUDNN else kernels.FLASH_ATTENTION
    attention = torch.nn.functional.scaled_dot_product_attention
    options = {"is_causal": cell.mask == "causal"} | ({"enable_gqa": True} if cell.ratio() > 1 else {})

    def call_of(q, k, v):
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))

        def call():
            with torch.nn.attention.sdpa_kernel(chosen):
                return attention(q, k, v, **options).transpose(1, 2)
        return call

    return [call_of(q, k, v) for q, k, v, _ in operands.sets]


def fa3(cell, operands, module):
    if module is None:
        raise Refused("fa3_fwd_interface is not on PYTHONPATH")
    if cell.dtype != "bf16" or cell.mask == "window" or operands.sink is not None:
        raise Refused("fa3-fwd is built without fp16, windows and sinks")
    causal = cell.mask == "causal"
    if cell.lengths:
        longest = max(cell.lengths)
        return [lambda q=q, k=k, v=v: module.flash_attn_varlen_func(
            q, k, v, operands.cu_seqlens, operands.cu_seqlens, longest, longest, causal=causal)
            for q, k, v, _ in operands.sets]
    return [lambda q=q, k=k, v=v: module.flash_attn_func(q, k, v, causal=causal, softcap=cell.softcap)
            for q, k, v, _ in operands.sets]


def standard(cell, operands, torch):
    """matmul, softmax, matmul with stored scores."""
    if cell.features or cell.lengths or cell.mask == "window" or cell.ratio() > 1:
        raise Refused("plain cells alone")
    scale = 1 / math.sqrt(cell.head_dim)
    hidden = None
    if cell.mask == "causal":
        hidden = torch.ones(cell.seqlen_q, cell.seqlen_k, dtype=torch.bool, device=operands.lse.device).triu_(1)

    def call_of(q, k, v):
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))

        def call():
            scores = torch.matmul(q * scale, k.transpose(-2, -1))
            if hidden is not None:
                scores.masked_fill_(hidden, -math.inf)
            return torch.matmul(torch.softmax(scores, dim=-1), v).transpose(1, 2)
        return call

    return [call_of(q, k, v) for q, k, v, _ in operands.sets]


def matmul(torch, device):
    a, b = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=device, dtype=torch.bfloat16) for _ in range(2))
    return [lambda: torch.matmul(a, b)]


def worst_row(torch, mine, theirs):
    """The largest relative difference of a row. NaN counts as the largest."""
    parts = [tensor.reshape(-1, tensor.shape[-1]).split(1 << 17) for tensor in (mine, theirs)]
    return max(peers_cells.worst_row(torch, *pair) for pair in zip(*parts))  # double copies of all would be large


def differences(operands, torch, sides):
    """side -> how far ours is from it."""
    worst = {}
    for number, mine in enumerate(sides[OURS]):
        output = operands.sets[number][3]
        output.fill_(math.nan)
        mine()
        for name in (name for name in sides if name in (*PEERS, STANDARD)):
            error = worst_row(torch, output, sides[name][number]())
            worst[name] = max(worst.get(name, 0.0), error)
    return worst
