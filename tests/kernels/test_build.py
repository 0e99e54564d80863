# SPDX-License-Identifier: Apache-2.0
"""Which compiler the build takes; where there is none it steps aside and says so."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kernels.recorded import cases, driver

from xruntime import native

KERNELS = Path(__file__).parents[2] / "kernels"
NO_COMPILER = "-DCMAKE_CXX_COMPILER=/nowhere/g++"

Needs = Callable[[object, str], None]
Configure = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def configure(needs: Needs, tmp_path: Path) -> Configure:
    """Configure the build with these options and variables, in `tmp_path`/build."""
    cmake = shutil.which("cmake")
    needs(cmake, "cmake")

    def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if name != "CXX"}
        return subprocess.run(
            [str(cmake), "-S", KERNELS, "-B", tmp_path / "build", *options],
            env=inherited | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def compiler_chosen(build: Path) -> str:
    """The compiler that CMake remembers; nothing where none was taken."""
    found = re.search(
        r"^CMAKE_CXX_COMPILER:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE
    )
    return found[1] if found else ""


def fake_clang(directory: Path) -> Path:
    """A program that says of itself what Clang does."""
    path = directory / "clang++"
    path.write_text("#!/bin/sh\necho '#define __GNUC__ 4'\necho '#define __clang__ 1'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_without_a_compiler_nothing_is_built_and_a_warning_says_so(
    configure: Configure, tmp_path: Path
) -> None:
    done = configure(NO_COMPILER)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    assert "libxkernels.so is not built: CMAKE_CXX_COMPILER=/nowhere/g++" in told
    assert "xlaunch and xtune work without it" in told
    installed = tmp_path / "installed"
    subprocess.run(
        ["cmake", "--install", tmp_path / "build", "--prefix", installed],
        check=True,
        capture_output=True,
    )
    assert not list(installed.rglob("*"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "cxx", "chosen"),
    [
        (["-DXKERNELS=OFF"], None, ""),
        # As under a Python that was built with a compiler which this machine has not.
        (["-DXKERNELS=ON"], "/nowhere/clang++ -pthread", "g++"),
        (["-DXKERNELS=ON"], "{directory}/clang++", "g++"),
        (["-DXKERNELS=ON"], "{directory}/my-g++", "my-g++"),
    ],
    ids=["not to be built", "absent", "Clang", "another name of GCC"],
)
def test_the_compiler_is_gcc(
    configure: Configure,
    needs: Needs,
    tmp_path: Path,
    options: list[str],
    cxx: str | None,
    chosen: str,
) -> None:
    compiler = shutil.which("g++")
    needs(compiler, "g++")
    fake_clang(tmp_path)
    (tmp_path / "my-g++").symlink_to(str(compiler))
    done = configure(*options, **({} if cxx is None else {"CXX": cxx.format(directory=tmp_path)}))
    assert done.returncode == 0, done.stderr
    assert Path(compiler_chosen(tmp_path / "build")).name == chosen
    assert ("XKERNELS=OFF" in done.stdout) == (chosen == "")


@pytest.mark.long
def test_a_compiler_that_was_asked_for_is_refused_if_it_cannot_build(
    configure: Configure, tmp_path: Path
) -> None:
    for compiler, told in (
        (NO_COMPILER, "libxkernels.so cannot be built"),
        (f"-DCMAKE_CXX_COMPILER={fake_clang(tmp_path)}", "is not a working GCC"),
    ):
        done = configure("-DXKERNELS=ON", compiler)
        assert done.returncode != 0
        assert told in done.stderr
        shutil.rmtree(tmp_path / "build")


@pytest.mark.full
def test_the_oldest_gcc_builds_it_and_its_library_computes_the_same_bits(
    configure: Configure, needs: Needs, built_library: Path, tmp_path: Path
) -> None:
    compiler = shutil.which("g++-11")
    needs(compiler, "g++-11 (Debian: g++-11)")
    done = configure(
        *("-DXKERNELS=ON", f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_CXX_FLAGS=-Werror")
    )
    assert done.returncode == 0, done.stderr
    build = tmp_path / "build"
    driver.run_checked("cmake", "--build", build, "--parallel", "2")
    cases.write_cases(tmp_path / "cases")
    found = []
    for library in (build / "libxkernels.so", built_library):
        program = driver.compile_driver(str(compiler), library, build)
        found.append(
            [
                driver.on_every_isa(
                    driver.checksums(driver.run_driver(program, tmp_path / "cases", isa), isa)
                )
                for isa in native.supported_isas()
            ]
        )
        assert driver.run_driver(program, Path("/dev/null"), "").stdout.endswith(
            f" of {','.join(native.supported_isas())}\n"
        )
    assert found[0] == found[1]
