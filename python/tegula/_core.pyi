# SPDX-License-Identifier: Apache-2.0
"""The extension. Its call functions take operands and options as tuples that core.py orders; use core.py."""

from typing import Any

__version__: str

def forward(operands: tuple[Any, ...], options: tuple[Any, ...], error_word: Any | None) -> None: ...
def plan(operands: tuple[Any, ...], options: tuple[Any, ...]) -> Plan: ...
def append_kv(operands: tuple[Any, ...], rotary_style: int, kv_dtype: int) -> None: ...
def combine(o_partial: Any, lse_partial: Any, out: Any, lse_out: Any | None, sink: Any | None) -> None: ...
def capability(name: str, cuda_index: int = -1) -> int:
    """What the build (or, with cuda_index >= 0, that GPU) can do: tegula_capability of tegula.h."""

def trim_memory() -> int:
    """Frees the library's pool of scratch memory; returns the bytes freed."""

def plan_cache_size() -> int: ...
def plan_cache_clear() -> None: ...

class Plan:
    """What a call will do; immutable, shareable between threads."""

    @property
    def implementation(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_workers(self) -> int: ...
    @property
    def tile_m(self) -> int:
        """Query rows a tile."""
    @property
    def tile_n(self) -> int:
        """Keys a tile."""
    @property
    def num_splits(self) -> int:
        """The most ranges of keys that a sequence is cut into."""
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...
    def prepare(self) -> None:
        """Compiles and loads the kernels that the plan may need. RuntimeError names what is missing."""
    def explain(self) -> str:
        """Text for people: the choice, and why each earlier implementation was refused."""
