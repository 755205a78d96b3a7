# SPDX-License-Identifier: Apache-2.0
"""install_as_flash_attn(): the dialect modules under the import names of the three packages.

Programs find those packages in two ways: by importing (or importlib.util.find_spec), and by asking
importlib.metadata for their distributions. A finder at the head of sys.meta_path answers both. It
must be there before the first question, since answers are kept: by sys.modules, and by transformers
in its own caches. Too late is an error that says what came first."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

# Import name -> our module, or None for a package that holds nothing itself.
_MODULES: dict[str, str | None] = {
    "flash_attn": "tegula.flash_attn",
    "flash_attn.bert_padding": "tegula.flash_attn.bert_padding",
    "flash_attn.flash_attn_interface": "tegula.flash_attn.flash_attn_interface",
    "flash_attn.layers": None,
    "flash_attn.layers.rotary": "tegula.flash_attn.rotary",
    "flash_attn.ops": None,
    "flash_attn.ops.triton": None,
    "flash_attn.ops.triton.rotary": "tegula.flash_attn.rotary",
    "flash_attn.cute": "tegula.flash_attn.cute",
    "flash_attn.cute.interface": "tegula.flash_attn.cute.interface",
    "flash_attn_interface": "tegula.flash_attn.flash_attn_3",
    "flash_attn_3": None,
    "flash_attn_3.flash_attn_interface": "tegula.flash_attn.flash_attn_3",
}
_PACKAGES = {name.rpartition(".")[0] for name in _MODULES}
# Distribution -> (version, import names at the top). The versions are those of the releases whose
# interfaces the modules have, since callers compare them to know what they may pass. The first is
# the last release of flash-attn 2 without a suffix.
_DISTRIBUTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "flash-attn": ("2.8.3", ("flash_attn",)),
    "flash-attn-3": ("3.0.0", ("flash_attn_3", "flash_attn_interface")),
    "flash-attn-4": ("4.0.0b36", ("flash_attn",)),
}
_AHEAD = "call tegula.install_as_flash_attn() first of all, before other imports"


class _Loader(importlib.abc.Loader):
    """Fills a module of the foreign name with the names of ours; ours stays as it is."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source = _MODULES[module.__name__]
        if source is None:
            module.__doc__ = "Part of tegula's stand-in for this package."
            return
        ours = importlib.import_module(source)
        own = {
            name
            for name, value in vars(ours).items()
            if callable(value) and getattr(value, "__module__", None) == ours.__name__
        }
        for name in own.union(ours.__all__, ("__all__", "__doc__", "__file__")):
            setattr(module, name, getattr(ours, name))
        if module.__name__ == "flash_attn":  # importing the package imports this submodule there
            importlib.import_module("flash_attn.flash_attn_interface")


class _Distribution(importlib.metadata.Distribution):
    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        version, top = _DISTRIBUTIONS[self._name]
        if filename in ("METADATA", "PKG-INFO"):
            return (
                f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {version}\n"
                f"Summary: tegula's stand-in for {self._name} (tegula.install_as_flash_attn)\n"
            )
        if filename == "top_level.txt":
            return "".join(f"{name}\n" for name in top)
        if filename == "INSTALLER":
            return "tegula\n"
        return None

    def locate_file(self, path: Any) -> Any:
        return os.path.join(os.path.dirname(__file__), path)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Finder(importlib.abc.MetaPathFinder):
    """Answers for the names of the tables above and for nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        return importlib.util.spec_from_loader(
            fullname, _Loader(), origin=__file__, is_package=fullname in _PACKAGES
        )

    def find_distributions(
        self, context: Any = None
    ) -> Iterable[importlib.metadata.Distribution]:
        if context is not None and "path" in vars(context):
            return  # asked for what lies in some folder
        asked = getattr(context, "name", None)
        for name in _DISTRIBUTIONS:
            if asked is None or _normalized(asked) == name:
                yield _Distribution(name)

    def invalidate_caches(self) -> None:
        pass


_finder = _Finder()


def _is_ours(module: ModuleType) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _Loader)


def _check_imported() -> None:
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None and not _is_ours(module):
            where = getattr(module, "__file__", None) or "an unknown place"
            raise RuntimeError(f"{name} has been imported from {where} already: {_AHEAD}")


def _check_transformers() -> None:
    """transformers keeps what it was told once about these packages."""
    asked = sys.modules.get("transformers.utils.import_utils")
    for name in (
        "_package_distribution_mapping",
        "is_flash_attn_2_available",
        "is_flash_attn_3_available",
        "is_flash_attn_4_available",
        "is_flash_attn_greater_or_equal",
    ):
        cache_info = getattr(getattr(asked, name, None), "cache_info", None)
        if cache_info is not None and cache_info().currsize:
            raise RuntimeError(
                f"transformers has asked for flash_attn and keeps the answer ({name}): {_AHEAD}"
            )


def install_as_flash_attn() -> None:
    """Makes `import flash_attn`, `flash_attn.cute`, `flash_attn_interface` (and their submodules
    that stand in docs/python.md) mean tegula's dialect modules in this process, and
    importlib.metadata know the distributions flash-attn, flash-attn-3 and flash-attn-4. Packages of
    those names that are installed are hidden, not changed. Calling it again does nothing.

    RuntimeError if one of the packages has been imported already, or if transformers has asked for
    them already and keeps the answer."""
    if _finder in sys.meta_path:
        return
    _check_imported()
    _check_transformers()
    sys.meta_path.insert(0, _finder)
    importlib.invalidate_caches()


def uninstall_as_flash_attn() -> None:
    """Undoes install_as_flash_attn() for imports to come; modules that hold our functions keep
    them."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in _MODULES:
        if name in sys.modules and _is_ours(sys.modules[name]):
            del sys.modules[name]
    importlib.invalidate_caches()
