# SPDX-License-Identifier: Apache-2.0
"""Finding and loading the native library, and what is said when that fails."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.runtime_ext.conftest import Needs

import xruntime
from xruntime import KernelsUnavailableError, native, openmp_team


@pytest.fixture(autouse=True)
def forget_the_loaded_library() -> Iterator[None]:
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def test_absent_library_is_named_with_the_way_to_get_it(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("XRUNTIME_KERNELS", raising=False)
    monkeypatch.setattr(xruntime, "__path__", [str(tmp_path)])
    with pytest.raises(KernelsUnavailableError, match=r"has no libxkernels.so.*apt-get.*pip"):
        openmp_team()


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "XRUNTIME_KERNELS={path}.*no such file"), ("not a library", "cannot be loaded")],
)
def test_named_file_that_is_no_library(
    monkeypatch, tmp_path, content: str | None, said: str
) -> None:
    path = tmp_path / "libxkernels.so"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("XRUNTIME_KERNELS", str(path))
    with pytest.raises(KernelsUnavailableError, match=said.format(path=path)):
        openmp_team()


def test_library_that_is_another(monkeypatch, needs: Needs) -> None:
    torch = find_spec("torch")
    needs(torch, "torch")
    path = Path(torch.origin).parent / "lib" / "libgomp.so.1"
    needs(path.is_file(), f"{path}, which wheels of torch carry")
    monkeypatch.setenv("XRUNTIME_KERNELS", str(path))
    with pytest.raises(KernelsUnavailableError, match="xk_abi_version"):
        openmp_team()


def test_library_of_another_release(monkeypatch, tmp_path, needs: Needs) -> None:
    compiler = shutil.which("gcc")
    needs(compiler, "gcc")
    source, path = tmp_path / "other.c", tmp_path / "libxkernels.so"
    source.write_text("int xk_abi_version(void) { return 999; }\n")
    subprocess.run([str(compiler), "-shared", "-fPIC", source, "-o", path], check=True)
    monkeypatch.setenv("XRUNTIME_KERNELS", str(path))
    with pytest.raises(
        KernelsUnavailableError, match=rf"version 999, .* needs {native.ABI_VERSION}:"
    ):
        openmp_team()
