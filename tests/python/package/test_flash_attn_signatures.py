# SPDX-License-Identifier: Apache-2.0
"""Names, parameters, order and defaults of the dialects, beside a committed table of facts."""

import importlib
import inspect
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
TABLE = Path(__file__).with_name("flash_attn_signatures.txt")
# Keyword-only parameters that we add; they may change nothing for a caller who does not know them.
OURS = {"s_aux"}


def facts():
    """(module as imported, our module, function, signature) of each line."""
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            theirs, ours = line.strip("[]").split(": ")
        elif line and not line.startswith("#"):
            name, _, rest = line.partition("(")
            yield theirs, ours, name, "(" + rest


@pytest.mark.parametrize("theirs, ours, name, signature", list(facts()))
def test_signature(theirs, ours, name, signature):
    function = getattr(importlib.import_module(ours), name)
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in inspect.signature(function).parameters.values()
        if not (p.kind is p.KEYWORD_ONLY and p.name in OURS and p.default is None)
    ]
    assert str(inspect.Signature(parameters)) == signature


def test_every_public_name_stands_in_the_table():
    known = {(ours, name) for _, ours, name, _ in facts()}
    for ours in {ours for ours, _ in known}:
        for name in importlib.import_module(ours).__all__:
            function = getattr(importlib.import_module(ours), name)
            elsewhere = name.startswith("index_") or name == "apply_rotary_emb_func"  # see below
            if callable(function) and not elsewhere:
                assert (ours, name) in known, f"{ours}.{name}"


@pytest.mark.parametrize(
    "module, names",
    [
        # What the packages' __init__ exports (flash-attn 2, FlashAttention-4).
        (
            "tegula.flash_attn",
            "__version__ flash_attn_func flash_attn_kvpacked_func flash_attn_qkvpacked_func "
            "flash_attn_varlen_func flash_attn_varlen_kvpacked_func "
            "flash_attn_varlen_qkvpacked_func flash_attn_with_kvcache",
        ),
        ("tegula.flash_attn.cute", "__version__ flash_attn_func flash_attn_varlen_func"),
        # Private ones that diffusers, ring-attention packages and TransformerEngine import.
        (
            "tegula.flash_attn.flash_attn_interface",
            "_wrapped_flash_attn_forward _wrapped_flash_attn_backward _flash_attn_backward "
            "_wrapped_flash_attn_varlen_forward _wrapped_flash_attn_varlen_backward "
            "_flash_attn_varlen_backward",
        ),
        ("tegula.flash_attn.flash_attn_3", "_flash_attn_backward"),
        (
            "tegula.flash_attn.bert_padding",
            "index_first_axis index_first_axis_residual index_put_first_axis",
        ),
        ("tegula.flash_attn.rotary", "apply_rotary_emb_func"),
    ],
)
def test_names_without_a_line_of_their_own(module, names):
    for name in names.split():
        assert hasattr(importlib.import_module(module), name), name
