# SPDX-License-Identifier: Apache-2.0
"""What is killed: whole process groups of the run, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launcher.launching import Launched, is_alive, wait_until

from xlaunch.machine.processes import TICKS_PER_SECOND, children, read_process
from xlaunch.supervision.signalling import kill_descendants, kill_processes

CHAIN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ends = time.monotonic() + 60
while time.monotonic() < ends:
    if os.fork(): os._exit(0)
    if "setsid" in sys.argv: os.setsid()
    time.sleep(0.02)
open("survived", "w")
"""
"""Of processes that live for a moment each; no look at /proc finds the one that is signalled."""

STAYS = "sleep 600 & echo $!; wait"


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A shell and the process that it has started; the parameter: options of Popen."""
    with subprocess.Popen(
        ("sh", "-c", STAYS), stdout=subprocess.PIPE, text=True, **request.param
    ) as shell:
        assert shell.stdout is not None
        started = int(shell.stdout.readline())
        try:
            yield shell, started
        finally:
            for pid in (started, shell.pid):
                if is_alive(pid):
                    os.kill(pid, 9)


@pytest.mark.parametrize(
    "words", [(), pytest.param(("--metric", "((x+x+)+)y"), marks=pytest.mark.long)]
)
def test_supervisor_that_does_not_respond_is_killed(tmp_path: Path, words: tuple[str, ...]):
    """Because it is stopped, or searches a line for a pattern that takes ages to fail."""
    program = (
        "import os, time; print('x' * 60, flush=True)\n"
        "open(os.environ['XLAUNCH_INSTANCE_INDEX'], 'w'); time.sleep(600)"
    )
    options = (*words, "--grace", "0", "--", sys.executable, "-c", program)
    with Launched(tmp_path, options, count=2) as run:
        started = [tmp_path / "0", tmp_path / "1"]
        wait_until(lambda: all(path.exists() for path in started), "the instances")
        supervisor, instances = run.supervisor, run.instances
        if words:
            wait_until(lambda: read_process(supervisor).cpu_ticks > TICKS_PER_SECOND, "the search")
        else:
            os.kill(supervisor, signal.SIGSTOP)
        run.send(signal.SIGTERM)
        code, _, err = run.end()
    assert code == 125
    assert "xlaunch: the supervisor does not respond; it is killed\n" in err
    assert not any(is_alive(pid) for pid in (supervisor, *instances))


@pytest.mark.parametrize(
    "child", [{"process_group": 0}, {"start_new_session": True}], indirect=True
)
def test_process_is_killed_with_its_group(child: tuple[subprocess.Popen[str], int]):
    shell, started = child
    kill_processes([shell.pid])
    assert shell.wait() == -9
    wait_until(lambda: not is_alive(started), "the end of the group")


@pytest.mark.parametrize("child", [{}], indirect=True)
def test_group_with_a_process_of_somebody_else_is_left_alone(
    child: tuple[subprocess.Popen[str], int],
):
    """It is the group of the tests themselves."""
    shell, started = child
    kill_processes([shell.pid])
    assert shell.wait() == -9
    assert is_alive(started)


@pytest.mark.parametrize("child", [{"process_group": 0}], indirect=True)
def test_children_of_before_are_spared(child: tuple[subprocess.Popen[str], int]):
    shell, started = child
    kill_descendants(children(os.getpid()))
    assert is_alive(shell.pid)
    assert is_alive(started)


@pytest.mark.parametrize("words", [(), ("setsid",)], ids=" ".join)
def test_program_that_forks_for_ever_is_ended(tmp_path: Path, words: tuple[str, ...]):
    options = ("--supervise", "--grace", "200ms", "--", sys.executable, "-c", CHAIN)
    with Launched(tmp_path, (*options, *words), count=1) as run:
        assert run.end()[0] == 0
    assert not (tmp_path / "survived").exists()
