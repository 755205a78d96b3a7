# SPDX-License-Identifier: Apache-2.0
"""The package under test: build/python, or what $TEGULA_PYTHON_PATH names; else the one that is installed."""

import os
import pathlib
import sys

import numpy as np
import pytest
from hypothesis import settings

# The examples are the same on every run and machine; a slow neighbour fails nothing.
settings.register_profile("tegula", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tegula")

ROOT = pathlib.Path(__file__).resolve().parents[3]
for folder in (os.environ.get("TEGULA_PYTHON_PATH"), ROOT / "build" / "python"):
    if folder and (pathlib.Path(folder) / "tegula").is_dir():
        sys.path.insert(0, str(folder))
        # Child processes too.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        break


def devices() -> list[str]:
    import torch

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=devices())
def device(request) -> str:
    return request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)
