# SPDX-License-Identifier: Apache-2.0
"""Contenders that are alive at the same time and work in turns, one at a time.

The speed of a shared machine changes from second to second by more than most differences of interest,
and launches of one command differ for as long as they live. So each contender is started several times,
and each launch works for a moment, in a new random order in every turn. What the machine does to all of
them cancels out in the ratios, and differences between launches are in the confidence intervals. The
start and the first turn do not count.

A contender is any number of processes, under any launcher, that enter `step_gate.StepGate` for each step. File
locks in a directory decide whose turn it is, without polling.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from benchmarks.harness.measurement import at_least_2, option_parser, until_stopped, write_raw
from benchmarks.harness.programs import end_group, signal_group, start_group
from benchmarks.harness.step_gate import ALIVE, FLOOR, GATE, STEP
from xlaunch.supervision.watches import StolenTime
from xtune.evidence.ratios import student_quantile

MIN_STEPS = 3
"""Minimum steps of each slot in a turn; the first one starts the clock."""

MAX_START_S = 600.0
MAX_END_S = 20.0


class Contender(NamedTuple):
    """A command, and the number of items in one of its steps."""

    command: Sequence[str]
    """The word `DIRECTORY` is replaced by the directory for `StepGate`."""
    items: int = 1
    """Items of a step, such as the size of a batch."""
    processes: int = 1


DIRECTORY = "{turns}"

WORKLOADS = (str(Path(__file__).with_name("workloads.py")), DIRECTORY)
"""The program of most contenders, by its path, since run_cpu takes no modules."""


class LaunchResults(NamedTuple):
    """The results of one launch, by turn; empty if it ended by itself."""

    rates: list[float]
    """Items a second, over all its processes."""
    latencies_s: list[float]
    """The latency of every step of the counted turns."""
    stolen: list[float]
    """The share of CPU time that the host took, in each turn (steal)."""
    memory_mib: list[tuple[float, float]]
    """After each turn: peak and resting memory, over its processes."""


class ContenderResults(NamedTuple):
    """The results of a contender's launches."""

    launches: tuple[LaunchResults, ...]

    def plain(self) -> dict[str, object]:
        """Return plain values for JSON."""
        p50, p99 = self.percentiles_ms()
        return {
            "rate": self.rate(),
            "p50_ms": p50,
            "p99_ms": p99,
            "launches": [
                {
                    "rates": launch.rates,
                    "stolen": launch.stolen,
                    "peak_and_resting_mib": launch.memory_mib,
                    "steps": len(launch.latencies_s),
                }
                for launch in self.launches
            ],
        }

    def levels(self) -> list[float]:
        """Return the median rate over turns of each launch that worked."""
        return [statistics.median(launch.rates) for launch in self.launches if launch.rates]

    def rate(self) -> float | None:
        """Return the geometric mean over launches; None if none worked."""
        levels = self.levels()
        return statistics.geometric_mean(levels) if levels else None

    def memory_mib(self) -> tuple[float, float] | None:
        """Return peak and resting memory after the latest turn, as the mean over launches."""
        latest = [launch.memory_mib[-1] for launch in self.launches if launch.memory_mib]
        if not latest:
            return None
        peaks, resting = zip(*latest, strict=True)
        return statistics.fmean(peaks), statistics.fmean(resting)

    def percentiles_ms(self) -> tuple[float | None, float | None]:
        """Return the median and 99th percentile of a step; the latter needs 100 steps."""
        latencies = [value for launch in self.launches for value in launch.latencies_s]
        if not latencies:
            return None, None
        values = np.asarray(latencies) * 1e3
        p99 = float(np.percentile(values, 99)) if len(values) >= 100 else None
        return float(np.median(values)), p99


