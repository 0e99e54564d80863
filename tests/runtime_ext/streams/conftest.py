# SPDX-License-Identifier: Apache-2.0
"""What tests of compiled code share: a cache of their own, and threads set up as streams are."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from xruntime import KernelsUnavailableError
from xruntime.native import library_path

Needs = Callable[[object, str], None]


@pytest.fixture(scope="session")
def compiler(needs: Needs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """torch can compile here, and keeps what it makes in a folder of this session."""
    needs(importlib.util.find_spec("torch"), "torch")
    needs(shutil.which(os.environ.get("CXX", "g++")), "g++")
    try:
        library_path()
    except KernelsUnavailableError:
        needs(None, "libxkernels.so (g++ at hand when xlaunch was installed)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield
