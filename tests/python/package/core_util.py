# SPDX-License-Identifier: Apache-2.0
"""Inputs for the tests of the core: random arrays of any framework, and arguments on a device."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

NUMPY_TYPES = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def tensor(rng: np.random.Generator, *shape: int, dtype: str = "float32", device: str = "cpu") -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape, np.float32)).to(getattr(torch, dtype)).to(device)


def array(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape, np.float32).astype(NUMPY_TYPES[dtype])


def int32(values, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=device)


def paged(rng: np.random.Generator, cache: torch.Tensor, page_size: int):
    """[B, capacity, H, D] as (pages, page_table): the same rows, scattered."""
    batch, capacity, heads, dim = cache.shape
    count = capacity // page_size
    order = torch.from_numpy(rng.permutation(batch * count))
    pages = torch.empty(batch * count, page_size, heads, dim, dtype=cache.dtype, device=cache.device)
    pages[order.to(cache.device)] = cache.reshape(batch * count, page_size, heads, dim)
    return pages, order.view(batch, count).to(device=cache.device, dtype=torch.int32)


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The same memory, whatever the type."""
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        raw = np.int16 if array.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(array.view(raw)).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def bits(array) -> np.ndarray:
    if isinstance(array, torch.Tensor):
        array = array.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[array.itemsize]).numpy()
    return np.ascontiguousarray(array).view(np.uint8)
