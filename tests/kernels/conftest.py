# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from xruntime import KernelsUnavailableError
from xruntime.native import library_path


@pytest.fixture
def built_library(needs: Callable[[object, str], None]) -> Path:
    """The libxkernels.so that xruntime would load."""
    try:
        return library_path()
    except KernelsUnavailableError:
        needs(None, "libxkernels.so (g++ at hand when xlaunch was installed)")
        raise
