# SPDX-License-Identifier: Apache-2.0
"""The trace file of data/README.md: how its o is computed and how its bytes are written."""

import json
import math
import os
from pathlib import Path

import torch

FORMAT = "tegula-trace"
FORMAT_VERSION = "1"


def reference_attention(q, k, v, scale, window_left=-1, softcap=0.0, sink=None, block=128):
    """fp32 [n, hq, dv] = causal attention of q [n, hq, d] on k [m, hkv, d], v [m, hkv, dv].

    Bottom-right aligned. Blocks of queries bound the memory to hq * block * m scores.
    """
    n, heads_q, _ = q.shape
    m, heads_kv, _ = k.shape
    group = heads_q // heads_kv
    q = q.float().unflatten(1, (heads_kv, group)).permute(1, 2, 0, 3)  # [hkv, group, n, d]
    k = k.float().permute(1, 2, 0).unsqueeze(1)  # [hkv, 1, d, m]
    v = v.float().permute(1, 0, 2).unsqueeze(1)  # [hkv, 1, m, dv]
    out = torch.empty(heads_kv, group, n, v.shape[-1])
    for begin in range(0, n, block):
        end = min(begin + block, n)
        position = torch.arange(begin, end).unsqueeze(1) + (m - n)
        first = 0 if window_left < 0 else max(0, begin + m - n - window_left)
        last = end + m - n
        key = torch.arange(first, last)
        s = torch.matmul(q[:, :, begin:end], k[..., first:last]) * scale
        if softcap > 0:
            s = softcap * torch.tanh(s / softcap)
        visible = key <= position
        if window_left >= 0:
            visible &= key >= position - window_left
        s = s.masked_fill(~visible, -math.inf)
        if sink is not None:
            s = torch.cat(
                [s, sink.float().view(heads_kv, group, 1, 1).expand(-1, -1, end - begin, 1)], dim=-1
            )
        p = torch.softmax(s, dim=-1)[..., : last - first]
        out[:, :, begin:end] = torch.matmul(p, v[..., first:last, :])
    return out.permute(2, 0, 1, 3).flatten(1, 2).contiguous()


def write_safetensors(path, tensors, metadata):
    """Own writer: the package orders the metadata at random; equal runs are to give equal bytes."""
    names = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int32: "I32"}
    header, offset = {"__metadata__": dict(sorted(metadata.items()))}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    partial = Path(f"{path}.partial")
    try:
        with open(partial, "wb") as out:
            out.write(len(text).to_bytes(8, "little"))
            out.write(text)
            for tensor in tensors.values():
                out.write(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return 8 + len(text) + offset
