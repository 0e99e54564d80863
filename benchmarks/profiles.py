# SPDX-License-Identifier: Apache-2.0
"""Compare the profiles of one concern (allocator, OpenMP runtime) on the same work, in turns."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from measurement import (
    in_turn,
    machine_line,
    option_parser,
    print_table,
    until_stopped,
    write_raw,
)

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


def compare_profiles(description: str | None, option: str, profiles: Sequence[str]) -> int:
    """Measure every profile that `option` of xlaunch names; the first is the peer of the others."""
    options = _parse(description, profiles)
    chosen = options.profile or profiles
    cases = {name: (name, []) for name in chosen}
    for entry in options.env:
        name, _, variable = entry.partition("=")
        cases.setdefault(name, (chosen[0], []))[1].append(variable)
    works = options.work or list(WORKS)
    print(machine_line())
    raw: dict[str, dict[str, list]] = {work: {name: [] for name in cases} for work in works}
    turns = itertools.product(range(options.rounds), works)
    with until_stopped():
        for number, work in turns:
            for name in in_turn(list(cases), number):
                profile, environment = cases[name]
                launcher = [sys.executable, "-m", "xlaunch", "-q", option, profile]
                values = _measure(launcher, environment, WORKS[work], options.seconds)
                raw[work][name].append(values)
                shown = "-" if values is None else f"{values['rate']:.1f}"
                print(f"round {number} {work} {name}: {shown}", file=sys.stderr, flush=True)
                # After each one: a machine that is taken away keeps what was measured.
                write_raw(options.json, option.lstrip("-"), {"raw": raw})
    header = [f"rate, times {next(iter(cases))}, peak/resting MiB", *cases]
    print_table(header, [_row(work, raw[work]) for work in works])
    return 0


def _parse(description: str | None, profiles: Sequence[str]) -> argparse.Namespace:
    parser = option_parser(description, rounds=3)
    parser.add_argument("--profile", action="append", help=f"default: {', '.join(profiles)}")
    parser.add_argument("--work", action="append", choices=WORKS, help="default: all")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VAR=VALUE",
        help="another case: the first profile with a variable; repeat for several variables",
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    return parser.parse_args()


def _measure(
    launcher: list[str], environment: list[str], work: list[str], seconds: float
) -> dict | None:
    """Run one workload once; None when the profile cannot be had here."""
    for entry in environment:
        launcher = [*launcher, "--env", entry]
    command = [*launcher, WORKLOADS, *work, "--seconds", str(seconds)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("XLAUNCH_")}
    done = subprocess.run(command, capture_output=True, text=True, env=clean, check=False)
    if done.returncode:
        print(done.stderr.strip()[-300:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def _row(work: str, raw: dict[str, list]) -> list[str]:
    base = _median(next(iter(raw.values())), "rate")
    cells = [work]
    for values in raw.values():
        rate = _median(values, "rate")
        if rate is None:
            cells.append("-")
            continue
        times = f" ({rate / base:.2f}x)" if base else ""
        memory = f"{_median(values, 'peak_mib'):.0f}/{_median(values, 'resting_mib'):.0f}"
        cells.append(f"{rate:.1f}{times} {memory}")
    return cells


def _median(values: list, key: str) -> float | None:
    present = [value[key] for value in values if value is not None]
    return statistics.median(present) if present else None