class Times(NamedTuple):
    """A ratio of rates with its 95 % confidence interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def verdict(self, least: float) -> str:
        """Judge the goal of at least so much: ``open`` while the confidence interval contains it."""
        return "met" if self.low >= least else "MISSED" if self.high < least else "open"


def times(measured: ContenderResults, base: ContenderResults) -> Times | None:
    """Compare rates by Welch's t on the logarithms of launches; None with fewer than two launches."""
    ours, theirs = (np.log(one.levels()) for one in (measured, base))
    if min(len(ours), len(theirs)) < 2:
        return None
    difference = float(ours.mean() - theirs.mean())
    errors = [float(logs.var(ddof=1)) / len(logs) for logs in (ours, theirs)]
    reach = 0.0
    if any(errors):
        freedoms = (len(ours) - 1, len(theirs) - 1)
        shares = (error**2 / freedom for error, freedom in zip(errors, freedoms, strict=True))
        degrees = sum(errors) ** 2 / sum(shares)
        reach = student_quantile(0.025, degrees) * math.sqrt(sum(errors))
    return Times(*(math.exp(difference + way * reach) for way in (0, -1, 1)))


def rate_cell(measured: ContenderResults, base: ContenderResults, count: str = "") -> str:
    """Format a table cell: the rate, the count of processes if it is given, and the ratio to `base`."""
    rate = measured.rate()
    if rate is None:
        return "-"
    shown = f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
    shown += f" by {count}" if count else ""
    ratio = None if measured is base else times(measured, base)
    return shown if ratio is None else f"{shown} ({ratio})"


def turn_parser(description: str | None, *, seconds: float) -> argparse.ArgumentParser:
    """Make a parser with the options of every benchmark whose contenders take turns."""
    parser = option_parser(description)
    parser.add_argument(
        "--launches",
        type=at_least_2,
        default=4,
        help="launches of each contender, all alive; default 4",
    )
    parser.add_argument(
        "--turns", type=at_least_2, default=6, help="turns of each launch; default 6"
    )
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"length of a turn; default {seconds:g}"
    )
    return parser


def measure_rows(
    rows: Iterable[tuple[str, Mapping[str, Contender]]], options: argparse.Namespace, benchmark: str
) -> dict[str, dict[str, ContenderResults]]:
    """Let the contenders of each row take turns; return the results, also when it is stopped early.

    `options` are those of `turn_parser`.
    """
    measured: dict[str, dict[str, ContenderResults]] = {}
    with until_stopped():
        for title, contenders in rows:
            for row in take_turns(
                contenders,
                launches=options.launches,
                turns=options.turns,
                seconds=options.seconds,
                title=title,
            ):
                measured[title] = row
                # After each turn, in case the machine is lost.
                plain = {t: {n: m.plain() for n, m in r.items()} for t, r in measured.items()}
                write_raw(options.json, benchmark, {"raw": plain})
    return measured


def take_turns(
    contenders: Mapping[str, Contender], *, launches: int, turns: int, seconds: float, title: str
) -> Iterator[dict[str, ContenderResults]]:
    """Launch all, let them work in turns, and yield the results so far after each turn.

    A launch that cannot be started, or ends, is reported on stderr and has no rates.
    """
    measured = {
        name: ContenderResults(tuple(LaunchResults([], [], [], []) for _ in range(launches)))
        for name in contenders
    }
    with contextlib.ExitStack() as stack:
        alive = {
            (name, number): stack.enter_context(_Alive(f"{name}, launch {number + 1},", contender))
            for number in range(launches)
            for name, contender in contenders.items()
        }
        for one in alive.values():
            stack.callback(one.stop)  # stop all before waiting for the first
        for key, one in list(alive.items()):
            # The first turn warms up: it allocates and compiles.
            if not one.is_ready() or one.work(0.0) is None:
                del alive[key]
        drawn = random.Random(0)
        for turn in range(turns):
            order = list(alive)
            drawn.shuffle(order)
            worked = {key: alive[key].work(seconds) for key in order}
            for (name, number), done in worked.items():
                launched = measured[name].launches[number]
                if done is None:
                    del alive[name, number]
                    for values in launched:
                        values.clear()
                    continue
                launched.rates.append(done.rate)
                launched.latencies_s.extend(done.latencies_s)
                launched.stolen.append(done.stolen)
                launched.memory_mib.append(alive[name, number].memory_mib())
            lost = max((done.stolen for done in worked.values() if done), default=0.0)
            shown = ", ".join(f"{name} {_shown(one)}" for name, one in measured.items())
            line = f"{title}, turn {turn + 1}: {shown}; at most {lost:.0%} of the CPUs stolen"
            print(line, file=sys.stderr, flush=True)
            yield measured


