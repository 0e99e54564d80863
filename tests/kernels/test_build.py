# SPDX-License-Identifier: Apache-2.0
"""The build where there is no compiler: it steps aside, and says so; asked to build, it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.fixture
def configure(
    needs: Callable[[object, str], None], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Configure the build with no C++ compiler in reach."""
    cmake = shutil.which("cmake")
    needs(cmake, "cmake")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(cmake), "-S", KERNELS, "-B", tmp_path, *options],
            env=os.environ | {"CXX": str(tmp_path / "no-such-compiler")},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_without_a_compiler_nothing_is_built_and_a_warning_says_so(configure, tmp_path) -> None:
    done = configure()
    assert done.returncode == 0, done.stderr
    assert "libxkernels.so is not built: no working C++ compiler was found" in done.stderr
    installed = tmp_path / "installed"
    subprocess.run(
        ["cmake", "--install", tmp_path, "--prefix", installed], check=True, capture_output=True
    )
    assert not list(installed.rglob("*"))


def test_asked_to_build_it_fails_without_a_compiler(configure) -> None:
    done = configure("-DXKERNELS=ON")
    assert done.returncode != 0
    assert "libxkernels.so cannot be built: no working C++ compiler" in done.stderr


def test_asked_not_to_build_it_does_not(configure) -> None:
    done = configure("-DXKERNELS=OFF")
    assert done.returncode == 0, done.stderr
    assert "XKERNELS=OFF" in done.stdout
