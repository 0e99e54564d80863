# SPDX-License-Identifier: Apache-2.0
"""Compare the profiles of one concern (allocator, OpenMP runtime) on the same work, in turns.

A round starts every profile in processes of its own, `--launches` each, and lets them work for a
moment by turns, one at a time, in an order that is drawn anew: what a machine does to all of them
for a minute falls out of their ratios, and what sets one process apart from the next of the same
profile (where its memory lies) is seen and counted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

from measurement import machine_line, option_parser, print_table, until_stopped, write_raw

from xtune.evidence.distributions import student_quantile

WORKLOADS = str(Path(__file__).resolve().parent / "workloads.py")
WORKS = {
    "resnet50-fp32-64": ["resnet50", "--dtype", "float32", "--batch", "64"],
    "resnet50-bf16-64": ["resnet50", "--dtype", "bfloat16", "--batch", "64"],
    "resnet50-fp32-1": ["resnet50", "--dtype", "float32", "--batch", "1"],
    "resnet50-bf16-1": ["resnet50", "--dtype", "bfloat16", "--batch", "1"],
    "bert-fp32-64": ["bert", "--dtype", "float32", "--batch", "64"],
    "bert-bf16-64": ["bert", "--dtype", "bfloat16", "--batch", "64"],
    "bert-fp32-1": ["bert", "--dtype", "float32", "--batch", "1"],
    "bert-bf16-1": ["bert", "--dtype", "bfloat16", "--batch", "1"],
    "blocks": ["blocks", "--batch", "1"],
    "served-bf16-16x1": ["served", "--dtype", "bfloat16", "--clients", "16"],
}
ENOUGH = 0.95
"""The share of the best profile's rate that the profile `auto` must reach on every row."""


class Launch(NamedTuple):
    """What one process did: a rate for each of its turns, and its memory after the last, in MiB."""

    rates: tuple[float, ...]
    peak_mib: float
    resting_mib: float


