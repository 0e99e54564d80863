# SPDX-License-Identifier: Apache-2.0
"""Real launches that do not end well: each is recorded as what it is, and nothing is left running."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from tests.golden import Golden
from tests.launcher.launching import is_alive, wait_until
from tests.tuner.conftest import Needs
from tests.tuner.launches.conftest import BEGIN, MakeRunner

import xlaunch
from xlaunch.report import Report
from xtune.launches.launch import Goal, Launch, Limits, Outcome, Steadiness
from xtune.space.parameters import BARE, Configuration, Parameter, Target

DEFAULT = Configuration({})
TWO = Configuration({"layout": "2x1"})
SOON = {"grace_s": 0.1}
"""For programs that ignore SIGTERM."""

FOREVER = """
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0: os.setsid()
open(f"{os.getpid()}.pid", "w").close()
while True: time.sleep(60)
"""


def pids() -> list[int]:
    return [int(path.stem) for path in Path.cwd().glob("*.pid")]


def measured_by(make: Callable[[float], Launch], seen: Callable[[Launch], object]) -> Launch:
    """A launch with the shortest time limit by which this machine has done what must be `seen`."""
    for limit_s in (0.5, 2.0, 8.0):
        launch = make(limit_s)
        if seen(launch):
            return launch
        for path in Path.cwd().glob("*.pid"):
            path.unlink()
    return make(32.0)


def is_measured(launch: Launch) -> bool:
    return launch.outcome is Outcome.MEASURED


def assert_unmeasured(launch: Launch, outcome: Outcome) -> None:
    assert (launch.outcome, launch.value) == (outcome, None), launch
    assert launch.notes
    assert launch.notes[0].count("\n") == 0


# Failures


@pytest.mark.parametrize("configuration", [BARE, DEFAULT])
def test_bad_exit_is_recorded_with_the_end_of_standard_error(
    make_runner: MakeRunner, configuration: Configuration
):
    code = "tell('99 x/s'); print('first\\nsecond', file=sys.stderr); sys.exit(3)"
    launch = make_runner(code).measure(configuration)
    assert_unmeasured(launch, Outcome.CRASHED)
    assert launch.exit_code == 3
    assert launch.notes[0] == "instance 0 failed with exit code 3"
    assert launch.stderr_tail == "first\nsecond"
    assert [one.values for one in launch.series] == [(99,)]  # kept, and not counted


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_signal_is_named_and_not_taken_for_out_of_memory(make_runner: MakeRunner, name: str):
    code = f"tell('9 x/s'); os.kill(os.getpid(), signal.{name})"
    launch = make_runner(code).measure(DEFAULT)
    assert_unmeasured(launch, Outcome.CRASHED)
    assert launch.exit_code == 128 + signal.Signals[name]
    assert launch.notes[0] == f"instance 0 was ended by {name}"


@pytest.mark.usefixtures("two_cpus")
def test_one_of_two_instances_that_fails_ends_both(golden: Golden, make_runner: MakeRunner):
    code = f"""
if os.environ["XLAUNCH_INSTANCE_INDEX"] == "1":
    while not os.listdir(): time.sleep(0.005)
    sys.exit("no room for me")
{FOREVER}"""
    launch = make_runner(code, asked=SOON).measure(TWO)
    assert_unmeasured(launch, Outcome.CRASHED)
    golden(launch.notes[0])
    golden(launch.stderr_tail)
    assert pids()
    assert not any(map(is_alive, pids()))


def test_memory_that_python_cannot_get(make_runner: MakeRunner):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))
blocks = []
while True: blocks.append(bytearray(16 << 20))
"""
    launch = make_runner(code).measure(DEFAULT)
    assert_unmeasured(launch, Outcome.OUT_OF_MEMORY)
    assert launch.notes[0] == "instance 0 failed with exit code 1: it printed 'MemoryError'"


