# SPDX-License-Identifier: Apache-2.0
"""Real launches of small programs: what is measured, under which settings, and what is recorded."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.tuner.launches.conftest import BEGIN, MakeRunner

from xlaunch.machine import read_machine
from xlaunch.planning import Request, plan
from xtune.errors import ObjectiveError, SpaceError
from xtune.launches.launch import Goal, Outcome, Secondary, Steadiness
from xtune.launches.runner import PADDING_VARIABLE
from xtune.search.events import Measurer
from xtune.space.parameters import BARE, Configuration, Parameter, Target

DEFAULT = Configuration({})
TWO = Configuration({"layout": "2x1"})

SHOW = """
import json
index = os.environ.get("XLAUNCH_INSTANCE_INDEX", "bare")
with open(f"{index}.json", "w") as file:
    json.dump({"env": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0)),
               "argv": sys.argv[1:], "stdin": sys.stdin.read(),
               "terminals": [os.isatty(n) for n in range(3)]}, file)
tell("1 x/s")
"""


def shown(index: int | str = 0) -> dict[str, Any]:
    return json.loads(Path(f"{index}.json").read_text())


# Values


def test_every_raw_value_is_kept(make_runner: MakeRunner):
    runner: Measurer = make_runner(
        "for n in range(5): tell(f'{9 if n else 0} x/s  loss {n / 4}')", metrics=["loss"]
    )
    launch = runner.measure(DEFAULT)
    assert launch.outcome is Outcome.MEASURED
    by_metric = {one.metric: one for one in launch.series}
    assert by_metric["x/s"].values == (0, 9, 9, 9, 9)
    assert by_metric["loss"].values == (0, 0.25, 0.5, 0.75, 1)
    times = by_metric["x/s"].times_s
    assert list(times) == sorted(times)
    assert times[0] > 0
    assert launch.value == 9  # the first value is never counted
    assert dict(launch.metrics) == {"loss": 1.0}  # its last tenth
    assert (launch.steadiness, launch.exit_code) == (Steadiness.TOO_FEW, 0)
    assert launch.plan_hash == runner.resolver.plan_hash(DEFAULT)


def test_warm_up_is_dropped_and_said(golden: Golden, make_runner: MakeRunner):
    launch = make_runner("for n in range(400): tell(50 if n < 200 else 100, 'x/s')").measure(
        DEFAULT
    )
    assert (launch.value, launch.steadiness) == (100, Steadiness.WARM_UP)
    golden(launch.notes)


@pytest.mark.usefixtures("two_cpus")
def test_rates_of_instances_add_up_and_latencies_pool(make_runner: MakeRunner):
    # Each waits for the other, so that both are at work while values count.
    code = """
index = int(os.environ["XLAUNCH_INSTANCE_INDEX"])
def meet(word):
    open(f"{index}{word}", "w").close()
    while not os.path.exists(f"{1 - index}{word}"): time.sleep(0.002)
for n in range(12):
    tell(f"{10 ** (index + 1)} x/s {n + 100 * index} step_ms")
    if n in (0, 5): meet(n)
meet("end")
"""
    launch = make_runner(code, metrics=["step_ms"]).measure(TWO)
    assert (launch.outcome, launch.value) == (Outcome.MEASURED, 110), launch
    assert {(one.metric, one.instance, len(one.values)) for one in launch.series} == {
        ("x/s", 0, 12), ("x/s", 1, 12), ("step_ms", 0, 12), ("step_ms", 1, 12),
    }  # fmt: skip
    spread = dict(launch.metrics)
    assert 1 <= spread["step_ms"] <= 111
    assert {"step_ms mean", "step_ms p90"} < spread.keys()
    assert "step_ms p99" not in spread


def test_reported_values_count_like_printed_ones(make_runner: MakeRunner):
    code = """
with open(os.environ["XLAUNCH_METRICS"], "w") as pipe:
    for n in range(4): print("x/s", n, file=pipe, flush=True)
"""
    for configuration in (BARE, DEFAULT):
        launch = make_runner(code).measure(configuration)
        assert [one.values for one in launch.series] == [(0, 1, 2, 3)]


def test_wall_time_and_secondary_values_are_recorded(make_runner: MakeRunner):
    code = """
