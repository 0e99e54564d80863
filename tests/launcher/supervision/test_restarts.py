# SPDX-License-Identifier: Apache-2.0
"""`--on-failure restart`: who is started anew, when, how often, and what ends the waiting."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import own_lines, program, xlaunch
from tests.launcher.launching import Launched, children_of, is_alive, state_of, wait_until

from xlaunch.errors import UsageError
from xlaunch.options.definitions import RESTARTS, toml_value
from xlaunch.planning.request import MAX, RestartLimit, check_limit, largest_reachable
from xlaunch.supervision.run_state import Restart, Restarts

# The arithmetic, on a clock of its own


def failures(restarts: Restarts, *runs_s: float) -> list[float | None]:
    """The waits after runs of these lengths, None from the last allowed restart on."""
    now, waits = 0.0, []
    for ran_s in runs_s:
        now += ran_s
        granted = restarts.grant(0, ran_s=ran_s, now=now)
        waits.append(None if granted is None else granted.delay_s)
        if granted is not None:
            now += granted.delay_s
            assert restarts.due(now) == [0]
            restarts.take(0)
    return waits


def test_wait_doubles_up_to_a_minute():
    assert failures(Restarts(MAX), *[0.0] * 9) == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_run_of_more_than_a_minute_begins_the_waits_anew():
    assert failures(Restarts(MAX), 0, 0, 60, 60.1, 0, 1000, 61) == [1, 2, 4, 1, 2, 1, 1]


@pytest.mark.parametrize(
    ("most", "allowed"), [(None, 3), (1, 1), (5, 5), (RestartLimit(20, math.inf), 20)]
)
def test_restarts_are_numbered_and_end(most: RestartLimit | int | None, allowed: int):
    waits = failures(Restarts(most), *[61.0] * (allowed + 2))
    assert waits == [1.0] * allowed + [None, None]


def test_restarts_are_forgiven_after_their_window():
    restarts = Restarts(RestartLimit(2, 600.0))
    assert failures(restarts, 100, 100, 500, 100, 100) == [1, 1, 1, 1, None]
    assert restarts.count(0) == 4
    assert failures(Restarts(3), *[201.0] * 30) == [1.0] * 30


@pytest.mark.parametrize(
    ("window_s", "largest"), [(0.5, 0), (1, 1), (60, 5), (300, 9), (600, 14), (3600, 64)]
)
def test_limit_that_the_delays_never_reach_is_refused(window_s: float, largest: int):
    assert largest_reachable(window_s) == largest
    restarts = Restarts(RestartLimit(largest + 1, window_s))
    assert None not in failures(restarts, *[0.0] * 200)
    with pytest.raises(
        UsageError, match=f"{largest} times in .*; write {largest or 1}/.* {largest + 1}/all"
    ):
        check_limit(RestartLimit(largest + 1, window_s))
    if largest:
        check_limit(RestartLimit(largest, window_s))
        waits = failures(Restarts(RestartLimit(largest, window_s)), *[0.0] * (largest + 1))
        assert waits.index(None) == largest


def test_replaced_instance_is_neither_delayed_nor_counted():
    restarts = Restarts(1)
    restarts.replace(0, 10.0)
    assert (restarts.due(10.0), restarts.waiting, restarts.all_delayed) == ([0], True, False)
    restarts.take(0)
    assert restarts.count(0) == 0
    assert restarts.grant(0, ran_s=0, now=20.0) == Restart(1, 1, 1.0)
    assert restarts.all_delayed
    restarts.replace(1, 20.0)
    assert sorted(restarts.cancel()) == [0, 1]
    assert (restarts.count(0), restarts.count(1)) == (0, 0)


@pytest.mark.parametrize(
    ("typed", "limit"),
    [
        ("5", RestartLimit(5)),
        ("5/10m", RestartLimit(5)),
        ("5/90s", RestartLimit(5, 90.0)),
        ("20/ALL", RestartLimit(20, math.inf)),
        ("2/1d", RestartLimit(2, 86400.0)),
        ("Max", MAX),
    ],
)
def test_limit_as_it_is_typed(typed: str, limit: object):
    assert RESTARTS.parse(typed) == limit
    assert RESTARTS.parse(str(toml_value(limit))) == limit


@pytest.mark.parametrize("typed", ["", "0", "x", "5/", "/10m", "5/0", "5/x", "1.5/10m", "-1"])
def test_what_is_no_limit_is_refused(typed: str):
    with pytest.raises(UsageError, match="is not a number of restarts; write 5/10m"):
        RESTARTS.parse(typed)


def test_limit_out_of_reach_starts_nothing(golden: Golden):
    done = xlaunch("--on-failure", "restart", "--max-restarts", "20", "touch", "/nowhere/file")
    golden(done.refused())


def test_each_instance_has_its_own():
    restarts = Restarts(1)
    assert restarts.grant(0, ran_s=0, now=10.0) == Restart(1, 1, 1.0)
    assert restarts.grant(1, ran_s=0, now=5.0) == Restart(1, 1, 1.0)
    assert (restarts.next_at, restarts.waiting) == (6.0, True)
    assert (restarts.due(5.9), restarts.due(6.0), restarts.due(20.0)) == ([], [1], [1, 0])
    restarts.postpone(1, 12.0)
    assert restarts.due(20.0) == [0, 1]
    restarts.take(0)
    assert restarts.cancel() == [1]
    assert (restarts.count(0), restarts.count(1)) == (1, 0)
    assert (restarts.next_at, restarts.waiting) == (float("inf"), False)


# Real processes

BEGIN = """
import os, signal, subprocess, sys, time
index = int(os.environ["XLAUNCH_INSTANCE_INDEX"])
with open(f"runs.{index}", "a") as file: print(os.getpid(), sorted(os.sched_getaffinity(0)), file=file)
run = len(open(f"runs.{index}").readlines())
def forever():
    while True: signal.pause()
