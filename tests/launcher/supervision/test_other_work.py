# SPDX-License-Identifier: Apache-2.0
"""CPUs that others keep busy: what is said of a made-up /proc, and of a real burning process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import run, xlaunch

from xlaunch.errors import WarningKind, kind_of
from xlaunch.machine.processes import TICKS_PER_SECOND
from xlaunch.supervision.instance_run import Samples
from xlaunch.supervision.watches import (
    MIN_SAMPLE_S,
    SAMPLE_S,
    Occupancy,
    StolenTime,
    anything_runs,
)


class Proc:
    """A /proc of four CPUs, in which `work` of ten ticks a sample are used, by `processes`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = [0, 0, 0, 0]
        self.stolen = [700, 700, 700, 700]
        self.processes: dict[int, tuple[str, int, int]] = {}
        """Name, tenths of a CPU, CPU; by PID."""
        self.samples = 0
        self.runnable(2)
        self.write()

    def runnable(self, count: int) -> None:
        (self.root / "loadavg").write_text(f"1.00 1.00 1.00 {count}/99 4242\n")

    def write(self) -> None:
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for cpu, work in enumerate(self.work):
            user = 1000 + self.samples * (work // 2)
            system = 70 + self.samples * (work - work // 2)
            idle, waiting = 5000 + self.samples * (8 - work), self.samples * 2
            lines.append(
                f"cpu{cpu} {user} 50 {system} {idle} {waiting} 0 0 {self.stolen[cpu]} 700 0"
            )
        (self.root / "stat").write_text("\n".join([*lines, "intr 5 6 7", "ctxt 8", ""]))
        for pid, (name, ticks, cpu) in self.processes.items():
            task = self.root / str(pid) / "task" / str(pid)
            task.mkdir(parents=True, exist_ok=True)
            fields = ["0"] * 50
            fields[0], fields[36] = "R", str(cpu)
            fields[11] = str(round(self.samples * ticks * SAMPLE_S * TICKS_PER_SECOND / 10))
            for directory in (task, task.parents[1]):
                (directory / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
                (directory / "comm").write_text(f"{name}\n")

    def pass_time(self) -> None:
        self.samples += 1
        self.write()

    def describe(
        self,
        *cpus: int,
        own: Sequence[int] = (0, 0, 0, 0),
        ours: tuple[int, ...] = (),
        bound: bool = True,
    ) -> str | None:
        """What is said of a run on `cpus` that used `own` ticks of each in the first sample."""
        others = {0, 1, 2, 3}.difference(cpus)
        occupancy = Occupancy(cpus, 0.0, bound=bound, others=others, root=str(self.root))
        ticks = dict(enumerate(own))
        for _ in range(2):
            self.pass_time()
            assert occupancy.look(occupancy.due / 2, ticks, ours) is None
            told = occupancy.look(occupancy.due, ticks, ours)
            if occupancy.due == float("inf"):
                return told
        raise AssertionError


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_idle_cpus_are_no_word_worth(proc: Proc):
    assert proc.describe(0, 1, 2, 3) is None
    assert proc.samples == 1


@pytest.mark.parametrize(("count", "others"), [(1, False), (2, True)])
def test_others_run_where_more_than_this_process_is_runnable(proc: Proc, count: int, others: bool):
    proc.runnable(count)
    assert anything_runs(str(proc.root)) == others


OTHER = {43: ("other", 8, 0)}


def test_busy_cpus_and_their_occupants(golden: Golden, tmp_path: Path):
    few = {42: ("a b) c", 8, 2), 43: ("idler", 0, 2), 44: ("elsewhere", 8, 1)}
    many = {pid: (f"p{pid}", pid - 40, pid % 3) for pid in range(43, 49)}
    said = []
    for number, (cpus, work, processes) in enumerate((
        # Only idle CPUs are offered instead.
        ((0, 1, 2, 3), [8, 0, 0, 0], OTHER), ((0,), [8, 8, 8, 8], OTHER), ((0, 1), [8, 0, 8, 0], OTHER),
        ((0,), [8, 0, 0, 0], OTHER),
        # Of ten ticks; two pass in waiting for a disk.
        ((0, 2, 3), [0, 0, 8, 0], few), ((0, 1, 2, 3), [8, 6, 8, 0], many),
        # Other CPUs are not our business. Nearly a third is busy, and then a third.
        ((2, 3), [8, 8, 0, 0], {}), ((1,), [0, 2, 0, 0], {}), ((1,), [8, 3, 8, 8], {43: ("other", 3, 1)}),
    )):  # fmt: skip
        (tmp_path / str(number)).mkdir()
        proc = Proc(tmp_path / str(number))
        proc.work, proc.processes = work, processes
        proc.write()
        said.append(f"{cpus} of {work}: {proc.describe(*cpus)}")
    golden(said)


def test_work_of_the_run_itself_is_not_that_of_others(golden: Golden, proc: Proc):
    proc.work = [8, 8, 8, 8]
    proc.processes = {42: ("ours", 8, 0), 43: ("other", 4, 1), 44: ("supervisor", 3, 1)}
    proc.write()
    golden(proc.describe(0, 1, 2, own=(8, 4, 6, 0), ours=(42, 44)))


def test_time_that_the_host_took_is_not_work_of_others(proc: Proc):
    proc.work[0] = 2
    occupancy = Occupancy([0], 0.0, root=str(proc.root))
    proc.pass_time()
    proc.stolen[0] += 8
    proc.write()
    occupancy.look(SAMPLE_S, {0: 2}, ())
    assert occupancy.due == float("inf")


@pytest.mark.parametrize(
    ("ended_at", "told"),
    [
        (0.9 * MIN_SAMPLE_S, None),
        (1.1 * MIN_SAMPLE_S, "CPU 0 is busy with other work (80%)"),
    ],
)
def test_short_run_is_told_of_what_one_sample_showed(proc: Proc, ended_at: float, told: str | None):
    proc.work[0] = 8
    occupancy = Occupancy([0], 0.0, root=str(proc.root))
    proc.pass_time()
    assert occupancy.look(ended_at, {}, (), at_end=True) == told
    assert occupancy.look(ended_at, {}, (), at_end=True) is None


@pytest.mark.parametrize(("work", "told"), [([8, 2, 0, 0], False), ([8, 5, 0, 0], True)])
def test_unbound_run_avoids_busy_cpus_unless_they_are_many(proc: Proc, work: list[int], told: bool):
    proc.work = work
    proc.write()
    line = "CPUs 0-1 are busy with other work (65% on average): processes that have ended, or"
    assert str(proc.describe(0, 1, 2, 3, bound=False)).startswith(line) == told
    assert "--cpus" not in str(proc.describe(0, 1, 2, 3, bound=False))


def test_occupants_of_another_container_cannot_be_named(golden: Golden, proc: Proc):
    proc.work[0] = 8
    proc.write()
    assert kind_of(proc.describe(0) or "") is WarningKind.SHARED_CPUS
    golden(proc.describe(0))


def test_proc_that_tells_nothing(proc: Proc):
    for name in ("loadavg", "stat"):
        (proc.root / name).unlink()
    assert anything_runs(str(proc.root))
    occupancy = Occupancy([0], 0.0, root=str(proc.root))
    assert occupancy.look(SAMPLE_S, {}, ()) is None
    assert occupancy.due == float("inf")


def test_time_that_the_host_gave_to_others_is_told_of_our_cpus_alone(golden: Golden, proc: Proc):
    proc.work = [8, 8, 8, 8]
    proc.write()
    counted = StolenTime([1, 2], root=str(proc.root))
    proc.samples += 20
    proc.stolen = [700, 730, 710, 7000]
    proc.write()
    assert kind_of(counted.describe() or "") is WarningKind.SHARED_CPUS
    # 160 ticks of work each, and 40 stolen.
    golden(counted.describe())
    assert StolenTime([1, 2], root=str(proc.root)).describe() is None


@pytest.mark.parametrize(
    ("stolen", "samples", "told"), [(9, 1, False), (10, 1, True), (10, 30, False)]
)
def test_little_stolen_time_is_no_word_worth(proc: Proc, stolen: int, samples: int, told: bool):
    proc.work[0] = 8
    proc.write()
    counted = StolenTime([0], root=str(proc.root))
    proc.samples += samples
    proc.stolen[0] += stolen
    proc.write()
    assert (counted.describe() is not None) == told


def test_no_stolen_time_where_proc_tells_nothing(proc: Proc):
    (proc.root / "stat").unlink()
    assert StolenTime([0], root=str(proc.root)).describe() is None


# A real one


@pytest.fixture
def burner() -> Iterator[int]:
    """The CPU that a process keeps busy. It may be one of many: others use the machine, too."""
    cpu = max(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}}); print(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        yield cpu
        process.kill()


def test_supervised_run_on_a_busy_cpu_gets_a_warning(burner: int, tmp_path: Path):
    """A quiet one has it in the report alone, and a launch in place does not look."""
    report = tmp_path / "report.json"
    words = ("--cpus", str(burner), "sleep", "0.8")
    told = xlaunch("--report", report, *words).err
    (line,) = [line for line in told.splitlines() if "busy with other work" in line]
    assert line.startswith(f"xlaunch: warning: CPU {burner} is busy with other work (")
    assert line.removeprefix("xlaunch: warning: ") in json.loads(report.read_text())["warnings"]
    assert xlaunch("-q", "--report", report, *words).err == ""
    assert "busy with other work" in str(json.loads(report.read_text())["warnings"])
    assert xlaunch(*words).err == ""


def test_busy_cpu_does_not_delay_the_start(burner: int, tmp_path: Path):
    """A run that is over before a sample could be taken has no warning."""
    code = (
        "from xlaunch.supervision import watches; from xlaunch.cli import main\n"
        "watches.SAMPLE_S = watches.MIN_SAMPLE_S = 3600\n"
        "main()"
    )
    report = tmp_path / "report.json"
    words = ("--cpus", str(burner), "--report", report, "true")
    assert run((sys.executable, "-c", code, *words)).code == 0
    warnings = json.loads(report.read_text())["warnings"]
    assert not any("busy with other work" in one for one in warnings)


def test_work_of_ended_children_is_the_program_s_own():
    """Their threads were never looked at; their time is that of the process that waited for them."""
    burn = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.1: pass'"
    code = f"{burn}; {burn}; echo; read line"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["sh", "-c", code], **pipes) as shell:  # type: ignore[call-overload]
        shell.stdout.readline()
        seen = Samples(shell.pid)
        seen.look()
        shell.communicate()
    assert seen.ticks >= 0.15 * TICKS_PER_SECOND
    assert seen.placed_ticks < 0.1 * TICKS_PER_SECOND


def test_stolen_time_is_told_after_a_supervised_run(tmp_path: Path):
    report = tmp_path / "report.json"
    code = (
        "import sys; from xlaunch.supervision import watches; from xlaunch.cli import main\n"
        "watches.StolenTime.describe = lambda self: 'the host took much'\n"
        "sys.argv[0] = 'xlaunch'; main()"
    )
    done = run((sys.executable, "-c", code, "--supervise", "--report", report, "echo", "worked"))
    assert (done.code, done.out) == (0, b"worked\n")
    assert "xlaunch: warning: the host took much\n" in done.err
    assert "the host took much" in json.loads(report.read_text())["warnings"]
