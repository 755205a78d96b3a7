# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4 under the name of its package, flash_attn.cute."""

from .interface import __version__, flash_attn_func, flash_attn_varlen_func

__all__ = ["__version__", "flash_attn_func", "flash_attn_varlen_func"]
