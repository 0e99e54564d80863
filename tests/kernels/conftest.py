# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from xruntime import KernelsUnavailableError
from xruntime.native import library_path

KERNELS = Path(__file__).parents[2] / "kernels"
PROGRAMS = Path(__file__).parent / "programs"

Needs = Callable[[object, str], None]
Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def built_library(needs: Needs) -> Path:
    """The libxkernels.so that xruntime would load."""
    try:
        return library_path()
    except KernelsUnavailableError:
        needs(None, "libxkernels.so (g++ at hand when xlaunch was installed)")
        raise


@pytest.fixture(scope="session")
def header_directory(built_library: Path) -> Path:
    """Where the xkernels.h of that library is: beside it, or among the sources of a bare build."""
    installed = built_library.parent / "include"
    return installed if (installed / "xkernels.h").is_file() else KERNELS / "include"


@pytest.fixture(scope="session")
def compile_program(
    needs: Needs, header_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Compile:
    """`compile_program(name, *arguments)`: programs/NAME.cpp, compiled with more arguments to g++."""
    compiler = shutil.which("g++")
    needs(compiler, "g++")

    def build(name: str, *arguments: str | Path) -> Path:
        program = tmp_path_factory.mktemp(name) / name
        done = subprocess.run(
            [
                *(str(compiler), "-std=c++17", "-pthread", "-Wall", "-Wextra", "-Wpedantic"),
                *("-Wshadow", "-Werror", "-I", header_directory, PROGRAMS / f"{name}.cpp"),
                *(*arguments, "-ldl", "-o", program),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return program

    return build
