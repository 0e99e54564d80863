# SPDX-License-Identifier: Apache-2.0
"""Scripts written for hypertune, unchanged, in real launches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.tuner.launches.conftest import MakeRunner

from xtune.launches.announcements import Announcement
from xtune.launches.launch import Goal, Outcome
from xtune.space.parameters import BARE, Configuration

DEFAULT = Configuration({})
TWO = Configuration({"layout": "2x1"})

SCRIPT = """
import time

def inference(step):
    end = time.perf_counter() + 0.0005
    while time.perf_counter() < end:
        step += 1
    return step

def main():
    for _ in range(10):
        inference(0)
    count = 20
    start = time.time()
    for _ in range(count):
        inference(0)
    duration = (time.time() - start) * 1000
    latency = duration / count
    throughput = 1000 * count / duration
    print("@hypertune {'name': 'latency (ms)'}")
    print(latency)
    print("@hypertune {'name': 'throughput', 'higher_is_better': True, 'target_val': 1e9}")
    print(throughput)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "infer.py"
    path.write_text(SCRIPT)
    return (sys.executable, str(path))


def test_script_is_measured_as_it_is(make_runner: MakeRunner, script: tuple[str, ...]):
    for configuration in (BARE, DEFAULT):
        runner = make_runner("", "@hypertune", Goal.MINIMIZE, program=script)
        launch = runner.measure(configuration)
        assert launch.outcome is Outcome.MEASURED, launch
        latency, throughput = runner.reader.announcements
        assert latency == Announcement("latency (ms)")
        assert throughput == Announcement("throughput", higher_is_better=True)
        assert launch.value is not None  # the first that was announced
        assert launch.value >= 0.5
        others = dict(launch.metrics)
        assert others["@hypertune throughput"] == pytest.approx(1000 / launch.value)
        assert not any("@hypertune" in note for note in launch.notes)
    # A search of another announced objective names it.
    objective = throughput.objective
    runner = make_runner("", objective.metric, objective.goal, program=script)
    launch = runner.measure(DEFAULT)
    (series,) = [one for one in launch.series if one.metric == "@hypertune throughput"]
    assert (launch.outcome, launch.value) == (Outcome.MEASURED, series.values[0])
    assert runner.objective.sign == 1.0


@pytest.mark.usefixtures("two_cpus")
def test_lines_of_instances_do_not_mix(make_runner: MakeRunner):
    # Each writes pieces of lines, in turns with the other, and noise besides.
    code = """
import threading
index = int(os.environ["XLAUNCH_INSTANCE_INDEX"])
def noise():
    for n in range(200): print("noise", n, file=sys.stderr, flush=True)
thread = threading.Thread(target=noise)
thread.start()
def turn(n):
    open(f"{index}.{n}", "w").close()
    while not os.path.exists(f"{1 - index}.{n}"): time.sleep(0.001)
pieces = ["@hyper", "tune {'name': 'thr", "oughput', 'higher_is_better': True}\\n", "note\\n", str(10 ** index), "5\\n"]
for n, piece in enumerate(pieces):
    os.write(1, piece.encode())
    turn(n)
thread.join()
"""
    launch = make_runner(code, "@hypertune throughput").measure(TWO)
    assert (launch.outcome, launch.value) == (Outcome.MEASURED, 15 + 105), launch
    assert {(one.instance, one.values) for one in launch.series} == {(0, (15,)), (1, (105,))}


def test_crash_after_the_number_is_no_measurement(make_runner: MakeRunner):
    code = "tell(\"@hypertune {'name': 'x'}\"); tell(3); sys.exit(1)"
    launch = make_runner(code, "@hypertune x", Goal.MINIMIZE).measure(DEFAULT)
    assert (launch.outcome, launch.value) == (Outcome.CRASHED, None)
    assert [one.values for one in launch.series] == [(3,)]


def test_what_is_wrong_with_the_lines_is_said(make_runner: MakeRunner):
    code = "tell('@hypertune x'); tell(3); tell(\"@hypertune {'name': 'x'}\")"
    launch = make_runner(code, "@hypertune x", Goal.MINIMIZE).measure(DEFAULT)
    assert (launch.outcome, launch.value) == (Outcome.NO_METRIC, None)
    for said in (
        "no value was announced by '@hypertune x'",
        "write a dictionary after @hypertune",
        "no number followed @hypertune of 'x'",
    ):
        assert any(said in note for note in launch.notes), launch.notes


def test_other_metrics_and_requirements_go_along(make_runner: MakeRunner):
    code = """
for step in range(4): tell(f"loss {step} x/s 5")
tell("@hypertune {'name': 'accuracy', 'higher_is_better': True}"); tell(0.9)
"""
    runner = make_runner(
        code,
        "@hypertune accuracy",
        metrics=["loss"],
        requirements=["loss<=1", "@hypertune accuracy>=0.9"],
    )
    launch = runner.measure(DEFAULT)
    assert (launch.outcome, launch.value) == (Outcome.MEASURED, 0.9)
    assert dict(launch.requirements) == {"loss<=1": 3.0, "@hypertune accuracy>=0.9": 0.9}
    assert not runner.objective.is_feasible(launch)
