# SPDX-License-Identifier: Apache-2.0
"""Comparisons of one piece of work done in several ways, in interleaved rounds of one run."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.harness.measurement import Case, Result, print_table, quartiles, time_cell
from benchmarks.harness.other_python_side import MIN_MEASURED_S, seconds_of_one
from benchmarks.harness.turns import Times
from xtune.evidence.ratios import student_quantile


class RatioGoal(NamedTuple):
    """A ratio of times that ours should reach."""

    times_faster: float
    peers: tuple[str, ...] = ()
    """The fastest of these counts. Empty: of all others."""


class Comparison(NamedTuple):
    """Cases that do the same work."""

    title: str
    ours: str
    """The name of the case that the others are compared with."""
    cases: list[Case]
    goal: RatioGoal | None = None


def repeated(name: str, call: Callable[[], object]) -> Case:
    """Make a case that repeats a call for MIN_MEASURED_S and returns the seconds of one."""
    return Case(name, partial(seconds_of_one, call, MIN_MEASURED_S))


def times_faster(ours: Result, other: Result) -> Times:
    """Return other's time over ours with its 95 % confidence interval, from the rounds' ratios."""
    pairs = zip(other.seconds, ours.seconds, strict=True)
    logs = [math.log(a / b) for a, b in pairs]
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = student_quantile(0.025, len(logs) - 1) * error
    return Times(*(math.exp(mean + way * reach) for way in (0, -1, 1)))


def torch_line() -> str:
    """Describe torch and what its operators run on in one line."""
    import torch

    from xruntime import native

    return (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads;"
        f" instruction set {native.isa_name()}; load {os.getloadavg()[0]:.1f}"
    )


def report(comparison: Comparison, results: Sequence[Result]) -> list[str]:
    """Print the table of a comparison; return the line of its goal, if there is one."""
    by_name = {result.name: result for result in results}
    ours = by_name[comparison.ours]
    rows = []
    for result in results:
        ratio = "" if result is ours else str(times_faster(ours, result))
        rows.append([result.name, time_cell(result.seconds), ratio])
    print(f"\n{comparison.title}\n")
    print_table(["what", "time (quartiles)", f"{comparison.ours} is faster by [95 %]"], rows)
    goal = comparison.goal
    if goal is None:
        return []
    names = goal.peers or tuple(name for name in by_name if name != comparison.ours)
    best = min((by_name[name] for name in names), key=lambda one: quartiles(one.seconds).median)
    gain = times_faster(ours, best)
    verdict = "met" if gain.ratio >= goal.times_faster else "MISSED"
    return [
        f"goal {verdict}: {comparison.title}: {gain} times as fast as {best.name}, at least"
        f" {goal.times_faster:g}"
    ]
