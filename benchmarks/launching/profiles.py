# SPDX-License-Identifier: Apache-2.0
"""Comparison of the profiles of one setting (allocator, OpenMP runtime) on the same workloads."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from benchmarks.harness.measurement import machine_line, print_table
from benchmarks.harness.programs import LAUNCHER
from benchmarks.harness.turns import (
    WORKLOADS,
    Contender,
    ContenderResults,
    measure_rows,
    rate_cell,
    times,
    turn_parser,
)
from benchmarks.harness.works import named_work

WORKS = (
    *(
        f"{model}-{kind}"
        for kind in ("fp32-64", "bf16-64", "fp32-1", "bf16-1")
        for model in ("resnet50", "bert")
    ),
    *("blocks-1", "sentences", "digits", "resnet50-fp32-8", "bert-training-8", "gpt2-bf16-1"),
    "served-bf16-16",
)


def compare_profiles(
    description: str | None,
    option: str,
    profiles: Sequence[str],
    *,
    auto: str,
    rule: str,
    least: float,
) -> int:
    """Measure every profile of xlaunch's `option`; the first is the peer of the others.

    auto
        The profile that xlaunch chooses by itself; a second table compares it with the others.
    rule, least
        The rule by which it was chosen: at least `least` times as fast as any other on every row.
    """
    options = _parse(description, profiles)
    profiles = list(dict.fromkeys(options.profile or profiles))
    print(machine_line())
    rows = (
        (
            work.name,
            {
                name: Contender([*LAUNCHER, option, name, *WORKLOADS, *work.arguments], work.items)
                for name in profiles
            },
        )
        for work in options.work or map(named_work, WORKS)
    )
    measured = measure_rows(rows, options, option.lstrip("-"))
    first = profiles[0]
    print_table(
        [f"rate, times {first} [95 %], peak/resting MiB", *profiles],
        [
            [work, *(_cell(one, row[first]) for one in row.values())]
            for work, row in measured.items()
        ],
    )
    if auto in profiles:
        print()
        others = [name for name in profiles if name != auto]
        rows = [
            [work, *(str(times(row[auto], row[other]) or "-") for other in others)]
            for work, row in measured.items()
        ]
        print_table([f"{auto} is so many times", *others], rows)
        print(f"\nrule of auto: {rule}")
        print(*judgements(measured, auto, least), sep="\n")
    return 0


def judgements(
    measured: Mapping[str, Mapping[str, ContenderResults]], auto: str, least: float
) -> list[str]:
    """List where `auto` is not `least` times as fast as another, where that is open, and count the rest.

    The 95 % confidence intervals decide.
    """
    broken, undecided, kept = [], [], 0
    for work, row in measured.items():
        for name, other in row.items():
            ratio = None if name == auto else times(row[auto], other)
            if ratio is None:
                continue
            if ratio.low >= least:
                kept += 1
                continue
            line = f"{work}, {ratio} times {name}"
            (broken if ratio.high < least else undecided).append(line)
    lines = [f"  broken: {line}" for line in broken]
    lines += [f"  undecided: {line}" for line in undecided]
    return [*lines, f"  kept: {kept} of {kept + len(lines)}"]


def _parse(description: str | None, profiles: Sequence[str]) -> argparse.Namespace:
    parser = turn_parser(description, seconds=0.5)
    parser.add_argument("--profile", action="append", help=f"default: {', '.join(profiles)}")
    parser.add_argument(
        "--work",
        action="append",
        type=named_work,
        metavar="NAME",
        help=f"default: {', '.join(WORKS)}",
    )
    return parser.parse_args()


def _cell(measured: ContenderResults, base: ContenderResults) -> str:
    memory = measured.memory_mib()
    if memory is None:
        return "-"
    peak, resting = memory
    return f"{rate_cell(measured, base)} {peak:.0f}/{resting:.0f}"
