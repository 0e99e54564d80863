# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kernels.ops.instruction_sets import DECLARING_MODULES

from xruntime import native

Load = Callable[[str], ctypes.CDLL]


@pytest.fixture(scope="session")
def load(built_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """`load(isa)`: the library on that instruction set; a copy of the file is another library."""
    loaded: dict[str, ctypes.CDLL] = {}
    pytest.importorskip("torch")
    for name in DECLARING_MODULES:
        importlib.import_module(name)

    def library_on(isa: str) -> ctypes.CDLL:
        if isa not in loaded:
            path = shutil.copy(built_library, tmp_path_factory.mktemp(isa) / "libxkernels.so")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(native.ISA_VARIABLE, isa)
                loaded[isa] = ctypes.CDLL(path)
            native._declare(loaded[isa], {**native._WAITING, **native._QUICK})
        return loaded[isa]

    return library_on


@pytest.fixture(autouse=True)
def team(built_library: Path) -> Iterator[Callable[[int], object]]:
    """Resize the calling thread's team, which has one thread here: spinning takes long on busy CPUs."""
    torch = pytest.importorskip("torch")
    torch.get_num_threads()  # it sets the number in a thread's first call
    resize = native.quick_library().xk_team_resize
    before = resize(1)
    yield resize
    resize(before)
