# SPDX-License-Identifier: Apache-2.0
"""The test that a running launch can no longer win, so that it may be ended early.

Wall time to be minimized: more time has passed than the launch may take.

A rate to be maximized, or a latency to be minimized: every instance is steady, has been steady for at
least as long as it ran before, and its favourable bound does not reach the value to beat. The bound is
the better of the best of ten batches of the steady values, and the one-sided 99.95 % confidence bound
of the batches' mean; batches are less correlated than single values. Each instance needs `MIN_VALUES`
values.

Other metrics are never cut: the final value of an accuracy, for example, cannot be predicted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from xlaunch.metrics.metric_lines import Kind
from xlaunch.text import number
from xtune.launches.launch import Goal, Series, Steadiness
from xtune.launches.steadiness import judge

MIN_VALUES = 20
BATCHES = 10
STUDENT = 4.781
"""The 99.95 % quantile of Student's t with nine degrees of freedom."""


def may_be_cut(kind: Kind, goal: Goal) -> bool:
    """Whether launches with such an objective may be cut."""
    return (kind, goal) in ((Kind.RATE, Goal.MAXIMIZE), (Kind.TIME, Goal.MINIMIZE))


def surely_worse(
    series: Sequence[Series], instances: int, *, kind: Kind, goal: Goal, cut_at: float
) -> str | None:
    """Why a running launch will end worse than `cut_at`; None if it may not.

    series
        Values of the objective's metric so far, for each instance that has any.
    instances
        The number of instances.
    """
    if not may_be_cut(kind, goal) or len(series) < instances:
        return None
    bounds = []
    for one in series:
        bound = _favourable_bound(one, maximise=goal is Goal.MAXIMIZE)
        if bound is None:
            return None
        bounds.append(bound)
    # The median of several instances' values lies between their medians.
    bound = sum(bounds) if kind is Kind.RATE else min(bounds)
    if bound >= cut_at if goal is Goal.MAXIMIZE else bound <= cut_at:
        return None
    most = "most" if goal is Goal.MAXIMIZE else "least"
    return f"steady at {number(bound)} at {most}, and the value to beat is {number(cut_at)}"


def _favourable_bound(series: Series, *, maximise: bool) -> float | None:
    """The best value that one instance may reach; None if unknown."""
    import numpy as np

    # The first value does not count, see xlaunch.metrics.collector.
    times, values = series.times_s[1:], series.values[1:]
    if len(values) < MIN_VALUES:
        return None
    judgement = judge(values, larger_is_better=maximise)
    if judgement.steadiness not in (Steadiness.FLAT, Steadiness.WARM_UP):
        return None
    start = judgement.start
    steady = np.asarray(values[start:], dtype=np.float64)
    if len(steady) < MIN_VALUES or times[-1] < 2 * times[start]:
        return None
    middle = np.mean if maximise else np.median
    batches = [float(middle(batch)) for batch in np.array_split(steady, BATCHES)]
    mean = statistics.fmean(batches)
    reach = STUDENT * statistics.stdev(batches) / math.sqrt(BATCHES)
    return max(mean + reach, *batches) if maximise else min(mean - reach, *batches)
