# SPDX-License-Identifier: Apache-2.0
"""Under a real seccomp filter that refuses what places instances, they run all the same, and a line says so."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launcher.cli.commands import XLAUNCH, allowed_cpus, run
from tests.launcher.supervision import refusing

REFUSING = (sys.executable, refusing.__file__)
AFFINITY, POLICY = "sched_setaffinity", "set_mempolicy"
SHOW = "import os; print(len(os.sched_getaffinity(0)))"
LAUNCH = ("--ncores", "1", "--mem-policy", "local", "--allocator", "glibc", "--no-tag")


@pytest.fixture(autouse=True)
def filters(needs: Callable[[object, str], None]) -> None:
    known = platform.machine() in refusing.NUMBERS
    tried = known and subprocess.run(
        (*REFUSING, AFFINITY, "true"), check=False, capture_output=True
    )
    needs(tried and tried.returncode == 0, "a kernel with seccomp filters, on x86-64 or aarch64")


def notes(err: str) -> list[str]:
    return [line for line in err.splitlines() if "is refused" in line]


@pytest.mark.machine
@pytest.mark.parametrize("options", [(), ("--instances", "3", "--oversubscribe")])
def test_instances_run_where_both_calls_are_refused(options: tuple[str, ...]) -> None:
    words = (*XLAUNCH, *options, *LAUNCH, sys.executable, "-c", SHOW)
    done = run((*REFUSING, f"{AFFINITY},{POLICY},mbind", *words))
    count = 3 if "3" in options else 1
    assert done.code == 0, done.err
    assert done.out.split() == [str(len(allowed_cpus())).encode()] * count
    first, second = notes(done.err)
    assert first == (
        "xlaunch: warning: instances are not bound to CPUs: sched_setaffinity is refused (Operation "
        "not permitted), as by a container's seccomp profile"
    )
    assert second.startswith("xlaunch: warning: memory policy local is not set: set_mempolicy is")
    assert "changed its own affinity" not in done.err


@pytest.mark.machine
def test_what_is_allowed_is_done(tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    words = (*XLAUNCH, "--report", str(report), *LAUNCH, sys.executable, "-c", SHOW)
    done = run((*REFUSING, POLICY, *words))
    assert (done.code, done.out) == (0, b"1\n"), done.err
    (note,) = notes(done.err)
    assert note.removeprefix("xlaunch: warning: ") in json.loads(report.read_text())["warnings"]


@pytest.mark.machine
def test_the_doctor_names_the_refused_calls() -> None:
    done = run((*REFUSING, f"{AFFINITY},{POLICY}", *XLAUNCH, "doctor", "-v"))
    for call in (AFFINITY, POLICY):
        assert f"{call} is refused (Operation not permitted)".encode() in done.out
