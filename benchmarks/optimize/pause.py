# SPDX-License-Identifier: Apache-2.0
"""Time how long a program takes from its start to a given amount of work: what compiling costs a run.

    python -m benchmarks.optimize.pause
    python -m benchmarks.optimize.pause --works minilm --lengths 5,30 --repeats 3 --json pause.json

For each length, the work is what plain python has done that many seconds after its start, imports included. The
other starts run one after the other until they have done as much as plain python in the longest length, or have
taken three times as long; what they have not done by then is shown as `>`. No rate is extrapolated.

`python`: eager, fp32, the peer. `torch.compile`: python with `model = torch.compile(model)` and an empty cache.
`first`: xlaunch with an empty cache directory. `second`: with the same one, after `xlaunch cache warm` has run
as many batches as have different sizes: what the first has kept is used, and only the rest is compiled. With
several repeats, each begins with python and new caches, and medians are shown.

Goal: no first start takes more than 1.05 times python's time and a second; it is not set for `--optimize-wait`,
which waits for the compiler.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.measurement import (
    goal_line,
    machine_line,
    option_parser,
    print_table,
    until_stopped,
    write_raw,
)
from benchmarks.harness.programs import installed_library, run_checked, variables_without

WORKS = ("resnet50", "minilm")
SIDE = Path(__file__).with_name("pause_works.py")
LENGTHS_S = (5.0, 30.0, 120.0, 600.0)
MAX_TIMES = 3.0
"""A start is ended after so many times the longest length."""

WARM_BATCHES = 32
"""The batches of sentences begin again after so many."""

MAX_RATIO, MAX_MORE_S = 1.05, 1.0
STEADY_PART = 0.25
"""The rate is that of the last part of a run."""

PYTHON = "python"
FIRST = "xlaunch --optimize auto, first"
SECOND = "xlaunch --optimize auto, second"
WAIT = "xlaunch --optimize auto --optimize-wait, first"


class Start(NamedTuple):
    """One start of a work by a competitor."""

    work: str
    competitor: str
    repeat: int
    done_s: tuple[float, ...]
    """When each batch was done, in seconds since the start was asked for."""

    notes: tuple[str, ...] = ()
    """What xruntime said of the model."""

    def time_of(self, batches: int) -> float:
        """Return when so many batches were done; infinity if they never were."""
        return self.done_s[batches - 1] if batches <= len(self.done_s) else float("inf")

    def batches_in(self, seconds: float) -> int:
        return sum(done <= seconds for done in self.done_s)

    @property
    def rate(self) -> float:
        """Batches per second in the last part of the run."""
        end = self.done_s[-1]
        before = self.batches_in((1 - STEADY_PART) * end)
        began = self.time_of(before) if before else 0.0
        return (len(self.done_s) - before) / (end - began)


class Bench:
    """Makes starts, with their caches and files in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environment = variables_without("XRUNTIME_", "TORCHINDUCTOR_", "LD_PRELOAD")
        self._tcmalloc = installed_library("tcmalloc")

    @property
    def competitors(self) -> list[str]:
        """Their names in the order of their runs."""
        allocator = [] if self._tcmalloc is None else [f"{PYTHON} + tcmalloc"]
        return [PYTHON, *allocator, "torch.compile", FIRST, SECOND, WAIT]

    def start(self, work: str, competitor: str, repeat: int, *limits: str) -> Start:
        """Run a work by a competitor until one of the limits, which are options of the side program."""
        caches = self._directory / f"{work}-{repeat}"
        first, waiting = caches / "first", caches / "wait"
        caches.mkdir(mode=0o700, exist_ok=True)
        environment = dict(self._environment)
        wrapper: list[str] = []
        if competitor == "torch.compile":
            environment["TORCHINDUCTOR_CACHE_DIR"] = str(caches / "torch")
            limits = (*limits, "--compile")
        elif competitor == WAIT:
            wrapper = [*_xlaunch(waiting), "--optimize-wait"]
        elif competitor in (FIRST, SECOND):
            wrapper = _xlaunch(first)
        elif competitor != PYTHON:
            environment["LD_PRELOAD"] = str(self._tcmalloc)
        if competitor == SECOND:
            self._run(
                ["--batches", str(WARM_BATCHES)],
                work,
                [*_xlaunch(first, "cache", "warm"), "--"],
                environment,
            )
        return Start(work, competitor, repeat, *self._run(limits, work, wrapper, environment))

    def _run(
        self, limits: Sequence[str], work: str, wrapper: list[str], environment: dict[str, str]
    ) -> tuple[tuple[float, ...], tuple[str, ...]]:
        file = self._directory / "done.txt"
        file.unlink(missing_ok=True)
        began = ("--began", str(time.monotonic()))
        words = [*wrapper, sys.executable, str(SIDE), work, str(file), *began, *limits]
        done = run_checked(words, environment)
        times = tuple([float(line) for line in file.read_text().split()])
        said = tuple([line for line in done.stderr.splitlines() if line.startswith("xruntime: ")])
        return times, said


def _xlaunch(cache: Path, *command: str) -> list[str]:
    options = ["--optimize", "auto", "--cache-dir", str(cache), "--quiet"]
    return [sys.executable, "-m", "xlaunch", *command, *options]


class Row(NamedTuple):
    """A work of a length: for each competitor its seconds, the median over repeats."""

    work: str
    length_s: float
    batches: int
    """What plain python did in it, in the first repeat."""

    seconds: dict[str, float]

    @property
    def name(self) -> str:
        return f"{self.work}, {self.length_s:g} s"


