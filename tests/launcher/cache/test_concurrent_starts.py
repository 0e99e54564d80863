# SPDX-License-Identifier: Apache-2.0
"""Instances that start cold at once, and instances that are killed while they compile."""

from __future__ import annotations

import signal
import subprocess
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

KILLED = 128 + signal.SIGKILL
# The compiler is a child of the instance that compiles the kernel.
KILL_ONCE = """\
case "$KILLED_WHILE $*" in *.main.so*)
    if test "$KILLED_WHILE" && mkdir "$KILLED_WHILE"; then
        library=$(echo "$*" | sed 's/.* -o //; s/ .*//')
        case "$KILLED_WHILE" in *linking) head -c 100 /bin/sh > "$library";; esac
        kill -KILL $PPID
        exit 1
    fi
esac
"""


class Place(NamedTuple):
    """A program, a home, and a directory of caches, all new."""

    directory: Path
    compiler: Compiler

    @property
    def base(self) -> Path:
        return self.directory / "caches"

    def launch(
        self, *options: str, killed_while: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Launch a program that compiles one kernel and checks its result.

        The first instance that compiles is killed while the compiler compiles or links, if asked.
        """
        (self.directory / "net.py").write_text(NET)
        if killed_while:
            variables["KILLED_WHILE"] = str(self.directory / killed_while)
        words = ["--ncores", "1", "--oversubscribe", "--cache-dir", str(self.base), *options]
        return subprocess.run(
            [*XLAUNCH, *words, "net.py"],
            cwd=self.directory,
            env=environment(self.directory, **self.compiler.variables(), **variables),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def libraries(self) -> list[Path]:
        """The compiled kernels, whole or not."""
        return [*self.base.glob("inductor/*/*/*.main.so")]

    def works(self) -> None:
        """The next launch has a whole kernel."""
        done = self.launch(**ONE_COMPILATION)
        assert (done.returncode, done.stdout) == (0, "correct\n"), done.stderr
        assert verify(str(self.base)) == []
        assert len(self.libraries()) == 1


@pytest.fixture
def place(tmp_path: Path, needs: Callable[[object, str], None]) -> Place:
    return Place(tmp_path, find_compiler(tmp_path, needs, before=KILL_ONCE))


@pytest.mark.full
def test_eight_cold_starts_at_once(place: Place):
    done = place.launch("--instances", "8")
    assert sorted(done.stdout.splitlines()) == [f"[{index}] correct" for index in range(8)]
    assert verify(str(place.base)) == []
    compiled = [line for line in place.compiler.runs() if ".main.cpp" in line]
    assert len(compiled) == len(place.libraries()) == 1


@pytest.mark.full
def test_an_instance_is_killed_while_it_compiles(place: Place):
    options = ("--instances", "4", "--on-failure", "continue")
    done = place.launch(*options, killed_while="compiling", **ONE_COMPILATION)
    assert done.returncode == KILLED, done.stderr
    assert [line.partition("] ")[2] for line in done.stdout.splitlines()] == ["correct"] * 3
    assert verify(str(place.base)) == []
    place.works()


@pytest.mark.long
def test_the_next_launch_repairs_what_a_killed_linker_leaves(place: Place):
    """Linkers write into the final file, and torch loads it if it exists, however short it is."""
    done = place.launch("--supervise", killed_while="linking", **ONE_COMPILATION)
    assert done.returncode == KILLED, done.stderr
    assert [path.stat().st_size for path in place.libraries()] == [100]
    place.works()
