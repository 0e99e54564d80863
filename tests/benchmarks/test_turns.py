# SPDX-License-Identifier: Apache-2.0
"""Contenders of a benchmark work one at a time, are counted rightly, and end with it."""

from __future__ import annotations

import itertools
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.harness.programs import ROOT
from benchmarks.harness.turns import (
    DIRECTORY,
    Contender,
    ContenderResults,
    LaunchResults,
    take_turns,
    times,
)
from tests.launcher.launching import children_of, is_alive, wait_until

WORKER = """\
import sys, threading, time
from pathlib import Path
from benchmarks.harness.step_gate import StepGate
directory, log, name, seconds, slots = Path(sys.argv[1]), *sys.argv[2:6]
def work(slot):
    turn = StepGate(directory, slot, int(slots))
    while True:
        with turn:
            began = time.perf_counter()
            time.sleep(float(seconds))
            with open(log, "a") as stream:
                stream.write(f"{name} {began} {time.perf_counter()}\\n")
threads = [threading.Thread(target=work, args=(slot,)) for slot in range(int(slots))]
[thread.start() for thread in threads]
"""

TWICE = """\
import subprocess, sys
[process.wait() for process in [subprocess.Popen(sys.argv[1:]) for _ in range(2)]]
"""


def worker(log: Path, name: str, seconds: float, slots: int = 1) -> list[str]:
    return [sys.executable, "-c", WORKER, DIRECTORY, str(log), name, str(seconds), str(slots)]


def take_all(
    contenders: dict[str, Contender], turns: int = 3, launches: int = 1
) -> dict[str, ContenderResults]:
    *_, measured = take_turns(contenders, launches=launches, turns=turns, seconds=0.1, title="test")
    return measured


def steps_of(log: Path) -> list[list[str]]:
    """Name, start and end of each step, by its start."""
    return sorted(
        (line.split() for line in log.read_text().splitlines()), key=lambda s: float(s[1])
    )


def turn_counts(measured: ContenderResults) -> list[int]:
    """Of each launch."""
    return [len(launch.rates) for launch in measured.launches]


def test_one_works_at_a_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    alone = Contender(worker(log, "alone", 0.005))
    # Two processes of two threads each, under a program that starts them.
    many = Contender(
        [sys.executable, "-c", TWICE, *worker(log, "many", 0.01, slots=2)], items=3, processes=2
    )
    measured = take_all({"alone": alone, "many": many}, launches=2)
    assert turn_counts(measured["alone"]) == turn_counts(measured["many"]) == [3, 3]
    steps = steps_of(log)
    for (name, _, end), (following, start, _) in itertools.pairwise(steps):
        assert name == following == "many" or float(end) <= float(start)
    # No step takes less than it sleeps.
    for launch in measured["alone"].launches:
        assert 0 < max(launch.rates) <= 1 / 0.005
    for launch in measured["many"].launches:
        assert 0 < max(launch.rates) <= 4 * 3 / 0.01
        assert min(launch.latencies_s) >= 0.01
        assert all(0 < resting <= peak for peak, resting in launch.memory_mib)
    assert measured["many"].memory_mib() is not None


def test_one_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = Contender([sys.executable, "-c", "raise SystemExit('no such thing')"])
    dies = Contender(["timeout", "0.4", *worker(tmp_path / "log", "dies", 0.1)])
    works = Contender(worker(tmp_path / "log", "works", 0.01))
    measured = take_all({"broken": broken, "dies": dies, "works": works}, turns=4)
    assert turn_counts(measured["broken"]) == turn_counts(measured["dies"]) == [0]
    assert measured["broken"].rate() is measured["broken"].memory_mib() is None
    assert turn_counts(measured["works"]) == [4]
    told = capfd.readouterr().err
    assert "broken, launch 1, ended: no such thing" in told
    assert "dies, launch 1, ended:" in told