class Share(NamedTuple):
    """How many times as fast as another: the geometric mean over launches, and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def compare_profiles(
    description: str | None, option: str, profiles: Sequence[str], *, auto: str
) -> int:
    """Measure every profile that `option` of xlaunch names; the first is the peer of the others.

    `auto`: the profile that xlaunch chooses by itself, which is held against the best of each row.
    """
    options = _parse(description, profiles)
    chosen = options.profile or profiles
    cases = {name: (name, []) for name in chosen}
    for entry in options.env:
        name, _, variable = entry.partition("=")
        cases.setdefault(name, (chosen[0], []))[1].append(variable)
    works = options.work or list(WORKS)
    print(machine_line())
    raw: dict[str, dict[str, list[Launch]]] = {work: {name: [] for name in cases} for work in works}
    with until_stopped():
        for number, work in itertools.product(range(options.rounds), works):
            commands = {
                name: [
                    *(sys.executable, "-m", "xlaunch", "-q", option, profile),
                    *(word for entry in environment for word in ("--env", entry)),
                    *(WORKLOADS, *WORKS[work], "--turns", "--seconds", str(options.seconds)),
                ]
                for name, (profile, environment) in cases.items()
            }
            for name, launches in _round(commands, options.launches, options.turns).items():
                raw[work][name] += launches
                rates = [f"{statistics.median(launch.rates):.1f}" for launch in launches]
                shown = f"round {number} {work} {name}: {', '.join(rates) or '-'}"
                print(shown, file=sys.stderr, flush=True)
            # After each one: a machine that is taken away keeps what was measured.
            write_raw(options.json, option.lstrip("-"), {"raw": _plain(raw)})
    measured = {work: row for work, row in raw.items() if any(row.values())}
    header = [f"rate, times {next(iter(cases))}, peak/resting MiB", *cases]
    print_table(header, [_row(work, row) for work, row in measured.items()])
    print()
    print_table(
        [f"{auto} is so many times the", *(name for name in cases if name != auto)],
        [_held_against_others(work, row, auto) for work, row in measured.items() if row.get(auto)],
    )
    print(f"rule: at least {ENOUGH:.0%} of the best of each row; in brackets the 95 % interval")
    return 0


def _parse(description: str | None, profiles: Sequence[str]) -> argparse.Namespace:
    parser = option_parser(description, rounds=2)
    parser.add_argument("--profile", action="append", help=f"default: {', '.join(profiles)}")
    parser.add_argument("--work", action="append", choices=WORKS, help="default: all")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VAR=VALUE",
        help="another case: the first profile with a variable; repeat for several variables",
    )
    parser.add_argument(
        "--launches", type=int, default=3, help="of each profile a round; default 3"
    )
    parser.add_argument("--turns", type=int, default=4, help="of each launch; default 4")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn; default 1")
    return parser.parse_args()


def _round(commands: dict[str, list[str]], launches: int, turns: int) -> dict[str, list[Launch]]:
    """Start `launches` processes of each command; what those did that worked."""
    with contextlib.ExitStack() as stack:
        alive = [
            (name, stack.enter_context(_process(command)))
            for name, command in commands.items()
            for _ in range(launches)
        ]
        # What a process needs for its first turn (reading, first touch) is not counted.
        alive = [(name, process) for name, process in alive if _turn(process) is not None]
        done: dict[int, list[dict]] = {process.pid: [] for _, process in alive}
        drawn = random.Random(0)
        for _ in range(turns):
            drawn.shuffle(alive)
            for _, process in alive:
                if (values := _turn(process)) is not None:
                    done[process.pid].append(values)
    results: dict[str, list[Launch]] = {name: [] for name in commands}
    for name, process in alive:
        if len(values := done[process.pid]) == turns:
            rates = tuple(value["rate"] for value in values)
            last = values[-1]
            results[name].append(Launch(rates, last["peak_mib"], last["resting_mib"]))
    return results


@contextlib.contextmanager
def _process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A workload that measures itself for each line it is sent, and ends with its stdin."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("XLAUNCH_")}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=clean,
        )
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            cast(IO[str], process.stdin).close()
            if process.wait():
                errors.seek(0)
                print(errors.read().strip()[-300:], file=sys.stderr)
            cast(IO[str], process.stdout).close()


def _turn(process: subprocess.Popen[str]) -> dict | None:
    """Let one process measure itself; None when it ended instead."""
    with contextlib.suppress(BrokenPipeError):
        os.write(cast(IO[str], process.stdin).fileno(), b"\n")
    line = cast(IO[str], process.stdout).readline()
    return json.loads(line) if line else None


def _share(launches: Sequence[Launch], others: Sequence[Launch]) -> Share:
    """How many times as fast `launches` are as `others`, turn by turn, each launch counted once."""
    pairs = zip(launches, others, strict=False)
    logs = [
        statistics.fmean(math.log(a / b) for a, b in zip(one.rates, other.rates, strict=True))
        for one, other in pairs
    ]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Share(math.exp(mean), 0.0, math.inf)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = student_quantile(0.025, len(logs) - 1) * error
    return Share(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def _row(work: str, row: dict[str, list[Launch]]) -> list[str]:
    base = next(iter(row.values()))
    cells = [work]
    for launches in row.values():
        if not launches:
            cells.append("-")
            continue
        rate = statistics.median(rate for launch in launches for rate in launch.rates)
        times = f" ({_share(launches, base)}x)" if base and launches is not base else ""
        peak = statistics.median(launch.peak_mib for launch in launches)
        resting = statistics.median(launch.resting_mib for launch in launches)
        cells.append(f"{rate:.1f}{times} {peak:.0f}/{resting:.0f}")
    return cells


def _held_against_others(work: str, row: dict[str, list[Launch]], auto: str) -> list[str]:
    others = [launches for name, launches in row.items() if name != auto]
    return [work, *(str(_share(row[auto], other)) if other else "-" for other in others)]


def _plain(raw: dict[str, dict[str, list[Launch]]]) -> dict[str, dict[str, list[dict]]]:
    return {
        work: {name: [launch._asdict() for launch in launches] for name, launches in row.items()}
        for work, row in raw.items()
    }
