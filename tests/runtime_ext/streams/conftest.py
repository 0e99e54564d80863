# SPDX-License-Identifier: Apache-2.0
"""What tests of compiled code need."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable

import pytest

from xruntime import KernelsUnavailableError
from xruntime.native import library_path

Needs = Callable[[object, str], None]


@pytest.fixture(scope="session")
def compiler(needs: Needs) -> None:
    """torch can compile here."""
    needs(importlib.util.find_spec("torch"), "torch")
    needs(shutil.which(os.environ.get("CXX", "g++")), "g++")
    try:
        library_path()
    except KernelsUnavailableError:
        needs(None, "libxkernels.so (g++ at hand when xlaunch was installed)")
