# SPDX-License-Identifier: Apache-2.0
"""Instances that start cold at once, and instances that are killed while they compile."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.launcher.cache.compiling import (
    NET,
    ONE_COMPILATION,
    PATIENCE_S,
    XLAUNCH,
    Compiler,
    environment,
    find_compiler,
)

from xlaunch.cache.check import verify


class Place(NamedTuple):
    """A program, a home, and a directory of caches, all new."""

    directory: Path
    compiler: Compiler

    @property
    def base(self) -> Path:
        return self.directory / "caches"

    def start(self, *options: str, **variables: str) -> subprocess.Popen[str]:
        """Begin to launch a program that compiles one kernel and checks its result."""
        (self.directory / "net.py").write_text(NET)
        words = ["--ncores", "1", "--oversubscribe", "--cache-dir", str(self.base), *options]
        return subprocess.Popen(
            [*XLAUNCH, *words, "net.py"],
            cwd=self.directory,
            env=environment(self.directory, **self.compiler.variables(), **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, **variables: str) -> str:
        """Launch it; what it printed."""
        process = self.start(*options, **variables)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        return out

    def libraries(self) -> list[Path]:
        """The compiled kernels, whole or not."""
        return [*self.base.glob("inductor/*/*/*.main.so")]


@pytest.fixture
def place(tmp_path: Path, needs: Callable[[object, str], None]) -> Place:
    return Place(tmp_path, find_compiler(tmp_path, needs))


def wait_for(found: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for something that a launch does; torch alone may take seconds to import."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline


def compiling_instance(base: Path) -> int | None:
    """The process of the instance that compiles the kernel; None if the compiler does not run."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            compiler = os.path.basename(words[0]) == b"cc1plus"
            if compiler and any(os.fsencode(base) in w and b".main.cpp" in w for w in words):
                return _parent(_parent(int(name)))
        except OSError:
            continue
    return None


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.full
def test_eight_cold_starts_at_once(place: Place):
    printed = place.run("--instances", "8")
    assert sorted(printed.splitlines()) == [f"[{index}] correct" for index in range(8)]
    assert verify(str(place.base)) == []
    compiled = [line for line in place.compiler.runs() if ".main.cpp" in line]
    assert len(compiled) == len(place.libraries()) == 1


@pytest.mark.full
def test_an_instance_is_killed_while_it_compiles(place: Place):
    process = place.start("--instances", "4", "--on-failure", "continue", **ONE_COMPILATION)
    victim: list[int | None] = []

    def is_compiling() -> bool:
        victim[:] = [compiling_instance(place.base)]
        return victim[0] is not None

    wait_for(is_compiling, process)
    assert victim[0] is not None
    assert place.libraries() == []  # it does not link yet
    os.kill(victim[0], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGKILL, err
    assert [line.partition("] ")[2] for line in out.splitlines()] == ["correct"] * 3, err
    assert verify(str(place.base)) == []
    assert place.run(**ONE_COMPILATION) == "correct\n"
    assert len(place.libraries()) == 1


@pytest.mark.long
def test_the_next_launch_repairs_what_a_killed_linker_leaves(place: Place):
    """Linkers write into the final file, and torch loads it if it exists, however short it is."""
    process = place.start("--supervise", **ONE_COMPILATION)
    instance: list[int] = []

    def is_linking() -> bool:
        found = compiling_instance(place.base)
        instance[:] = instance if found is None else [found]
        return bool(place.libraries())

    wait_for(is_linking, process)
    os.kill(instance[0], signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGKILL
    assert place.run(**ONE_COMPILATION) == "correct\n"
    assert verify(str(place.base)) == []
