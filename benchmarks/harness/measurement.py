# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benchmarks: interleaved rounds, quartiles, tables, files of raw values.

Every benchmark is a module of these directories. It measures each case once in every round, so
that a machine that is slow for a while is slow for all cases. It prints a table that includes the peer
and, with `--json FILE`, writes every raw value.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple


class Case(NamedTuple):
    """One thing to measure."""

    name: str
    measure: Callable[[], float]
    """Runs it once and returns the seconds."""


class Result(NamedTuple):
    """The values of one case, one for each round."""

    name: str
    seconds: tuple[float, ...]


class Quartiles(NamedTuple):
    low: float
    median: float
    high: float


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser without options that names the command as it is typed."""
    spec = sys.modules["__main__"].__spec__
    return argparse.ArgumentParser(
        prog=None if spec is None else f"python -m {spec.name.removesuffix('.__main__')}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def option_parser(description: str | None, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """Make a parser with the options of every benchmark, and `--rounds` if a default is given."""
    parser = command_parser(description)
    if rounds is not None:
        parser.add_argument("--rounds", type=at_least_2, default=rounds, help=f"default {rounds}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every raw value to FILE")
    return parser


def at_least_2(text: str) -> int:
    """Parse a count of at least 2."""
    count = int(text)
    if count < 2:
        raise argparse.ArgumentTypeError("at least 2 are needed to estimate their spread")
    return count


def measure_rounds(cases: Sequence[Case], rounds: int) -> list[Result]:
    """Measure each case once in every round, after a warm-up round."""
    seconds: dict[str, list[float]] = {case.name: [] for case in cases}
    by_name = {case.name: case for case in cases}
    for number in range(rounds + 1):
        for name in in_turn(list(by_name), number):
            taken_s = by_name[name].measure()
            if number:
                seconds[name].append(taken_s)
    return [Result(name, tuple(values)) for name, values in seconds.items()]


def in_turn(cases: Sequence[str], round_number: int) -> list[str]:
    """Return the cases of a round; each round begins with another case."""
    first = round_number % len(cases)
    return [*cases[first:], *cases[:first]]


@contextlib.contextmanager
def until_stopped() -> Iterator[None]:
    """Let SIGTERM (`timeout`) and Ctrl-C end the measurement, and continue with the results so far."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print("stopped early: the table has the results so far", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles, interpolated between neighbouring values."""
    return Quartiles(*statistics.quantiles(values, n=4, method="inclusive"))


def ratio(result: Result, base: Result) -> Quartiles:
    """Return the quartiles of the ratios of a case's seconds to those of `base`, round by round."""
    return quartiles([a / b for a, b in zip(result.seconds, base.seconds, strict=True)])


def machine_line() -> str:
    """Describe machine and interpreter in one line."""
    return (
        f"{cpu_model()}, {len(os.sched_getaffinity(0))} CPUs; Linux {platform.release()};"
        f" Python {platform.python_version()}"
    )


def cpu_model() -> str:
    """Return the processor's name, or the architecture if the kernel has none."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def time_cell(seconds: Sequence[float], unit: str = "ms", digits: int = 2) -> str:
    """Format the median and the quartiles of seconds in a unit, ms or us."""
    low, median, high = (value * {"ms": 1e3, "us": 1e6}[unit] for value in quartiles(seconds))
    return f"{median:.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f})"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table: first column left-aligned, others right-aligned."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]

    def printed(line: Sequence[str]) -> str:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return f"| {' | '.join(cells)} |"

    print(printed(header))
    rules = ["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]
    print(f"|{'|'.join(rules)}|")
    for row in rows:
        print(printed(row))


def number_cell(value: float | None, digits: int = 1) -> str:
    """Format a number with so many decimals, or `-` where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def goal_line(name: str, value: float, limit: float, unit: str) -> str:
    """Report whether a goal is met, with both numbers."""
    verdict = "met" if value <= limit else "MISSED"
    return f"goal {verdict}: {name}: {value:.3g} {unit}, at most {limit:.3g}"


def write_json(
    path: Path | None, benchmark: str, results: Sequence[Result], goals: Sequence[str]
) -> None:
    """Write every raw value and its metadata, if a path is given."""
    cases = [{"name": r.name, "seconds": r.seconds} for r in results]
    write_raw(path, benchmark, {"goals": list(goals), "cases": cases})


def write_raw(path: Path | None, benchmark: str, values: dict[str, object]) -> None:
    """Write `values` and their metadata, if a path is given."""
    if path is None:
        return
    content = {
        "schema": 1,
        "benchmark": benchmark,
        "arguments": sys.argv[1:],
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "allowed_cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **values,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
