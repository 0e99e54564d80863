# SPDX-License-Identifier: Apache-2.0
"""Where the OpenMP runtimes are that tests preload."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
from pathlib import Path


def intel_runtime() -> str | None:
    """libiomp5.so of PyPI's intel-openmp, where that is installed."""
    try:
        files = importlib.metadata.files("intel-openmp") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(file.locate()).resolve() for file in files if file.name == "libiomp5.so"]
    return next((str(path) for path in found if path.is_file()), None)


def llvm_runtime() -> str | None:
    """libomp.so.5 of Debian's libomp5, by the name that the loader knows."""
    return ctypes.util.find_library("omp")
