# SPDX-License-Identifier: Apache-2.0
"""The state table with real processes: one signal a test, and what is left afterwards: nothing."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import XLAUNCH, own_lines
from tests.launcher.cli.commands import run as run_command
from tests.launcher.launching import is_alive, state_of, wait_until

from xlaunch.supervision.signalling import signal_name


def test_every_signal_that_a_process_can_get_reaches_every_instance_once(start):
    kept = {"SIGKILL", "SIGSTOP", "SIGTSTP", "SIGCHLD", "SIGTTIN", "SIGTTOU"}
    ending = {"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"}
    ignored_by_python = {"SIGPIPE", "SIGXFSZ"}
    numbers = {signal_name(number): number for number in signal.valid_signals()}
    names = numbers.keys() - kept - ending - ignored_by_python
    assert {"SIGALRM", "SIGPWR", "SIGIO", "SIGABRT", "SIGRTMIN", "SIGRTMIN+3", "SIGRTMAX"} <= names
    run = start()
    for name in sorted(names):
        os.kill(run.process.pid, numbers[name])
        run.wait_for(0, name)
        run.wait_for(1, name)
    run.send(signal.SIGTERM)
    assert run.end()[0] == 143
    for log in (run.log(0), run.log(1)):
        assert set(log) == {"ready", "SIGTERM"} | names
        # SIGCONT follows SIGTERM, for suspended programs; this one may note it before it ends.
        assert [name for name in log if log.count(name) > 1] in ([], ["SIGCONT"] * 2)


def test_alarm_that_was_set_before_the_start_ends_the_program():
    """A timer survives exec: the program is to get its signal."""
    for after_s in (1, 5, 25):  # the first by which a busy machine has started the launch
        code = (
            f"import os, signal, sys; signal.alarm({after_s}); os.execv(sys.argv[1], sys.argv[1:])"
        )
        words = (sys.executable, "-c", code, *XLAUNCH, "--supervise", "-q", "sleep", "600")
        done = run_command(words)
        if done.code != -signal.SIGALRM:
            break
    assert done.code == 128 + signal.SIGALRM


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_signal_ends_every_instance_and_gives_its_exit_code(start, name):
    run = start()
    instances = run.instances
    number = signal.Signals[name]
    run.send(number)
    code, _, _ = run.end()
    assert code == 128 + number
    assert run.log(0).count(name) == run.log(1).count(name) == 1
    assert not any(is_alive(pid) for pid in instances)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT"])
def test_program_may_survive_hangup_and_quit(start, name):
    run = start("--grace", "100ms", witness=("--ignore", name))
    run.send(signal.Signals[name])
    run.wait_for(0, name)
    run.wait_for(1, name)
    with pytest.raises(Exception, match="timed out"):
        run.process.wait(0.5)  # five times the grace period: no clock was started
    run.send(signal.SIGTERM)
    assert run.end()[0] == 143


def test_two_interrupts_that_wait_for_the_supervisor_are_not_merged(start):
    run = start("--grace", "1h", witness=("--ignore", "SIGINT"), count=1)
    supervisor = run.supervisor
    os.kill(supervisor, signal.SIGSTOP)
    wait_until(lambda: state_of(supervisor) == "T", "the supervisor to be stopped")
    for _ in range(2):
        run.send(signal.SIGINT)
        wait_until(lambda: not _is_pending(run.process.pid, signal.SIGINT), "the keeper to have it")
    os.kill(supervisor, signal.SIGCONT)
    assert run.end()[0] == 137  # of one alone: nothing, for an hour


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_kill_after_grace(golden: Golden, start, name):
    run = start("--grace", "200ms", witness=("--ignore", name))
    instances = run.instances
    run.send(signal.Signals[name])
    code, _, errors = run.end()
    assert code == 137
    golden(own_lines(errors), hide=r"instance \d")
    assert not any(is_alive(pid) for pid in instances)


def test_terminate_goes_to_the_process_not_to_what_it_started(start):
    run = start("--grace", "1h", witness=("--ignore", "SIGTERM", "--child"), count=1)
    run.send(signal.SIGTERM)
    run.wait_for(0, "SIGTERM")
    assert is_alive(run.child_of(0))
    run.send(signal.SIGINT)
    run.end()
    assert not is_alive(run.child_of(0))


def test_suspend_continue_and_terminate_while_suspended(start):
    run = start()
    keeper, instances = run.process.pid, run.instances
    run.send(signal.SIGTSTP)
    for pid in (keeper, *instances):
        wait_until(lambda pid=pid: state_of(pid) == "T", f"{pid} stopped")
    run.send(signal.SIGCONT)
    for pid in (keeper, *instances):
        wait_until(lambda pid=pid: state_of(pid) != "T", f"{pid} continued")
    run.wait_for(0, "SIGCONT")
    run.send(signal.SIGTSTP)
    wait_until(lambda: state_of(keeper) == "T", "keeper stopped")
    run.send(signal.SIGTERM)
    run.send(signal.SIGCONT)
    assert run.end()[0] == 143


@pytest.mark.parametrize("left", ["--child", "--daemon"])
@pytest.mark.parametrize("victim", ["keeper", "supervisor", "instance"])
def test_nothing_survives_whoever_is_killed(golden: Golden, start, victim, left):
    run = start("--grace", "200ms", witness=(left, "--stubborn"))
    supervisor, instances = run.supervisor, run.instances
    everyone = [supervisor, *instances, run.child_of(0), run.child_of(1)]
    assert all(is_alive(pid) for pid in everyone)
    target = {"keeper": run.process.pid, "supervisor": supervisor, "instance": instances[1]}
    os.kill(target[victim], signal.SIGKILL)
    code, _, errors = run.end()
    for pid in everyone:
        wait_until(lambda pid=pid: not is_alive(pid), f"the end of {pid}")
    assert code == {"keeper": -9, "supervisor": 125, "instance": 137}[victim]
    if victim == "supervisor":
        golden(own_lines(errors))


def test_keeper_and_supervisor_killed_together_take_the_instances_along(start):
    run = start()
    supervisor, instances = run.supervisor, run.instances
    for pid in (run.process.pid, supervisor):
        os.kill(pid, signal.SIGKILL)
    run.end()
    for pid in instances:
        wait_until(lambda pid=pid: not is_alive(pid), f"the end of {pid}")


def test_ignored_signal_stays_ignored(start, tmp_path):
    """As under nohup: SIGHUP was ignored when the launcher started."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = start()
    finally:
        signal.signal(signal.SIGHUP, previous)
    run.send(signal.SIGHUP)
    run.send(signal.SIGUSR1)
    run.wait_for(0, "SIGUSR1")
    assert "SIGHUP" not in run.log(0)
    run.send(signal.SIGTERM)
    assert run.end()[0] == 143


def _is_pending(pid: int, number: signal.Signals) -> bool:
    with open(f"/proc/{pid}/status") as file:
        (mask,) = [int(line.split()[1], 16) for line in file if line.startswith("ShdPnd:")]
    return bool(mask >> (number - 1) & 1)
