# SPDX-License-Identifier: Apache-2.0
"""A program that has changed its user cannot be signalled: the rest is ended, and xlaunch waits for it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launcher.launching import PATIENCE_S, children_of, is_alive, wait_until

PROGRAM = """
import os, signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
index = os.environ["XLAUNCH_INSTANCE_INDEX"]
child = subprocess.Popen(["sleep", "600"], start_new_session=True) if index == "1" else None
with open(f"{index}.new", "w") as file: file.write(str(child.pid if child else os.getpid()))
os.rename(f"{index}.new", f"{index}.pid")
if index == "0": os.setuid(65534)
while True: signal.pause()
"""


@pytest.fixture
def run(
    tmp_path: Path, needs: Callable[[object, str], None]
) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A launcher without CAP_KILL, its instance 0 of another user, and a child of instance 1."""
    needs(os.geteuid() == 0 and shutil.which("setpriv"), "root, and setpriv (util-linux)")
    layout = ["--instances", "2", "--ncores", "1", "--oversubscribe", "--grace", "100ms", "-q"]
    without_kill = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"]
    command = [*without_kill, sys.executable, "-m", "xlaunch", *layout, "--report", "report.json"]
    with subprocess.Popen(
        [*command, "--", sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        pids = []
        try:
            for index in (0, 1):
                path = tmp_path / f"{index}.pid"
                wait_until(path.exists, f"instance {index}")
                pids.append(int(path.read_text()))
            wait_until(lambda: os.stat(f"/proc/{pids[0]}").st_uid == 65534, "the other user")
            yield process, pids[0], pids[1]
        finally:
            process.kill()
            for pid in filter(is_alive, pids):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("ended_by", "code", "said"),
    [
        ("supervisor", 137, "SIGTERM sent to 2 instances; SIGKILL in 0.1 s (--grace)"),
        ("keeper", 125, "the supervisor was ended by SIGKILL; every instance was killed"),
    ],
)
def test_the_rest_is_killed_and_waited_for(
    run: tuple[subprocess.Popen[bytes], int, int], tmp_path: Path, ended_by: str, code: int, said: str
):  # fmt: skip
    process, of_other_user, child = run
    if ended_by == "supervisor":
        process.terminate()
    else:
        (supervisor,) = children_of(process.pid)
        os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not is_alive(child), "the end of the other instance's child")
    assert is_alive(of_other_user)
    os.kill(of_other_user, signal.SIGKILL)
    errors = process.communicate(timeout=PATIENCE_S)[1].decode()
    assert (process.returncode, errors) == (code, f"xlaunch: {said}\n")
    if ended_by == "supervisor":
        assert (
            f"instance 0 (PID {of_other_user}) runs as another user: it cannot be signalled, and "
            "xlaunch waits for its end"
        ) in (tmp_path / "report.json").read_text()
