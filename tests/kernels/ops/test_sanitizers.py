# SPDX-License-Identifier: Apache-2.0
"""The operators under AddressSanitizer and UndefinedBehaviorSanitizer, on every instruction set."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kernels.recorded import cases, driver

from xruntime import native

KERNELS = Path(__file__).parents[3] / "kernels"
LIMIT_S = 240

Compile = Callable[..., Path]
Needs = Callable[[object, str], None]


@pytest.fixture(scope="module")
def sanitized(needs: Needs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, every access to memory and every operation checked."""
    cmake = shutil.which("cmake")
    needs(cmake, "cmake")
    build = tmp_path_factory.mktemp("sanitized")
    flags = "-g -fsanitize=address,undefined -fno-sanitize-recover=all"
    for words in (
        (
            *("-S", KERNELS, "-B", build, "-DXKERNELS=ON"),
            *(f"-DCMAKE_CXX_FLAGS={flags}", "-DXKERNELS_OPTIMIZATION=-O1"),
        ),
        ("--build", build, "--parallel", "2"),
    ):
        done = subprocess.run([str(cmake), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "libxkernels.so"


@pytest.mark.full
@pytest.mark.timeout(1200)  # compiling with sanitizers takes minutes
def test_decoding_stays_within_its_memory(sanitized: Path, compile_program: Compile) -> None:
    program = compile_program(
        *("decode", "-O1", "-g", "-fopenmp", "-fsanitize=address,undefined"),
        *("-fno-sanitize-recover=all", sanitized, f"-Wl,-rpath,{sanitized.parent}"),
    )
    for isa in native.supported_isas():
        done = subprocess.run(
            [program],
            env=os.environ | {native.ISA_VARIABLE: isa},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{isa}: 1200 calls\n"


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_recorded_calls_stay_within_their_memory(
    sanitized: Path, needs: Needs, tmp_path: Path
) -> None:
    compiler = shutil.which("g++")
    needs(compiler, "g++")
    program = driver.compile_driver(
        str(compiler),
        sanitized,
        tmp_path,
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    )
    cases.write_cases(tmp_path / "cases")
    for isa in native.supported_isas():
        done = driver.run_driver(program, tmp_path / "cases", isa)
        assert done.stderr == ""
        assert driver.checksums(done, isa)
