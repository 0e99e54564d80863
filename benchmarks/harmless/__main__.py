# SPDX-License-Identifier: Apache-2.0
"""Compare time and peak memory of programs of many kinds behind xlaunch with those under plain python.

    python -m benchmarks.harmless
    python -m benchmarks.harmless --programs joblib dask --seconds 60 --quota 0 2 --json harmless.json

Each program does a fixed amount of work, which takes python some seconds, in new processes, in turns under python
and xlaunch. The time is that of the work; the start-up before it (imports, workers, a first small piece of work) stands
apart. Peak memory is the sum of the peaks of resident memory (VmHWM) of the program's processes, those that exist at a
time, at its largest, sampled every 50 ms: what an allocator keeps between peaks does not count. It
is repeated in a control group with a CPU quota, where one can be made.

Goals, for each program: the 95 % confidence interval of the ratio of times ends at 1.05 or below, and the ratio of
peak memory is at most 1.05.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.comparison import times_faster
from benchmarks.harness.measurement import (
    Result,
    machine_line,
    option_parser,
    print_table,
    until_stopped,
    write_raw,
)
from benchmarks.harness.programs import environment, running, xlaunch_command
from benchmarks.harness.quota import QuotaGroup, make_group
from benchmarks.harness.turns import Times
from xlaunch.machine.processes import descendants

HERE = Path(__file__).parent
MODULES = {
    "joblib": ("joblib", "numpy"),
    "grid-search": ("sklearn",),
    "dask": ("dask.array", "distributed"),
    "ray": ("ray", "numpy"),
    "lightning": ("lightning", "torch"),
    "ddp": ("torch",),
    "dataloader": ("torch",),
    "spawn": ("numpy",),
    "subprocesses": ("numpy",),
    "numpy": ("numpy",),
    "frugal": ("numpy",),
    "openmp": (),
    "gunicorn": ("gunicorn", "numpy"),
}
"""The programs, and what each needs. All but two are functions of programs.py or torch_programs.py."""

LIMIT = 1.05
SIDES = ("python", "xlaunch")
SAMPLE_S = 0.05
MAX_RUN_S = 300.0


class ProgramRun(NamedTuple):
    """One run of a program."""

    startup_s: float
    """From its start to the beginning of its work."""
    work_s: float
    peak_bytes: int


class Measured(NamedTuple):
    """The runs of one program under both launchers, pair by pair."""

    program: str
    quota: float
    """The CPU quota, in CPUs; 0: none."""
    units: int
    runs: dict[str, list[ProgramRun]]

    def ratio(self, field: str) -> Times:
        """Return xlaunch's value over python's with its 95 % confidence interval, from the pairs."""
        python, xlaunch = (
            Result(side, tuple([float(getattr(run, field)) for run in self.runs[side]]))
            for side in SIDES
        )
        return times_faster(python, xlaunch)

    def median(self, side: str, field: str) -> float:
        return statistics.median([getattr(run, field) for run in self.runs[side]])

    def goals(self) -> list[str]:
        """Whether time and memory are within the limit; open while the interval of the time contains it."""
        times, memory = self.ratio("work_s"), self.ratio("peak_bytes")
        of_time = "met" if times.high <= LIMIT else "MISSED" if times.low > LIMIT else "open"
        of_memory = "met" if memory.ratio <= LIMIT else "MISSED"
        where = self.program + (f", quota {self.quota:g}" if self.quota else "")
        return [
            f"goal {of_time}: {where}: {times} times python's time, at most {LIMIT}",
            f"goal {of_memory}: {where}: {memory} times python's peak memory, at most {LIMIT}",
        ]


class RunFailedError(Exception):
    """A program ended without a result."""


class Bench:
    """Runs programs, with their files in `directory`."""

    def __init__(self, directory: Path, group: QuotaGroup | None) -> None:
        self._directory = directory
        self._group = group
        self._result = directory / "result"
        left_out = ("PYTHONDONTWRITEBYTECODE", "WEB_CONCURRENCY")
        self._environment = {k: v for k, v in environment().items() if k not in left_out}
        self._environment["HARMLESS_TASKS"] = str(len(os.sched_getaffinity(0)))
        self._environment["HARMLESS_RESULT"] = str(self._result)

    def obstacle(self, program: str) -> str | None:
        """Return why a program cannot be measured, or None."""
        absent = [name for name in MODULES[program] if not _has_module(name)]
        if absent:
            return f"{', '.join(absent)} is not installed"
        if program == "openmp":
            binary = self._directory / "openmp"
            words = ("cc", "-O2", "-fopenmp", HERE / "openmp.c", "-o", binary, "-lm")
            if shutil.which("cc") is None or subprocess.run(words, check=False).returncode:
                return "a C compiler with OpenMP is not installed"
        return None

    def measure(
        self, program: str, quota: float, seconds: float, run_s: float, pairs: int
    ) -> Iterator[Measured]:
        """Yield the runs so far after each pair, until both sides have run for `seconds`."""
        group = self._group
        first = self._run("python", program, 1, group)  # reads files into memory, too
        units = max(1, round(run_s / first.work_s))
        self._run("xlaunch", program, units, group)
        runs: dict[str, list[ProgramRun]] = {side: [] for side in SIDES}
        began = time.perf_counter()
        while len(runs["python"]) < pairs or time.perf_counter() < began + 2 * seconds:
            order = SIDES if len(runs["python"]) % 2 else SIDES[::-1]
            pair = {side: self._run(side, program, units, group) for side in order}
            for side, run in pair.items():
                runs[side].append(run)
            if len(runs["python"]) > 1:
                yield Measured(program, quota, units, runs)

    def _run(self, side: str, program: str, units: int, group: QuotaGroup | None) -> ProgramRun:
        if program == "openmp":
            words = [str(self._directory / "openmp")]
        elif program == "gunicorn":
            settings = ["--config", "python:benchmarks.harmless.gunicorn_settings"]
            module = "benchmarks.harmless.programs:application"
            words = [sys.executable, "-m", "gunicorn", *settings, module]
        elif "torch" in MODULES[program]:
            words = [sys.executable, "-m", "benchmarks.harmless.torch_programs", program]
        else:
            words = [sys.executable, str(HERE / "programs.py"), program]
        if side == "xlaunch":
            words = [*xlaunch_command(), "--quiet", *words]
        if group is not None:
            words = group.inside(words)
        self._result.unlink(missing_ok=True)
        began = time.perf_counter()
        peak = 0
        with tempfile.TemporaryFile() as output:
            variables = {**self._environment, "HARMLESS_UNITS": str(units)}
            with running(words, env=variables, stdout=output, stderr=subprocess.STDOUT) as process:
                while process.poll() is None and time.perf_counter() - began < MAX_RUN_S:
                    peak = max(peak, _peak_bytes(process.pid))
                    time.sleep(SAMPLE_S)
            if process.returncode or not self._result.exists():
                output.seek(0)
                last = output.read().decode(errors="replace")[-500:]
                raise RunFailedError(f"failed under {side}, exit code {process.returncode}: {last}")
        work_began, work_ended = map(float, self._result.read_text().split())
        return ProgramRun(work_began - began, work_ended - work_began, peak)


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _peak_bytes(pid: int) -> int:
    """The sum of the peaks of a process and its descendants so far."""
    total = 0
    for process in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process}/status").read_text()
            kib = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
            total += 1024 * sum(map(int, kib))  # a zombie has none
    return total


def print_tables(measured: Sequence[Measured]) -> None:
    """Print a table for each quota."""
    for quota in dict.fromkeys(one.quota for one in measured):
        limit = f"with a CPU quota of {quota:g}" if quota else "without a CPU quota"
        print(f"\nxlaunch beside python, {limit}; ratios with 95 % confidence intervals\n")
        rows = []
        for one in [it for it in measured if it.quota == quota]:
            python, xlaunch = (1000 * one.median(side, "startup_s") for side in SIDES)
            memory = one.median("python", "peak_bytes") / 2**20
            rows.append(
                (
                    f"{one.program} ({len(one.runs['python'])} pairs)",
                    f"{one.median('python', 'work_s'):.2f} s",
                    str(one.ratio("work_s")),
                    f"{memory:.0f} MiB",
                    str(one.ratio("peak_bytes")),
                    f"{python:.0f} ms",
                    f"{xlaunch - python:+.0f} ms",
                )
            )
        header = ("program", "time", "ratio", "peak memory", "ratio", "start-up", "xlaunch adds")
        print_table(header, rows)


def main() -> None:
    cpus = len(os.sched_getaffinity(0))
    parser = option_parser(__doc__)
    parser.add_argument("--programs", nargs="+", choices=MODULES, default=[*MODULES], metavar="NAME",
                        help=f"default: all of {' '.join(MODULES)}")  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of each program and side (default 20)"
    )
    parser.add_argument("--quota", type=float, nargs="+", default=[0.0, cpus / 2], metavar="CPUS",
                        help="CPU quotas, 0 for none; default: 0, and half of the CPUs")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="three short pairs of each program")
    asked = parser.parse_args()
    for quota in asked.quota:
        if not (quota == 0 or 0.01 <= quota <= cpus):
            parser.error(f"--quota {quota:g}: 0, or 0.01 to {cpus} CPUs")
    lengths = (0.0, 0.5, 3) if asked.quick else (asked.seconds, 2.5, 5)
    measured: list[Measured] = []
    absent: dict[str, str] = {}
    print(machine_line())
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="harmless-"))
        stack.enter_context(until_stopped())
        for quota in asked.quota:
            group = make_group(quota) if quota else None
            if group is not None:
                stack.callback(group.remove)
            elif quota:
                absent[f"quota {quota:g}"] = "no control group for CPU time can be made"
                continue
            bench = Bench(Path(directory), group)
            for name in asked.programs:
                if reason := bench.obstacle(name):
                    absent[name] = reason
                    continue
                try:
                    for latest in bench.measure(name, quota, *lengths):
                        measured = [it for it in measured if it[:2] != latest[:2]] + [latest]
                except RunFailedError as error:
                    absent[name] = str(error)
                    continue
                print(*latest.goals(), sep="\n", file=sys.stderr, flush=True)
                write(asked.json, measured, absent)
    for name, reason in absent.items():
        print(f"{name}: not measured, {reason}")
    print_tables(measured)
    print("", *[line for one in measured for line in one.goals()], sep="\n")
    write(asked.json, measured, absent)


def write(path: Path | None, measured: Sequence[Measured], absent: dict[str, str]) -> None:
    """Write every raw value so far."""
    raw = {
        "memory": "largest sum of VmHWM over the processes of a program, sampled",
        "absent": absent,
        "goals": [line for one in measured for line in one.goals()],
        "programs": [
            one._asdict() | {"runs": {s: [it._asdict() for it in r] for s, r in one.runs.items()}}
            for one in measured
        ],
    }
    write_raw(path, "harmless", raw)


if __name__ == "__main__":
    main()
