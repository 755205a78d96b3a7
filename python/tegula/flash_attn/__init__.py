# SPDX-License-Identifier: Apache-2.0
"""tegula under the names of flash-attn 2, FlashAttention-3 and FlashAttention-4.

    from tegula.flash_attn import flash_attn_func                       # flash-attn 2
    from tegula.flash_attn.flash_attn_3 import flash_attn_with_kvcache  # FlashAttention-3
    from tegula.flash_attn.cute import flash_attn_varlen_func           # FlashAttention-4

or, for programs that import the packages themselves, first of all:

    import tegula; tegula.install_as_flash_attn()

Signatures and return values are those of the packages; what the options do stands in
docs/python.md."""

from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "__version__",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
# The release whose interface this is. Plain, since callers compare it part by part with int().
__version__ = "2.8.3"
