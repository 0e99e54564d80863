# SPDX-License-Identifier: Apache-2.0
"""xlaunch as PID 1 of a namespace with a /proc of its own, as in a container: it waits for orphans, passes
signals on, and ends with the program's exit code."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launcher.cli.commands import XLAUNCH
from tests.launcher.launching import PATIENCE_S, children_of, wait_until

QUIET = ("--supervise", "--allocator", "glibc", "-q")

pytestmark = pytest.mark.machine


@pytest.fixture
def first(unshared: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Start a launch as PID 1."""
    return functools.partial(unshared, "--mount-proc", *XLAUNCH, *QUIET)


@pytest.mark.parametrize(
    ("options", "program", "code"),
    [
        ((), "exit 7", 7),
        ((), "kill -9 $$", 137),
        (("--instances", "2", "--ncores", "1", "--oversubscribe"), "exit $((XLAUNCH_INSTANCE_INDEX * 5))", 5),
        (("--timeout", "200ms"), "sleep 600", 124),
    ],
)  # fmt: skip
def test_it_ends_with_the_code_of_the_program(
    first: Callable[..., subprocess.Popen[str]], options: tuple[str, ...], program: str, code: int
) -> None:
    run = first(*options, "sh", "-c", program)
    run.communicate(timeout=3 * PATIENCE_S)
    assert run.returncode == code


def test_orphans_are_waited_for(first: Callable[..., subprocess.Popen[str]]) -> None:
    """Fifty orphans end while the program runs, and none of them stays a zombie."""
    orphans = "for i in $(seq 50); do (sleep 0.05 &) ; done; sleep 0.5"
    count = (
        "while grep -sh '^State:.Z' /proc/[0-9]*/status; do sleep 0.1; done; echo none; echo $PPID"
    )
    run = first("bash", "-c", f"{orphans}; {count}")
    out, err = run.communicate(timeout=3 * PATIENCE_S)
    assert (run.returncode, err) == (0, "")
    assert out.splitlines()[-2] == "none"
    assert out.splitlines()[-1] not in ("0", "1"), "the supervisor is another process"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_signals_reach_the_program(
    first: Callable[..., subprocess.Popen[str]], tmp_path: Path, name: str
) -> None:
    trap = f"trap 'echo got {name}; exit 9' {name.removeprefix('SIG')}"
    run = first("bash", "-c", f"{trap}; touch ready; while :; do sleep 0.05; done")
    wait_until((tmp_path / "ready").exists, "the program")
    (keeper,) = children_of(run.pid)
    status = Path(f"/proc/{keeper}/status").read_text().splitlines()
    assert [line.split()[-1] for line in status if line.startswith("NSpid")] == ["1"]
    os.kill(keeper, signal.Signals[name])
    out, _ = run.communicate(timeout=PATIENCE_S)
    assert (out, run.returncode) == (f"got {name}\n", 9)


def test_nothing_survives_it(first: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    run = first("bash", "-c", "setsid sleep 600 & touch ready; wait")
    wait_until((tmp_path / "ready").exists, "the program")
    (keeper,) = children_of(run.pid)
    os.kill(keeper, signal.SIGTERM)
    run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 128 + signal.SIGTERM
