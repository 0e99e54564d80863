# SPDX-License-Identifier: Apache-2.0
"""The C++ program that runs recorded cases: compile it, run it, read what it prints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from xruntime.native import ISA_VARIABLE

KERNELS = Path(__file__).parents[3] / "kernels"
SOURCES = Path(__file__).parents[1] / "programs" / "recorded"
THREADS = ("1", "3")
LIMIT_S = 120
ITS_OWN_SUMS = ("decode", "interaction", "linear_rows")
"""Operators with an order of summation for each instruction set, as their headers say."""


def run_checked(*words: str | Path) -> str:
    """Run a program that must succeed; return what it prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compile_driver(compiler: str, library: Path, directory: Path, *options: str) -> Path:
    """Compile the program against a libxkernels.so; it looks for the library where it is now."""
    program = directory / "recorded"
    run_checked(
        *(compiler, "-std=c++17", "-O1", "-fopenmp", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow"),
        *("-Werror", "-I", KERNELS / "include", *sorted(SOURCES.glob("*.cpp")), library),
        *("-o", program, f"-Wl,-rpath,{library.parent}", *options),
    )
    return program


def run_driver(
    program: Path, cases: Path, isa: str, *, under: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run all cases on one instruction set, with each number of threads; perhaps under an emulator."""
    # Idle threads sleep: emulated ones, and those of busy machines, would spin for long.
    variables = {ISA_VARIABLE: isa, "OMP_WAIT_POLICY": "passive", "OMP_DYNAMIC": "false"}
    return subprocess.run(
        [*under, program, cases, *THREADS],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def checksums(done: subprocess.CompletedProcess[str], isa: str) -> dict[str, str]:
    """The checksum of each case, by its name, of a run that must have succeeded on that instruction set."""
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith(f"instruction set {isa} of ")
    return dict(line.split() for line in lines)


def on_every_isa(sums: dict[str, str]) -> dict[str, str]:
    """The checksums that do not depend on the instruction set, which those of `ITS_OWN_SUMS` do."""
    return {name: sum_ for name, sum_ in sums.items() if not name.startswith(ITS_OWN_SUMS)}
