# SPDX-License-Identifier: Apache-2.0
"""The Python in README.md and docs/python.md runs, and prints what its comments say."""

import contextlib
import io
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Needs a model: test_transformers.py; installs import names in the process: test_flash_attn_install.py.
ELSEWHERE = ("transformers", "install_as_flash_attn", "flash_attn")


def blocks():
    for name in ("README.md", "docs/python.md"):
        for block in re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE):
            if not any(word in block for word in ELSEWHERE):
                yield pytest.param(block, id=f"{name}: {block.strip().splitlines()[-1][:40]}")


@pytest.mark.parametrize("block", list(blocks()))
def test_block(block):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "document", "exec"), {})
    for expected in re.findall(r"print\(error\)  # (.*)", block):
        assert printed.getvalue().strip() == expected


def test_there_are_blocks():
    assert len(list(blocks())) >= 6