"""


FOR_EVER_S = 1e6
"""A delay that never ends in a test."""


class Restarting(Launched):
    """A launch under --on-failure restart that has begun."""

    def __init__(self, directory: Path, words: Sequence[str], *, count: int, delay_s: float):
        """`delay_s`: instead of the second before the first restart."""
        code = (
            f"from xlaunch.supervision import run_state; run_state.FIRST_DELAY_S = {delay_s}\n"
            "from xlaunch.cli import main; main()"
        )
        self.command = (sys.executable, "-c", code)
        super().__init__(directory, words, count=count)

    def runs(self, index: int) -> list[str]:
        """A line for each time that an instance was started."""
        path = self.directory / f"runs.{index}"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_run(self, index: int, number: int) -> None:
        wait_until(lambda: len(self.runs(index)) >= number, f"run {number} of instance {index}")

    def wait_for_failure(self) -> None:
        """Wait until the launcher has said that an instance will be started anew."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if b"restart" in line:
                return
        pytest.fail("no restart was announced")


Start = Callable[..., Restarting]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Start]:
    """Start a program under --on-failure restart."""
    with contextlib.ExitStack() as begun:

        def start(code: str, *options: str, count: int = 2, delay_s: float = 0.05) -> Restarting:
            words = ["--on-failure", "restart", "--report", "report.json", *options, "--"]
            program = [sys.executable, "-c", BEGIN + code]
            run = Restarting(tmp_path, [*words, *program], count=count, delay_s=delay_s)
            return begun.enter_context(run)

        yield start