@pytest.mark.long
def test_a_launch_that_ends_leaves_the_others_of_its_contender(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    once = f'mkdir {mark} && exec timeout 1 "$@" || exec "$@"'
    command = ["sh", "-c", once, "sh", *worker(tmp_path / "log", "one", 0.2)]
    measured = take_all({"one": Contender(command)}, turns=4, launches=2)
    assert sorted(turn_counts(measured["one"])) == [0, 4]
    assert len(measured["one"].levels()) == 1


@pytest.mark.long
def test_what_one_that_died_left_behind_does_not_work_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    leaves = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(2)"
    dies = Contender([sys.executable, "-c", leaves, *worker(log, "left", 0.02)])
    works = Contender(worker(log, "works", 0.02))
    measured = take_all({"dies": dies, "works": works}, turns=15)
    assert turn_counts(measured["dies"]) == [0]
    assert turn_counts(measured["works"]) == [15]
    steps = steps_of(log)
    assert {name for name, *_ in steps} == {"left", "works"}
    # What it was at when it was ended may not have been finished; nothing is begun after it.
    for (name, _, end), (following, start, _) in itertools.pairwise(steps):
        assert name == following or float(end) <= float(start)
    assert {name for name, *_ in steps[-20:]} == {"works"}


@pytest.mark.long
def test_workers_end_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "from benchmarks.harness.turns import Contender, take_turns\n"
        f"contender = Contender({worker(log, 'left', 0.01)!r})\n"
        "list(take_turns({'left': contender}, launches=1, turns=1000, seconds=0.1, title='killed'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "killed, turn 1" in process.stderr.readline()
    (child,) = children_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    wait_until(lambda: not is_alive(child), "the end of the worker")


def rated(*launches: tuple[float, ...]) -> ContenderResults:
    return ContenderResults(tuple(LaunchResults(list(rates), [], [], []) for rates in launches))


def test_times_holds_what_differs_from_launch_to_launch() -> None:
    # Within a launch a median: a slow second does not count.
    ours, theirs = rated((20, 22, 1), (24, 24, 24)), rated((10, 10, 10), (12, 900, 12))
    found = times(ours, theirs)
    assert found is not None
    assert found.ratio == pytest.approx(2.0)
    assert found.ratio == pytest.approx(ours.rate() / theirs.rate())
    # By hand: both logarithms spread by log(1.2) / sqrt(2); two degrees of freedom, t = 4.3027.
    reach = 4.3027 * math.sqrt(2 * (math.log(1.2) ** 2 / 2) / 2)
    assert found.low == pytest.approx(2.0 / math.exp(reach), rel=1e-4)
    assert found.high == pytest.approx(2.0 * math.exp(reach), rel=1e-4)
    # More turns of the same launches tell no more.
    again = times(rated((20, 22, 1) * 9, (24,) * 9), theirs)
    assert again == pytest.approx(found)


def test_times_of_launches_that_do_not_differ_and_of_a_single_one() -> None:
    same = times(rated((6.0, 6.0), (6.0, 6.0)), rated((2.0,), (2.0,), (2.0,)))
    assert same == pytest.approx((3.0, 3.0, 3.0))
    assert times(rated((1.0, 1.0)), rated((1.0,), (1.0,))) is None
    assert times(rated((1.0,), ()), rated((1.0,), (1.0,))) is None


def test_percentiles_are_of_enough_steps() -> None:
    few = ContenderResults(
        (LaunchResults([1.0], [0.001] * 50, [], []), LaunchResults([1.0], [0.001] * 49, [], []))
    )
    assert few.percentiles_ms() == (pytest.approx(1.0), None)
    many = ContenderResults(
        (LaunchResults([1.0], [0.001] * 50, [], []), LaunchResults([1.0], [0.001] * 50, [], []))
    )
    assert many.percentiles_ms() == (pytest.approx(1.0), pytest.approx(1.0))
    assert rated((1.0,)).percentiles_ms() == (None, None)