def _shown(measured: ContenderResults) -> str:
    """Format the latest turn of each launch."""
    latest = [f"{launch.rates[-1]:.1f}" for launch in measured.launches if launch.rates]
    return " ".join(latest) or "-"


class _Work(NamedTuple):
    """The results of one turn."""

    rate: float
    latencies_s: list[float]
    stolen: float


class _Alive:
    """A running launch of a contender, which works when asked."""

    def __init__(self, name: str, contender: Contender) -> None:
        self._name = name
        self._contender = contender

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._errors = self._stack.enter_context(tempfile.TemporaryFile("w+"))
        self._gate, self._floor, alive = (
            os.open(self._directory / name, os.O_RDWR | os.O_CREAT, 0o600)
            for name in (GATE, FLOOR, ALIVE)
        )
        for lock in (self._gate, self._floor, alive):
            self._stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        command = [
            str(self._directory) if word == DIRECTORY else word for word in self._contender.command
        ]
        self._process = start_group(
            command, cwd=None, stdout=subprocess.DEVNULL, stderr=self._errors
        )
        return self

    def __exit__(self, *_: object) -> None:
        end_group(self._process, MAX_END_S)
        self._stack.close()

    def stop(self) -> None:
        """Ask it to end, and do not wait for it."""
        signal_group(self._process)

    def is_ready(self) -> bool:
        """Wait until all processes are at their first step; False when it ended instead."""
        until = time.monotonic() + MAX_START_S
        while len(list(self._directory.glob("*.steps"))) < self._contender.processes:
            if self._has_ended():
                return False
            if time.monotonic() > until:
                print(f"{self._name} did not start in {MAX_START_S:.0f} s", file=sys.stderr)
                return False
            time.sleep(0.05)
        self._files = sorted(self._directory.glob("*.steps"))
        return True

    def work(self, seconds: float) -> _Work | None:
        """Run one turn; None if the launch ended."""
        if self._has_ended():
            return None
        starts = {path: path.stat().st_size for path in self._files}
        slots = sum(_slots(path) for path in self._files)
        stolen = StolenTime(os.sched_getaffinity(0))
        began = time.perf_counter()
        fcntl.flock(self._floor, fcntl.LOCK_UN)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        time.sleep(seconds)
        while len(done := self._steps(starts)) < slots or min(map(len, done.values())) < MIN_STEPS:
            if self._has_ended():
                return None
            time.sleep(0.02)
        lost = stolen.share()
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._floor, fcntl.LOCK_EX)
        rate = 0.0
        for steps in done.values():
            (_, first), (_, last) = steps[0], steps[-1]
            rate += (len(steps) - 1) / (last - first)
        latencies = [
            end - start for steps in done.values() for start, end in steps if start >= began
        ]
        return _Work(rate * self._contender.items, latencies, lost)

    def memory_mib(self) -> tuple[float, float]:
        """Return peak and resting memory, summed over its processes."""
        peak = resting = 0.0
        for path in self._files:
            status = Path(f"/proc/{path.name.partition('-')[0]}/status").read_text()
            kib = {
                line.split(":")[0]: line.split()[1] for line in status.splitlines() if "kB" in line
            }
            peak += int(kib["VmHWM"]) / 1024
            resting += int(kib["VmRSS"]) / 1024
        return peak, resting

    def _steps(
        self, starts: Mapping[Path, int]
    ) -> dict[tuple[Path, int], list[tuple[float, float]]]:
        """Read the steps that ended since `starts`, by process and slot."""
        steps: dict[tuple[Path, int], list[tuple[float, float]]] = {}
        for path, start in starts.items():
            with path.open("rb") as stream:
                stream.seek(start)
                content = stream.read()
            whole = len(content) // STEP.size * STEP.size
            for slot, began, ended in STEP.iter_unpack(content[:whole]):
                steps.setdefault((path, slot), []).append((began, ended))
        return steps

    def _has_ended(self) -> bool:
        if self._process.poll() is None:
            return False
        # Processes that it left behind must not work in the turns of others.
        signal_group(self._process, signal.SIGKILL)
        self._errors.seek(0)
        print(f"{self._name} ended: {self._errors.read().strip()[-500:]}", file=sys.stderr)
        return True


def _slots(path: Path) -> int:
    return int(path.stem.partition("-")[2])