def test_only_the_failed_one_is_started_anew_in_its_place(golden: Golden, launch: Start):
    code = (
        "if index == 1 and run < 2: sys.exit(3)\nwhile not os.path.exists('go'): time.sleep(0.01)"
    )
    run = launch(code)
    run.wait_for_run(1, 2)
    (run.directory / "go").touch()
    code, _, err = run.end()
    assert code == 0, err
    golden(own_lines(err))
    assert len(run.runs(0)) == 1
    (first_pid, first_mask), (second_pid, second_mask) = (
        line.split(" ", 1) for line in run.runs(1)
    )
    assert first_mask == second_mask
    assert first_pid != second_pid
    report = run.report()
    assert [one["restarts"] for one in report["instances"]] == [0, 1]
    assert [one["exit_code"] for one in report["instances"]] == [0, 0]
    assert report["instances"][1]["pid"] == int(second_pid)
    heading, *rows = [line.split() for line in err.splitlines() if "  " in line][:3]
    assert heading[-1] == "restarts"
    assert [row[-1] for row in rows] == ["0", "1"]


def test_failure_after_the_last_restart_stops_the_others(golden: Golden, launch: Start):
    run = launch("sys.exit(7) if index else forever()", "--max-restarts", "1")
    code, _, err = run.end()
    assert code == 7
    assert len(run.runs(1)) == 2
    golden(run.report()["reason"], own_lines(err))


def test_what_is_summed_or_written_is_of_all_runs(golden: Golden, launch: Start):
    code = "print('run', run)\nwhile time.process_time() < 0.3: pass\nsys.exit(run < 2)"
    run = launch(code, "--log-dir", "logs", "-q", count=1)
    assert run.end()[0] == 0
    (instance,) = run.report()["instances"]
    assert instance["cpu_s"] >= 0.6
    assert instance["restarts"] == 1
    golden((run.directory / "logs/instance-0.out").read_text())
    assert sorted(os.listdir(run.directory / "logs")) == ["instance-0.err", "instance-0.out"]


def test_output_of_every_run_is_relayed_and_who_ended_well_is_done(launch: Start):
    run = launch("print('run', run)\nsys.exit(run < 2 and index == 0)", "-q")
    code, out, _ = run.end()
    assert (code, sorted(out.splitlines())) == (0, ["[0] run 1", "[0] run 2", "[1] run 1"])


def test_instance_that_was_killed_is_started_anew(launch: Start):
    run = launch("if run < 2: forever()", "-q", count=1)
    run.wait_for_run(0, 1)
    os.kill(int(run.runs(0)[0].split()[0]), signal.SIGKILL)
    assert run.end()[0] == 0
    assert run.report()["instances"][0]["restarts"] == 1


def test_what_a_failed_run_left_behind_ends_before_the_next(launch: Start):
    code = """
if run == 1:
    child = subprocess.Popen([sys.executable, "-c",
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE)
    child.stdout.readline()
    open("child", "w").write(str(child.pid))
    sys.exit(1)
alive = os.path.exists(f"/proc/{open('child').read()}")
sys.exit(9 if alive else 0)
"""
    run = launch(code, "--grace", "300ms", "--max-restarts", "1", "-q", count=1)
    assert run.end()[0] == 0
    assert run.report()["instances"][0]["leftover_processes"] == 1


def test_program_that_cannot_be_executed_is_not_tried_again(tmp_path: Path):
    script = program(tmp_path / "script", "#!/no/such/interpreter\n")
    done = xlaunch("--on-failure", "restart", script)
    assert done.code == 127
    assert "restart" not in done.err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signal_ends_the_waiting(launch: Start, name: str):
    run = launch("sys.exit(3)", "--max-restarts", "max", count=1, delay_s=FOR_EVER_S)
    run.wait_for_failure()
    number = signal.Signals[name]
    os.kill(run.process.pid, number)
    code, _, _ = run.end()
    assert code == 128 + number
    assert run.report()["reason"] == f"{name} came while instance 0 waited for its restart"


def test_signal_ends_those_that_run_and_the_waiting(launch: Start):
    code = (
        "if index: sys.exit(3)\nsignal.signal(15, lambda *_: os._exit(0))\n"
        "open('ready', 'w').close()\nforever()"
    )
    run = launch(code, delay_s=FOR_EVER_S)
    wait_until((run.directory / "ready").exists, "instance 0")
    run.wait_for_failure()
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end()[0] == 143
    assert len(run.runs(1)) == 1


