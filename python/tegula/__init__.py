# SPDX-License-Identifier: Apache-2.0
"""tegula: exact attention, tile by tile, on any array that speaks DLPack."""

from __future__ import annotations

from ._core import __version__, capability, trim_memory
from .core import Plan, append_kv, attention, attention_varlen, attention_with_cache, combine, explain, plan

__all__ = [
    "Plan", "__version__", "append_kv", "attention", "attention_varlen", "attention_with_cache", "capability", "combine",
    "explain", "install_as_flash_attn", "plan", "trim_memory",
]  # fmt: skip


def __getattr__(name: str):
    if name == "install_as_flash_attn":
        from .stand_in import install_as_flash_attn

        return install_as_flash_attn
    raise AttributeError(f"module 'tegula' has no attribute {name!r}")
