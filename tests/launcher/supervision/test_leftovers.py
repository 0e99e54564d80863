# SPDX-License-Identifier: Apache-2.0
"""Processes that instances leave behind: whose they are, and when they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.launcher.launching import PATIENCE_S, is_alive, state_of, wait_until
from tests.launcher.supervision.conftest import Witnesses

from xlaunch.supervision import instance_run

PROGRAM = """
import os, signal, subprocess, sys, time
index = os.environ["XLAUNCH_INSTANCE_INDEX"]
def note(word, text=""):
    with open(f"{index}.{word}.new", "w") as file: file.write(text)
    os.rename(f"{index}.{word}.new", f"{index}.{word}")
def leave(*words):
    # In the background of a shell that ends at once: an orphan.
    code = 'setsid "$@" >/dev/null & echo $!'
    found = subprocess.run(["sh", "-c", code, "sh", *words], stdout=subprocess.PIPE, text=True)
    note("left", found.stdout)
signal.signal(signal.SIGUSR1, lambda *_: note("told"))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0) if index == "1" else None)
leave(*(sys.argv[1:] if index == "0" else ()), "sleep", "600")
while True: time.sleep(0.05)
"""


@pytest.fixture
def launched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """Two instances; the parameter is what instance 0 puts before what it leaves behind."""
    layout = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q", "--")
    words = (sys.executable, "-m", "xlaunch", *layout, sys.executable, "-c", PROGRAM)
    with subprocess.Popen((*words, *request.param), cwd=tmp_path, start_new_session=True) as run:
        yield run
        run.kill()


@pytest.mark.parametrize(
    "launched",
    [("env", "-i"), ("env", "XLAUNCH_INSTANCE_INDEX=1", "XLAUNCH_INSTANCE_COUNT=1")],
    ids=["without variables", "of a nested xlaunch"],
    indirect=True,
)
def test_orphan_that_may_be_anyone_s_stays_until_no_instance_runs(
    launched: subprocess.Popen[bytes], tmp_path: Path
):
    left = []
    for index in (0, 1):
        path = tmp_path / f"{index}.left"
        wait_until(path.exists, f"what instance {index} leaves behind")
        left.append(int(path.read_text()))
    launched.send_signal(signal.SIGUSR2)
    wait_until(lambda: not is_alive(left[1]), "the end of what instance 1 left behind")
    launched.send_signal(signal.SIGUSR1)  # once instance 0 has it, leftovers have been looked at
    wait_until((tmp_path / "0.told").exists, "instance 0 to be told")
    assert is_alive(left[0])
    launched.terminate()
    assert launched.wait(PATIENCE_S) == 143
    assert not is_alive(left[0])


def test_supervisor_sleeps_while_leftovers_may_end(start: Callable[..., Witnesses]):
    witness = ("--daemon", "--stubborn", "--exit-on", "SIGUSR2=0")
    run = start("--grace", "1h", count=1, witness=witness)
    supervisor, daemon, instances = run.supervisor, run.child_of(0), run.instances
    run.send(signal.SIGUSR2)
    wait_until(lambda: not any(map(is_alive, instances)), "the end of the instance")
    for _ in range(20):  # one that polls without a pause is hardly ever found asleep
        wait_until(lambda: state_of(supervisor) == "S", "the supervisor to sleep")
    assert is_alive(daemon)
    os.kill(daemon, signal.SIGKILL)
    assert run.end()[0] == 0


class Run:
    """As much of a run of an instance as is asked of it here."""

    def __init__(self, index: int, ended: float | None) -> None:
        self.pid, self.ended = -1, ended
        self.leftovers: set[int] = set()
        self.instance = SimpleNamespace(index=index, cpus=(index,))


def test_an_orphan_without_an_environment_yet_is_looked_at_again(monkeypatch: pytest.MonkeyPatch):
    """Within execve /proc shows none: its instance is found at the next look."""
    ended, running = Run(0, 1.0), Run(1, None)
    place = {"INDEX": "0", "COUNT": "2", "CPUS": "0"}
    variables = {f"XLAUNCH_INSTANCE_{name}": value for name, value in place.items()}
    found = [variables, {}]
    looks = instance_run.Leftovers(2, 10.0)
    monkeypatch.setattr(instance_run, "initial_environment", lambda _: found.pop())
    with subprocess.Popen(["sleep", "10"]) as orphan:
        monkeypatch.setattr(instance_run, "children", lambda _: [orphan.pid])
        looks.end([running, ended], kill=False)
        assert (orphan.poll(), looks.waiting) == (None, True)
        looks.end([running, ended], kill=False)
        assert orphan.wait(PATIENCE_S) == -signal.SIGTERM
    assert ended.leftovers == {orphan.pid}
    monkeypatch.setattr(instance_run, "children", lambda _: [])
    looks.end([running, ended], kill=False)
    assert not looks.waiting