block = bytearray(96 << 20)
for at in range(0, len(block), 4096): block[at] = 1
end = time.process_time() + 0.2
while time.process_time() < end: pass
"""
    launch = make_runner(code, "wall", Goal.MINIMIZE).measure(DEFAULT)
    secondary = launch.secondary
    assert secondary.cpu_s >= 0.2
    assert launch.value == secondary.wall_s >= 0.2
    assert secondary.peak_rss_bytes > 96 << 20
    assert secondary.minor_faults > 48  # a huge page each, where the system gives such
    assert secondary.major_faults is not None


def test_energy_is_read_around_the_launch(make_runner: MakeRunner, tmp_path: Path):
    counter = tmp_path / "sys/class/powercap/intel-rapl:0"
    counter.mkdir(parents=True)
    (counter / "name").write_text("package-0\n")
    (counter / "max_energy_range_uj").write_text("1000000\n")
    (counter / "energy_uj").write_text("900000\n")
    code = f"open({str(counter / 'energy_uj')!r}, 'w').write('400000'); tell('1 x/s')"
    runner = make_runner(code, requirements=["energy<=1J"], root=str(tmp_path))
    launch = runner.measure(DEFAULT)
    assert launch.secondary.energy_j == pytest.approx(0.5)
    assert launch.requirements == (("energy<=1J", 0.5),)


def test_requirements_are_measured_along(golden: Golden, make_runner: MakeRunner):
    code = "for n in range(604): tell(f'{100} x/s {n * 61 % 151} step_ms accuracy 0.95')"
    runner = make_runner(
        code,
        metrics=["step_ms"],
        requirements=["accuracy>=0.9", "p99<=20ms", "p50<=80", "rss<=1GiB", "recall>=1"],
    )
    launch = runner.measure(DEFAULT)
    seen = dict(launch.requirements)
    assert seen["accuracy>=0.9"] == 0.95
    assert seen["p99<=20ms"] == pytest.approx(0.148, abs=0.003)
    assert seen["p50<=80"] == pytest.approx(75, abs=3)
    assert seen["recall>=1"] is None
    assert not runner.objective.is_feasible(launch)
    golden(launch.notes)


@pytest.mark.usefixtures("two_cpus")
def test_wall_time_of_instances_that_do_the_same_work_is_refused(
    golden: Golden, make_runner: MakeRunner
):
    launch = make_runner("open('ran', 'w')", "wall", Goal.MINIMIZE).measure(TWO)
    assert (launch.outcome, launch.value) == (Outcome.NOT_STARTED, None)
    golden(launch.notes[0])
    assert not os.path.exists("ran")


@pytest.mark.usefixtures("two_cpus")
def test_wall_time_of_instances_that_divide_the_work(make_runner: MakeRunner):
    code = "time.sleep(0.1 * (1 + int(os.environ['XLAUNCH_INSTANCE_INDEX'])))"
    launch = make_runner(code, "wall", Goal.MINIMIZE, work_shared=True).measure(TWO)
    assert launch.outcome is Outcome.MEASURED
    assert launch.value >= 0.2  # of the last to end


# Settings


def test_configuration_reaches_the_program(make_runner: MakeRunner):
    parameters = [
        Parameter("batch", (1, 8), 1, Target.PROGRAM),
        Parameter("MY_SWITCH", ("unset", "on"), "unset", Target.VARIABLE),
        Parameter("place", ("compact", "scatter"), "compact", Target.OPTION),
    ]
    program = (sys.executable, "-c", BEGIN + SHOW, "--batch={batch}")
    runner = make_runner("", program=program, parameters=parameters, asked={"ncores": 1})
    runner.measure(Configuration({"batch": 8, "MY_SWITCH": "on"}))
    told = shown()
    assert told["argv"] == ["--batch=8"]
    assert told["env"]["MY_SWITCH"] == "on"
    assert "OMP_NUM_THREADS" not in told["env"]  # the mask says it
    assert len(told["cpus"]) == len(
        plan(Request.of(ncores=1).layout, read_machine()).instances[0].cpus
    )


def test_bare_command_is_left_as_it_is(make_runner: MakeRunner, tmp_path: Path):
    own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "7"}
    runner = make_runner(SHOW, environment=own)
    launch = runner.measure(BARE)
    assert (launch.outcome, launch.value) == (Outcome.MEASURED, 1), launch
    told = shown("bare")
    watched = {"XLAUNCH_METRICS", "XLAUNCH_BARRIER", "PYTHONUNBUFFERED", PADDING_VARIABLE}
    added = told["env"].keys() - own.keys() - {"LC_CTYPE"}  # by Python itself
    assert added == watched
    assert own.items() <= told["env"].items()
    assert told["cpus"] == sorted(os.sched_getaffinity(0))
    assert launch.plan_hash == runner.resolver.plan_hash(BARE)
    assert launch.plan_hash != runner.resolver.plan_hash(DEFAULT)


def test_launch_has_neither_terminal_nor_input(make_runner: MakeRunner):
    make_runner(SHOW).measure(DEFAULT)
    assert (shown()["stdin"], shown()["terminals"]) == ("", [False] * 3)


def test_padding_differs_by_launch_and_follows_the_seed(make_runner: MakeRunner):
    def lengths(seed: int, *configurations: Configuration) -> list[int]:
        runner = make_runner(SHOW, seed=seed)
        found = []
        for configuration in configurations:
            runner.measure(configuration)
            told = shown("bare" if configuration == BARE else 0)
            found.append(len(told["env"][PADDING_VARIABLE]))
        return found

    first, second = lengths(1, DEFAULT, BARE)
    assert first != second
    assert [first] == lengths(1, DEFAULT) != lengths(2, DEFAULT)


@pytest.mark.parametrize("output", [{"log_dir": "logs"}, {"pty": True}])
def test_how_the_user_has_runs_ended_or_logged_does_not_disturb(
    make_runner: MakeRunner, output: dict[str, object]
):
    asked = {"report": "r.json", "metric": ("y",), "tag": True, **output}
    launch = make_runner("for n in range(3): tell(n, 'x/s')", asked=asked).measure(DEFAULT)
    assert [one.values for one in launch.series] == [(0, 1, 2)], launch
    assert os.listdir() == []


def test_configuration_outside_of_the_space_is_an_error(make_runner: MakeRunner):
    with pytest.raises(SpaceError):
        make_runner("").measure(Configuration({"layout": "3x3"}))


def test_percentile_of_nothing_is_refused_before_anything_runs(make_runner: MakeRunner):
    with pytest.raises(ObjectiveError, match="p99 of what"):
        make_runner("", requirements=["p99<=1ms"])


# Output


def test_output_stays_away_from_the_terminal(
    make_runner: MakeRunner, capfd: pytest.CaptureFixture[str]
):
    code = "tell('1 x/s'); print('noise', file=sys.stderr); os.write(1, b'\\xff\\x00')"
    for metric in ("x/s", "wall"):
        for configuration in (BARE, DEFAULT):
            runner = make_runner(code, metric, Goal.MINIMIZE)
            assert runner.measure(configuration).outcome is Outcome.MEASURED
    assert capfd.readouterr() == ("", "")


def test_output_is_shown_on_standard_error_when_asked(
    make_runner: MakeRunner, capfd: pytest.CaptureFixture[str]
):
    code = "tell('1 x/s'); print('noise', file=sys.stderr)"
    make_runner(code, show_output=True).measure(DEFAULT)
    out, err = capfd.readouterr()
    assert out == ""
    assert "1 x/s\n" in err
    assert "noise\n" in err


def test_much_output_does_not_hold_a_launch_up(make_runner: MakeRunner):
    code = """
for n in range(2000):
    sys.stderr.write("e" * 1000 + "\\n"); sys.stdout.write("o" * 1000 + "\\n")
tell("1 x/s")
sys.exit(3)
"""
    launch = make_runner(code).measure(DEFAULT)
    assert (launch.outcome, launch.exit_code) == (Outcome.CRASHED, 3)
    assert launch.stderr_tail.count("\n") <= 19
    assert len(launch.stderr_tail) < 10_000


def test_a_launch_that_is_taken_over_is_the_next_of_the_bare_command(make_runner: MakeRunner):
    runner = make_runner("tell('5 x/s')")
    made = runner.measure(BARE)._replace(secondary=Secondary(500.0))
    before_s = runner.now_s()
    runner.take_over(made)
    assert runner.measure(BARE) is made
    assert runner.now_s() - before_s >= 500.0
    assert runner.measure(BARE) is not made
    runner.take_over(made)
    assert runner.measure(Configuration({})) is not made
