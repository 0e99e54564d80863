# SPDX-License-Identifier: Apache-2.0
"""CPUs that others keep busy: what is said of a made-up /proc, and of a real burning process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.run.launching import PATIENCE_S
from xlaunch.run.occupancy import SAMPLE_S, StolenTime, describe_occupancy, tells_of_others

XLAUNCH = [sys.executable, "-m", "xlaunch"]


class Proc:
    """A /proc of four CPUs, in which `work` ticks a sample are used, by `processes`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = [0, 0, 0, 0]
        self.stolen = [700, 700, 700, 700]
        self.processes: dict[int, tuple[str, int, int]] = {}
        """Name, ticks a sample, CPU; by PID."""
        self.samples = 0
        self.runnable(2)
        self.write()

    def runnable(self, count: int) -> None:
        (self.root / "loadavg").write_text(f"1.00 1.00 1.00 {count}/99 4242\n")

    def write(self) -> None:
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for cpu, work in enumerate(self.work):
            user, nice, system = (
                1000 + self.samples * (work // 2),
                50,
                70 + self.samples * (work - work // 2),
            )
            idle, waiting = 5000 + self.samples * (8 - work), self.samples * 2
            lines.append(
                f"cpu{cpu} {user} {nice} {system} {idle} {waiting} 0 0 {self.stolen[cpu]} 700 0"
            )
        (self.root / "stat").write_text("\n".join([*lines, "intr 5 6 7", "ctxt 8", ""]))
        for pid, (name, ticks, cpu) in self.processes.items():
            task = self.root / str(pid) / "task" / str(pid)
            task.mkdir(parents=True, exist_ok=True)
            fields = ["0"] * 50
            fields[0], fields[11], fields[36] = "R", str(self.samples * ticks), str(cpu)
            for folder in (task, task.parents[1]):
                (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
                (folder / "comm").write_text(f"{name}\n")

    def sleep(self, seconds: float) -> None:
        assert seconds == SAMPLE_S
        self.samples += 1
        self.write()

    def describe(self, *cpus: int) -> str | None:
        return describe_occupancy(cpus, root=str(self.root), sleep=self.sleep)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_idle_cpus_are_no_word_worth(proc: Proc):
    assert proc.describe(0, 1, 2, 3) is None
    assert proc.samples == 1


def test_machine_on_which_nothing_runs_is_not_sampled(proc: Proc):
    proc.work[0] = 8
    proc.runnable(1)
    assert proc.describe(0) is None
    assert proc.samples == 0


def test_busy_cpu_is_named_with_its_share_and_its_occupant(proc: Proc):
    proc.work[2] = 8  # of ten ticks; two pass in waiting for a disk
    proc.processes = {42: ("a b) c", 8, 2), 43: ("idler", 0, 2), 44: ("elsewhere", 8, 1)}
    proc.write()
    assert proc.describe(0, 2, 3) == (
        "CPU 2 is busy with other work (80%): a b) c (PID 42); --cpus takes others"
    )


def test_several_busy_cpus(proc: Proc):
    proc.work = [8, 6, 8, 0]
    proc.processes = {pid: (f"p{pid}", pid - 40, pid % 3) for pid in range(43, 49)}
    proc.write()
    assert proc.describe(0, 1, 2, 3) == (
        "CPUs 0-2 are busy with other work (73% on average): "
        "p48 (PID 48), p47 (PID 47), p46 (PID 46), 3 more; --cpus takes others"
    )


def test_other_cpus_are_not_our_business(proc: Proc):
    proc.work = [8, 8, 0, 0]
    proc.write()
    assert proc.describe(2, 3) is None


@pytest.mark.parametrize(("work", "told"), [(4, False), (5, True)])
def test_half_is_busy(proc: Proc, work: int, told: bool):
    proc.work[1] = work
    proc.write()
    assert (proc.describe(1) is not None) == told


def test_occupants_of_another_container_cannot_be_named(proc: Proc):
    proc.work[0] = 8
    proc.write()
    assert tells_of_others(str(proc.describe(0)))
    assert "busy with other work (80%): of processes that are not seen from here;" in str(
        proc.describe(0)
    )


@pytest.mark.parametrize("name", ["loadavg", "stat"])
def test_proc_that_tells_nothing(proc: Proc, name: str):
    proc.work[0] = 8
    (proc.root / name).unlink()
    if name == "stat":
        proc.write = lambda: None  # type: ignore[method-assign]
        assert proc.describe(0) is None
    else:
        assert proc.describe(0) is not None


def test_time_that_the_host_gave_to_others_is_told_of_our_cpus_alone(proc: Proc):
    proc.work = [8, 8, 8, 8]
    proc.write()
    counted = StolenTime([1, 2], root=str(proc.root))
    proc.samples += 20
    proc.stolen = [700, 730, 710, 7000]
    proc.write()
    assert tells_of_others(str(counted.describe()))
    # 160 ticks of work each, and 40 stolen.
    assert counted.describe() == (
        "the host gave 11% of the time that was wanted of CPUs 1-2 to other machines (steal in "
        "/proc/stat): another run may be as much faster or slower"
    )
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
def burner() -> Iterator[tuple[int, int]]:
    """A process that keeps a CPU busy: its PID and the CPU."""
    cpu = max(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}}); print(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        yield process.pid, cpu
        process.kill()


def launch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*XLAUNCH, *words, "true"],
        capture_output=True,
        check=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_warning_comes_before_a_supervised_run(burner: tuple[int, int], tmp_path: Path):
    pid, cpu = burner
    report = tmp_path / "report.json"
    done = launch("--cpus", str(cpu), "--report", str(report))
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"xlaunch: warning: CPU {cpu} is busy with other work (")
    assert f"(PID {pid})" in first
    (warning,) = json.loads(report.read_text())["warnings"]
    assert first == f"xlaunch: warning: {warning}"


def test_quiet_run_has_it_in_the_report_alone(burner: tuple[int, int], tmp_path: Path):
    report = tmp_path / "report.json"
    assert launch("-q", "--cpus", str(burner[1]), "--report", str(report)).stderr == ""
    assert "busy with other work" in json.loads(report.read_text())["warnings"][0]


def test_launch_in_place_does_not_look(burner: tuple[int, int]):
    assert launch("--cpus", str(burner[1])).stderr == ""


def test_stolen_time_is_told_after_a_supervised_run(tmp_path: Path):
    report = tmp_path / "report.json"
    code = (
        "import sys; from xlaunch.run import occupancy; from xlaunch.cli import main\n"
        "occupancy.StolenTime.describe = lambda self: 'the host took much'\n"
        "sys.argv[0] = 'xlaunch'; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--supervise", "--report", str(report), "echo", "worked"],
        capture_output=True,
        check=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout == "worked\n"
    assert "xlaunch: warning: the host took much\n" in done.stderr
    assert "the host took much" in json.loads(report.read_text())["warnings"]