@pytest.fixture
def small_group(needs: Needs) -> Iterator[Path]:
    """A memory control group of 64 MiB, version 1 or 2, below this process's own."""
    from xlaunch.machine.limits import ControlGroups
    from xlaunch.machine.tree import Tree

    for group, *_ in ControlGroups(Tree("/")).enclosing("memory"):
        directory = Path(group.directory, f"xtune-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            directory.mkdir()
            try:
                name = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
                (directory / name).write_text(str(64 << 20))
                swap = "memory.swappiness" if group.version == 1 else "memory.swap.max"
                with contextlib.suppress(OSError):
                    (directory / swap).write_text("0")
                yield directory
                return
            finally:
                directory.rmdir()
    needs(None, "a memory control group that this process may divide")


JOIN = 'open("{group}/cgroup.procs", "w").write(str(os.getpid()))'
EAT = "import os; {join}; [b'x' * (8 << 20) for _ in range(64)]"


@pytest.mark.full
@pytest.mark.machine
@pytest.mark.parametrize("is_child", [False, True])
def test_kernel_that_kills_for_memory(make_runner: MakeRunner, small_group: Path, is_child: bool):
    eat = EAT.format(join=JOIN.format(group=small_group))
    run = f"subprocess.run(['/bin/sh', '-c', sys.executable + ' -c \"$0\"; exit $?', {eat!r}])"
    code = f"import subprocess; sys.exit({run}.returncode)" if is_child else f"tell('9 x/s'); {eat}"
    launch = make_runner(code).measure(DEFAULT)
    assert_unmeasured(launch, Outcome.OUT_OF_MEMORY)
    if is_child:
        assert launch.exit_code == 137
    else:
        killer = "killed by the kernel's out-of-memory killer"
        assert launch.notes[0].startswith(f"instance 0 was ended by SIGKILL: {killer}")


# Nothing to measure


SEEN = "; the last lines with numbers: epoch 1 | images/s: 5"


@pytest.mark.parametrize(
    ("code", "metric", "note"),
    [
        ("tell('epoch 1'); tell('no number'); tell('images/s: 5')", "img/s",
         f"no value of 'img/s' was found{SEEN}"),
        ("tell('epoch 1'); tell('no number'); tell('images/s: 5')", "@hypertune",
         f"no value was announced by '@hypertune' with a number on the next line{SEEN}"),
        ("tell('5 Images/s')", "images/s",
         "no value of 'images/s' was found, but of 'Images/s': write --metric Images/s"),
        ("tell('done')", "x/s",
         "no value of 'x/s' was found; nothing with a number was printed or reported"),
    ],
)  # fmt: skip
def test_a_metric_that_is_not_printed_is_told_with_what_was(
    make_runner: MakeRunner, code: str, metric: str, note: str
):
    launch = make_runner(f"{code}; print('odd', file=sys.stderr)", metric).measure(DEFAULT)
    assert_unmeasured(launch, Outcome.NO_METRIC)
    assert (launch.exit_code, launch.notes[0], launch.stderr_tail) == (0, note, "odd")


def test_other_metrics_that_are_missing_are_told(golden: Golden, make_runner: MakeRunner):
    launch = make_runner("tell('1 x/s')", metrics=["loss"]).measure(DEFAULT)
    assert (launch.outcome, launch.value) == (Outcome.MEASURED, 1)
    golden(launch.notes)


# Not started


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("allocator", ("glibc", "/nowhere/lib.so"), "/nowhere/lib.so"),
        ("layout", ("1xall", "9999x1"), "9999"),
    ],
)
def test_configuration_that_cannot_be_carried_out_says_why(
    make_runner: MakeRunner, name: str, values: tuple[str, str], said: str
):
    parameter = Parameter(name, values, values[0], Target.OPTION)
    runner = make_runner("open('ran', 'w')", parameters=[parameter])
    configuration = Configuration({name: values[1]})
    launch = runner.measure(configuration)
    assert_unmeasured(launch, Outcome.NOT_STARTED)
    assert said in launch.notes[0]
    assert launch.plan_hash == ""
    assert runner.resolver.plan_hash(configuration) is None
    assert not os.path.exists("ran")


TOO_LONG = (sys.executable, "-c", BEGIN, "x" * (1 << 18))  # MAX_ARG_STRLEN is half of that


@pytest.mark.parametrize("configuration", [BARE, DEFAULT])
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (("/nowhere/program",), "/nowhere/program"),
        (TOO_LONG, "arguments and environment are too long"),
    ],
    ids=["absent", "too long"],
)
def test_program_that_cannot_be_started(
    make_runner: MakeRunner, configuration: Configuration, program: tuple[str, ...], said: str
):
    launch = make_runner("", program=program).measure(configuration)
    assert_unmeasured(launch, Outcome.NOT_STARTED)
    assert said in launch.notes[0]