def rows_of(starts: Sequence[Start], lengths: Sequence[float]) -> list[Row]:
    """Return the rows for which plain python did anything."""
    rows = []
    for work in dict.fromkeys(start.work for start in starts):
        plain = {it.repeat: it for it in starts if it.work == work and it.competitor == PYTHON}
        for length in lengths:
            batches = {repeat: start.batches_in(length) for repeat, start in plain.items()}
            if not all(batches.values()):
                continue
            times: dict[str, list[float]] = {}
            for start in starts:
                if start.work == work:
                    time_s = start.time_of(batches[start.repeat])
                    times.setdefault(start.competitor, []).append(time_s)
            medians = {name: statistics.median(values) for name, values in times.items()}
            rows.append(Row(work, length, batches[min(batches)], medians))
    return rows


def goals_of(rows: Sequence[Row]) -> list[str]:
    """Whether the goal is met, a line for each row."""
    return [
        goal_line(
            f"{row.name}: {FIRST}",
            row.seconds[FIRST],
            MAX_RATIO * row.seconds[PYTHON] + MAX_MORE_S,
            "s",
        )
        for row in rows
        if FIRST in row.seconds
    ]


def print_tables(starts: Sequence[Start], rows: Sequence[Row], limit_s: float) -> None:
    """Print seconds and ratios for each row, then first batches and rates."""
    competitors = list(dict.fromkeys(start.competitor for start in starts))

    def shown(row: Row, unit_s: float) -> list[str]:
        values = [row.seconds.get(name) for name in competitors]
        return [
            "-"
            if value is None
            else f"> {limit_s / unit_s:.3g}"
            if value == float("inf")
            else f"{value / unit_s:.3g}"
            for value in values
        ]

    print("Seconds until as many batches were done as python did in the length (left out: none):\n")
    table = [(f"{row.name} ({row.batches} batches)", *shown(row, 1.0)) for row in rows]
    print_table(("work, length", *competitors), table)
    print("\nThe same, times python's:\n")
    table = [(row.name, *shown(row, row.seconds[PYTHON])) for row in rows]
    print_table(("work, length", *competitors), table)
    print()
    table = []
    for work in dict.fromkeys(start.work for start in starts):
        runs = [
            [start for start in starts if start.work == work and start.competitor == name]
            for name in competitors
        ]
        first = [_median([run.done_s[0] for run in some]) for some in runs]
        rate = [_median([run.rate for run in some]) for some in runs]
        table.append((f"{work}: first batch, s", *first))
        table.append((f"{work}: last quarter, batches/s", *rate))
    print_table(("work", *competitors), table)


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g}" if values else "-"


def lengths_from(text: str) -> tuple[float, ...]:
    """Parse lengths in seconds, separated by commas."""
    try:
        lengths = tuple([float(word) for word in text.split(",")])
    except ValueError:
        lengths = ()
    if not lengths or not all(0 < length < float("inf") for length in lengths):
        raise argparse.ArgumentTypeError(
            f"{text!r}: give seconds above 0, separated by commas, such as 5,30"
        )
    return tuple(sorted(set(lengths)))


def at_least_1(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return count


def starts_of(
    bench: Bench, work: str, repeat: int, others: Sequence[str], longest_s: float
) -> Iterator[Start]:
    """Make the starts of one work in one repeat, python's first, which says how much work is enough."""
    if not repeat:  # what it reads is in memory then, for all starts
        bench.start(work, PYTHON, repeat, "--batches", "1")
    plain = bench.start(work, PYTHON, repeat, "--seconds", str(longest_s))
    yield plain
    enough = max(1, plain.batches_in(longest_s))
    for name in others:
        limits = ("--batches", str(enough), "--seconds", str(MAX_TIMES * longest_s))
        yield bench.start(work, name, repeat, *limits)


def write(path: Path | None, starts: Sequence[Start], lengths: Sequence[float]) -> None:
    """Write every raw value so far, and say on standard error what the latest start has done."""
    last = starts[-1]
    done = f"{len(last.done_s)} batches in {last.done_s[-1]:.1f} s"
    print(f"{last.work}, {last.competitor}: {done}", file=sys.stderr)
    raw = [start._asdict() for start in starts]
    goals = goals_of(rows_of(starts, lengths))
    write_raw(path, "pause", {"lengths_s": lengths, "starts": raw, "goals": goals})


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=WORKS, help="default: all")
    parser.add_argument(
        "--lengths",
        type=lengths_from,
        default=LENGTHS_S,
        metavar="SECONDS,...",
        help="the longest is how long python runs (default: 5,30,120,600)",
    )
    parser.add_argument("--repeats", type=at_least_1, default=1, metavar="N", help="default 1")
    parser.add_argument(
        "--competitors", nargs="+", metavar="NAME", help="beside python (default: all)"
    )
    asked = parser.parse_args()
    starts: list[Start] = []
    with tempfile.TemporaryDirectory(prefix="pause-") as directory:
        bench = Bench(Path(directory))
        others = bench.competitors[1:]
        for name in asked.competitors or ():
            if name not in others:
                known = ", ".join(map(repr, others))
                parser.error(f"--competitors: there is no {name!r}; there are {known}")
        others = [name for name in others if name in (asked.competitors or others)]
        if SECOND in others and FIRST not in others:
            parser.error(f"--competitors: {SECOND!r} needs {FIRST!r}")
        print(machine_line())
        with until_stopped():
            for repeat in range(asked.repeats):
                for work in asked.works:
                    for start in starts_of(bench, work, repeat, others, asked.lengths[-1]):
                        starts.append(start)
                        write(asked.json, starts, asked.lengths)
    rows = rows_of(starts, asked.lengths)
    print_tables(starts, rows, MAX_TIMES * asked.lengths[-1])
    print("\n".join(goals_of(rows)))


if __name__ == "__main__":
    main()
