# SPDX-License-Identifier: Apache-2.0
"""When a launch cannot win any more, and is ended early.

Wall time that is to become less: once more of it has passed than the launch might take.

A rate that is to become more, or a time for something that is to become less: once every instance is
steady, has been so for as long as it had run before, and even the bound in its favour does not reach
what is to be beaten. The bound of an instance is the better of two: the one-sided 99.95 % bound of the
mean of ten batches of its steady values (values side by side resemble each other, batches less), and
its best batch. It takes `MIN_VALUES` values of each.

Nothing else is ever cut: what a value such as an accuracy will be in the end, nobody knows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from xlaunch.measurement.metric_lines import Kind
from xlaunch.wording import number
from xtune.measurement.launches import Series, Steadiness
from xtune.measurement.objectives import Goal
from xtune.measurement.steadiness import judge

MIN_VALUES = 20
BATCHES = 10
STUDENT = 4.781
"""Of Student's t with nine degrees of freedom the 99.95 % quantile."""


def may_be_cut(kind: Kind, goal: Goal) -> bool:
    """Whether `surely_worse` ever says so for such an objective."""
    return (kind, goal) in ((Kind.RATE, Goal.MAXIMIZE), (Kind.TIME, Goal.MINIMIZE))


def surely_worse(
    series: Sequence[Series], instances: int, *, kind: Kind, goal: Goal, cut_at: float
) -> str | None:
    """Why the value of a launch that still runs will be worse than `cut_at`; None: it may not be.

    series
        What the objective's metric has come to so far, of each instance that has any.
    instances
        How many there are.
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
    return f"steady at {number(bound)} at {most}, and {number(cut_at)} was to be beaten"


def _favourable_bound(series: Series, *, maximise: bool) -> float | None:
    """The best that one instance's value may turn out to be; None where that is not known."""
    import numpy as np

    # The first value is never counted, see xlaunch.measurement.metrics.
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