class Refused:
    """A run for which the system had no process, as its keeper reports it; nobody can ask for that."""

    def __init__(self, *_: object, stderr: int, **__: object) -> None:
        os.write(stderr, b"xlaunch: error: instance 0: Resource temporarily unavailable\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait(self, timeout_s: float) -> bool:
        return True

    def live(self) -> list[object]:
        return []

    def report(self) -> Report:
        return Report(125, "instance 0 could not be started", 0.1, 1, (), (), ())


def test_instance_that_the_system_has_no_process_for(
    golden: Golden, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(xlaunch, "start", Refused)
    launch = make_runner("").measure(DEFAULT)
    assert_unmeasured(launch, Outcome.NOT_STARTED)
    golden(launch.notes[0])


# Ended early


def test_limit_ends_what_ignores_being_asked(make_runner: MakeRunner):
    runner = make_runner(FOREVER, asked=SOON)
    launch = measured_by(
        lambda limit_s: runner.measure(DEFAULT, Limits(limit_s=limit_s)), lambda _: len(pids()) == 2
    )
    assert_unmeasured(launch, Outcome.TIMED_OUT)
    assert launch.notes[0].startswith("it took longer than the limit of ")
    assert len(pids()) == 2
    assert not any(map(is_alive, pids()))


def test_user_s_own_limit_counts_too(make_runner: MakeRunner):
    runner = make_runner("time.sleep(60)", asked={"timeout_s": 0.2})
    launch = runner.measure(DEFAULT, Limits(limit_s=50.0))
    assert_unmeasured(launch, Outcome.TIMED_OUT)
    assert launch.notes[0] == "it took longer than the limit of 0.2 s"


SERVICE = """
def stopped(*_): tell('999 x/s'); sys.exit(1)
signal.signal(signal.SIGTERM, stopped)
open(f"{os.getpid()}.pid", "w").close()
for number in range(@COUNT@): tell('7 x/s'); tell('latency', 3, 'ms'); time.sleep(0.002)
while True: time.sleep(60)
"""


@pytest.mark.parametrize("configuration", [BARE, DEFAULT])
def test_a_service_is_measured_until_its_timeout_and_stopped(
    make_runner: MakeRunner, configuration: Configuration
):
    code = SERVICE.replace("@COUNT@", "40")

    def serve(timeout_s: float) -> Launch:
        runner = make_runner(
            code, timeout_s=timeout_s, requirements=["p50(latency)<=4ms"], metrics=["latency"]
        )
        return runner.measure(configuration)

    launch = measured_by(serve, is_measured)
    assert (launch.outcome, launch.value) == (Outcome.MEASURED, 7.0), launch
    assert launch.steadiness is Steadiness.FLAT
    assert re.fullmatch(
        r"it was still running after [\d.]+ s: measured until then and stopped", launch.notes[0]
    )
    assert launch.requirements == (("p50(latency)<=4ms", 0.003),)
    (pid,) = pids()
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("metric", "timeout_s", "limit_s", "said"),
    [
        ("x/s", 0.5, None, "it had too few steady values of 'x/s' by then: increase --timeout"),
        pytest.param(
            *("wall", 0.5, None, "a program that does not end needs a --metric"),
            marks=pytest.mark.long,
        ),
        pytest.param("x/s", 50.0, 0.5, "", marks=pytest.mark.long),
    ],
)
def test_what_cannot_be_measured_until_its_timeout_timed_out(
    make_runner: MakeRunner, metric: str, timeout_s: float, limit_s: float | None, said: str
):
    goal = Goal.MINIMIZE if metric == "wall" else Goal.MAXIMIZE
    code = SERVICE.replace("@COUNT@", "40" if limit_s else "5")
    launch = make_runner(code, metric, goal, timeout_s=timeout_s).measure(
        DEFAULT, Limits(limit_s=limit_s)
    )
    assert_unmeasured(launch, Outcome.TIMED_OUT)
    first = "it took longer than the limit of 0.5 s"
    assert launch.notes[0].startswith(first)
    assert said in launch.notes[0]
    assert said or launch.notes[0] == first


MEET = """
index = int(os.environ["XLAUNCH_INSTANCE_INDEX"])
def meet():
    open(f"{index}.pid", "w").close()
    while not os.path.exists(f"{1 - index}.pid"): time.sleep(0.002)
"""
"""Only values count that come when both instances are at work."""


@pytest.mark.long
def test_a_service_of_several_instances_needs_values_of_each(
    two_cpus: None, make_runner: MakeRunner
):
    code = MEET + SERVICE.replace("tell('7 x/s')", "tell('7 x/s'); meet()").replace("@COUNT@", "40")
    enough = measured_by(lambda s: make_runner(code, timeout_s=s).measure(TWO), is_measured)
    assert (enough.outcome, enough.value) == (Outcome.MEASURED, 14.0), enough
    lazy = MEET + SERVICE.replace("@COUNT@", "40 * (1 - index)")
    few = make_runner(lazy, timeout_s=0.5).measure(TWO)
    assert_unmeasured(few, Outcome.TIMED_OUT)
    waits = 'while index and not os.path.exists("0.done"): time.sleep(0.002)\n'
    done = SERVICE.replace("while True:", 'open(f"{index}.done", "w").close()\nwhile True:')
    one_by_one = MEET + waits + done.replace("@COUNT@", "40")
    apart = make_runner(one_by_one, timeout_s=2.0).measure(TWO)
    # Without a further value of instance 0, which ends by one, means of all values count.
    assert apart.value in (None, 14.0), apart


def test_limit_before_anything_has_begun(make_runner: MakeRunner):
    launch = make_runner("time.sleep(60)").measure(DEFAULT, Limits(limit_s=0.0))
    assert_unmeasured(launch, Outcome.TIMED_OUT)


def test_wall_time_is_cut_once_it_is_over(make_runner: MakeRunner):
    program = (sys.executable, "-c", BEGIN + "time.sleep(float(sys.argv[1]))")
    slow = make_runner("", "wall", Goal.MINIMIZE, program=(*program, "60"))
    launch = slow.measure(DEFAULT, Limits(cut_at=0.5))
    assert_unmeasured(launch, Outcome.CUT)
    assert "the time to beat is 0.5 s" in launch.notes[0]
    assert 0.5 < launch.secondary.wall_s < 60
    assert launch.stderr_tail == ""
    quick = make_runner("", "wall", Goal.MINIMIZE, program=(*program, "0.1"))
    assert quick.measure(DEFAULT, Limits(cut_at=30.0)).outcome is Outcome.MEASURED


STEADY = """
for n in range({count}):
    tell(100 + n % 3, "{metric}")
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("metric", "goal", "cut_at", "ends"),
    [
        ("x/s", Goal.MAXIMIZE, 150.0, " at most, and the value to beat is 150"),
        ("ms", Goal.MINIMIZE, 50.0, ""),
    ],
)
def test_what_cannot_win_is_cut(
    make_runner: MakeRunner, metric: str, goal: Goal, cut_at: float, ends: str
):
    runner = make_runner(STEADY.format(count=50_000, metric=metric), metric, goal)
    launch = runner.measure(DEFAULT, Limits(cut_at=cut_at))
    assert_unmeasured(launch, Outcome.CUT)
    assert launch.notes[0].startswith("steady at 10")
    assert launch.notes[0].endswith(ends)
    (series,) = launch.series
    assert 20 < len(series.values) < 50_000


@pytest.mark.parametrize(
    ("metric", "goal", "cut_at"),
    [
        ("x/s", Goal.MAXIMIZE, 90.0),
        pytest.param("loss", Goal.MAXIMIZE, 1e9, marks=pytest.mark.long),
        pytest.param("wall", Goal.MAXIMIZE, 0.1, marks=pytest.mark.long),
    ],
)
def test_what_may_win_or_cannot_be_told_runs_to_its_end(
    make_runner: MakeRunner, metric: str, goal: Goal, cut_at: float
):
    launch = make_runner(STEADY.format(count=80, metric=metric), metric, goal).measure(
        DEFAULT, Limits(cut_at=cut_at)
    )
    assert launch.outcome is Outcome.MEASURED
    if metric != "wall":
        # A rate counts for as long as it lasted, and on a busy machine one may last long.
        assert 100 < launch.value < 102
        assert launch.steadiness is Steadiness.FLAT


# The tuner itself is ended

TUNER = """
import os, sys
from xlaunch.machine import read_machine
from xlaunch.planning import Request
from xtune.launches.launch import Goal, Objective
from xtune.launches.runner import Runner
from xtune.space.parameters import Configuration
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space
machine = read_machine()
request = Request.of(sys.executable, "-c", sys.argv[1], grace_s=0.1)
resolver = Resolver(Space([]), request, os.environ, machine)
runner = Runner(resolver, Objective("x/s", Goal.MAXIMIZE))
try:
    runner.measure(Configuration({}))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_tuner(number: signal.Signals, tmp_path: Path):
    tuner = subprocess.Popen(
        [sys.executable, "-c", TUNER, BEGIN + FOREVER],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        found = lambda: [int(path.stem) for path in tmp_path.glob("*.pid")]  # noqa: E731
        while len(found()) < 2:  # a busy machine may take its time until then
            assert tuner.poll() is None
            time.sleep(0.01)
        assert all(map(is_alive, found()))
        tuner.send_signal(number)
        out, _ = tuner.communicate(timeout=120)
        wait_until(lambda: not any(map(is_alive, found())), "the end of the workload")
        assert out == (b"interrupted\n" if number == signal.SIGINT else b"")
    finally:
        if tuner.poll() is None:
            tuner.kill()
            tuner.wait()


@pytest.mark.machine
def test_a_process_with_many_open_files_can_measure(make_runner: MakeRunner, needs: Needs):
    """select() takes no descriptor from 1,024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needs(hard == resource.RLIM_INFINITY or hard >= 2000, "2,000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(open(os.devnull))
        launch = make_runner("tell('9 x/s')").measure(DEFAULT)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert launch.outcome is Outcome.MEASURED, launch