def test_signal_that_forbids_restarts_is_named_whatever_follows(launch: Start):
    code = """
if index: sys.exit(3)
for name in ("SIGHUP", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, _: open(f"got.{number}", "w").close())
signal.signal(signal.SIGUSR2, lambda *_: os._exit(0))
open("ready", "w").close()
forever()
"""
    run = launch(code, delay_s=FOR_EVER_S)
    wait_until((run.directory / "ready").exists, "instance 0")
    run.wait_for_failure()
    for number in (signal.SIGHUP, signal.SIGUSR1):
        os.kill(run.process.pid, number)
        wait_until((run.directory / f"got.{number}").exists, number.name)
    os.kill(run.process.pid, signal.SIGUSR2)
    assert run.end()[0] == 129
    assert run.report()["reason"] == "SIGHUP came while instance 1 waited for its restart"


def test_instance_that_fails_of_the_signal_is_not_started_anew(launch: Start):
    run = launch("forever()")
    run.wait_for_run(0, 1)
    run.wait_for_run(1, 1)
    os.kill(run.process.pid, signal.SIGHUP)
    assert run.end()[0] == 129
    assert [len(run.runs(index)) for index in (0, 1)] == [1, 1]


def test_signals_that_end_nothing_leave_the_waiting_alone(launch: Start):
    run = launch("sys.exit(run < 2)", count=1, delay_s=1)
    run.wait_for_failure()
    for name in ("SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"):
        os.kill(run.process.pid, signal.Signals[name])
    assert run.end()[0] == 0
    assert len(run.runs(0)) == 2


def test_suspended_launcher_starts_nothing(launch: Start):
    run = launch("sys.exit(run < 2)", count=1, delay_s=1)
    run.wait_for_failure()
    os.kill(run.process.pid, signal.SIGTSTP)
    wait_until(lambda: state_of(run.process.pid) == "T", "the launcher to be stopped")
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(1.5)  # longer than the wait for the restart
    assert len(run.runs(0)) == 1
    os.kill(run.process.pid, signal.SIGCONT)
    assert run.end()[0] == 0
    assert len(run.runs(0)) == 2


def test_timeout_ends_the_waiting(launch: Start):
    run = launch("sys.exit(3)", "--timeout", "500ms", count=1, delay_s=FOR_EVER_S)
    code, _, _ = run.end()
    assert code == 124
    assert len(run.runs(0)) == 1


@pytest.mark.parametrize("victim", ["keeper", "supervisor"])
def test_nobody_is_started_when_the_launcher_is_killed(launch: Start, victim: str):
    run = launch("sys.exit(3)", count=1, delay_s=FOR_EVER_S)
    run.wait_for_failure()
    (supervisor,) = children_of(run.process.pid)
    os.kill(run.process.pid if victim == "keeper" else supervisor, signal.SIGKILL)
    run.end()
    wait_until(lambda: not is_alive(supervisor), "the supervisor's end")
    assert len(run.runs(0)) == 1


def test_limit_without_restarts_is_told():
    done = xlaunch("--max-restarts", "2", "true")
    line = "xlaunch: warning: --max-restarts does nothing without --on-failure restart\n"
    assert done.err == line


def test_restarted_instance_gets_signals_like_any_other(launch: Start):
    code = """
def told(*_):
    open("told", "w").close()
    os._exit(0)
if run < 2: sys.exit(3)
signal.signal(signal.SIGTERM, told)
open("ready", "w").close()
forever()
"""
    run = launch(code, count=1)
    wait_until((run.directory / "ready").exists, "the second run")
    run.send(signal.SIGTERM)
    assert run.end()[0] == 0
    assert (run.directory / "told").exists()
