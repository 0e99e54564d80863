# SPDX-License-Identifier: Apache-2.0
"""What C++ users get: an installed header, library and CMake package, and an example on them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

# `test_build` configures CMake among the short tests.
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "native"

Needs = Callable[[object, str], None]
CMake = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cmake(needs: Needs) -> CMake:
    """Run cmake with these words, GCC its compiler."""
    program = shutil.which("cmake")
    needs(program, "cmake")
    compiler = shutil.which("g++")
    needs(compiler, "g++")

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), *(str(word) for word in words)],
            env=os.environ | {"CXX": str(compiler)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def succeed(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def package(built_library: Path, needs: Needs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the installed package's native files, elsewhere than where they were installed."""
    cmake_files = Path("share", "cmake", "xkernels")
    needs((built_library.parent / cmake_files).is_dir(), "the library that pip installs")
    moved = tmp_path_factory.mktemp("package") / "xruntime"
    for part in ("include", cmake_files):
        shutil.copytree(built_library.parent / part, moved / part)
    shutil.copy(built_library, moved)
    return moved


@pytest.fixture(scope="module")
def program(cmake: CMake, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built against that package."""
    build = tmp_path_factory.mktemp("example")
    succeed(cmake("-S", EXAMPLE, "-B", build, f"-DCMAKE_PREFIX_PATH={package}"))
    succeed(cmake("--build", build))
    return build / "pinned_team"


def test_the_package_names_no_place_of_this_machine(package: Path, built_library: Path) -> None:
    files = sorted((package / "share" / "cmake" / "xkernels").iterdir())
    assert [file.name for file in files] == [
        "xkernelsConfig.cmake",
        "xkernelsConfigVersion.cmake",
        "xkernelsTargets-release.cmake",
        "xkernelsTargets.cmake",
    ]
    for file in files:
        assert str(ROOT) not in file.read_text()
        assert str(built_library.parent) not in file.read_text()


def test_the_example_pins_its_team_and_computes(program: Path, needs: Needs) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    needs(len(allowed) >= 2, "two CPUs")
    first, second = allowed[:2]
    done = subprocess.run(
        [program, str(second), str(first)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "a team of 2",
        f"thread 0: CPUs {first},{second}",
        f"thread 1: CPUs {first}",
    ]
    sums = [int(line.split(" = ")[1]) for line in lines[3:6]]
    assert sums == [sum(i * i for i in range(n + 1)) for n in (1000, 2000, 3000)]
    assert lines[6] == f"the main thread: CPUs {','.join(map(str, allowed))}, as before"


def test_the_example_says_which_cpus_it_cannot_have(program: Path) -> None:
    done = subprocess.run([program, "16000"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "pinned_team: cannot use CPUs 16000: Invalid argument\n"


def test_a_version_that_may_differ_is_not_found(
    cmake: CMake, package: Path, tmp_path: Path
) -> None:
    """Below 1.0 any minor version may change what functions do."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18...4.0)\nproject(asking LANGUAGES CXX)\n"
        "foreach(wanted 0.1 0.2 1.0)\n"
        "  find_package(xkernels ${wanted} QUIET)\n"
        '  message(STATUS "${wanted}: ${xkernels_FOUND}, ${xkernels_CONSIDERED_VERSIONS}")\n'
        "endforeach()\n"
    )
    done = cmake("-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={package}")
    succeed(done)
    found = re.findall(r"-- (\S+): ([01]), \d", done.stdout)
    assert found == [("0.1", "1"), ("0.2", "0"), ("1.0", "0")], done.stdout
