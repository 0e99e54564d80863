# SPDX-License-Identifier: Apache-2.0
"""A run in a PID namespace whose processes /proc does not show, as after `unshare --pid`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.launcher.cli.commands import XLAUNCH
from tests.launcher.launching import PATIENCE_S, children_of, wait_until

WARNING = "/proc does not show the processes of this PID namespace"


@pytest.mark.parametrize(("name", "ignores"), [("SIGTERM", False), ("SIGINT", True)])
def test_signal_ends_the_run(unshared, tmp_path: Path, name: str, ignores: bool):  # type: ignore[no-untyped-def]
    ignoring = "trap '' TERM INT; " if ignores else ""
    program = f"{ignoring}touch ready; sleep 600 & while :; do sleep 0.1; done"
    run = unshared(*XLAUNCH, "--supervise", "--grace", "200ms", "sh", "-c", program)
    wait_until((tmp_path / "ready").exists, "the program")
    (keeper,) = children_of(run.pid)
    os.kill(keeper, signal.Signals[name])
    _, err = run.communicate(timeout=PATIENCE_S)
    number = signal.SIGKILL if ignores else signal.Signals[name]
    assert run.returncode == 128 + number
    assert err.count(WARNING) == 1


@pytest.mark.parametrize("first", [(), ("sh", "-c", '"$@"; exit $?', "sh")], ids=["1", "other"])
def test_run_ends_with_its_program_and_what_that_leaves_behind(unshared, first: tuple[str, ...]):  # type: ignore[no-untyped-def]
    """As PID 1 of the namespace and as another one."""
    program = "trap '' TERM; sleep 600 & exit 3"
    run = unshared(*first, *XLAUNCH, "--supervise", "-q", "--grace", "200ms", "sh", "-c", program)
    run.communicate(timeout=PATIENCE_S)  # the end of the leftover's output too
    assert run.returncode == 3
