# SPDX-License-Identifier: Apache-2.0
"""Where in a series of values the warm-up ends, and whether anything steady follows.

The values are cut where their level changes, by the exact least-cost partition (Jackson et al. 2005;
PELT is its pruned form) under a cost that outliers cannot dominate and a price for each cut that
grows with the noise and with its correlation in time. Then, after Barrett et al. (2017, "Virtual
machine warmup blows hot and cold"): the last level is steady if it lasts long enough, earlier ones
that equal it belong to it, and the name follows from whether what came before was slower or faster.

A single odd value amid steady ones is no change of level: it stays, and counts. One at the very
beginning is warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from xlaunch.wording import number
from xtune.measurement.launches import Steadiness

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MIN_VALUES = 10
"""Fewer tell nothing about a warm-up."""

SAME_LEVEL = 0.01
"""Levels that differ by less than this share of the last are the same for every purpose here."""

MIN_STEADY_SHARE = 0.25
"""Of all values: what the last level has to last, in Barrett's study 500 of 2,000 iterations."""

MIN_STEADY = 5

MIN_CHANGE = 0.05
"""Share of all values: a shorter change of level, with the same level on both sides, is none."""

MAX_BLOCKS = 400
"""Longer series are cut between blocks of equally many values; the partition is quadratic in them."""

_ODD = 4.0
"""Standard deviations of the noise around its neighbours beyond which a value counts as at the edge."""

_MAD_TO_SIGMA = 1.4826
_NEIGHBOURS = 7


class Level(NamedTuple):
    """A stretch of values without a change of level."""

    start: int
    stop: int
    """The first value after it."""
    mean: float


class Judgement(NamedTuple):
    """What a series is."""

    steadiness: Steadiness
    start: int
    """The first value of the steady part; 0 where nothing is dropped, or there is none."""
    levels: tuple[Level, ...]
    """Those found, in order; empty for too few values."""
    note: str
    """What was dropped or is wrong; empty where nothing is."""


def judge(values: Sequence[float], *, larger_is_better: bool | None) -> Judgement:
    """Name what `values`, in the order they came, did over time.

    larger_is_better
        Tells a warm-up from a slow-down; None: unknown, and every change is called a warm-up.
    """
    import numpy as np

    count = len(values)
    if count < MIN_VALUES:
        # Of a single value nobody expects it.
        note = f"{count} values: too few to see a warm-up" if count > 1 else ""
        return Judgement(Steadiness.TOO_FEW, 0, (), note)
    # Squares of a large value would be infinite, of a small one nothing.
    scale = float(np.max(np.abs(values))) or 1.0
    found = np.asarray(values, dtype=np.float64) / scale
    clipped = _clip(found)
    size = -(-count // MAX_BLOCKS)
    starts = np.arange(0, count - size // 2, size)
    blocks = np.add.reduceat(clipped, starts) / np.diff(np.append(starts, count))
    cuts = [int(starts[cut]) for cut in _partition(blocks, _Noise(blocks))]
    levels = tuple(
        Level(start, stop, float(clipped[start:stop].mean()))
        for start, stop in zip([0, *cuts], [*cuts, count], strict=True)
    )
    start = _steady_start(levels)
    told = tuple(level._replace(mean=level.mean * scale) for level in levels)
    if count - start < max(MIN_STEADY, MIN_STEADY_SHARE * count):
        return Judgement(Steadiness.NOT_STEADY, 0, told, _describe_unsteady(told, count))
    start = _after_odd_beginning(found, start)
    if start == 0:
        return Judgement(Steadiness.FLAT, 0, told, "")
    name = _name_of_change(found, start, levels, larger_is_better=larger_is_better)
    before, after = scale * found[:start].mean(), scale * found[start:].mean()
    dropped = f"the first {start} of {count} values were dropped"
    note = f"{name.value}: {dropped} (mean {number(before)}, then {number(after)})"
    return Judgement(name, start, told, note)


class _Noise:
    """What values scatter by where their level does not change."""

    def __init__(self, values: Floats) -> None:
        """Differences of neighbours are blind to levels, and their median to the few that cross a
        cut. Neighbours that resemble each other differ less than others do: that tells how slowly
        the noise wanders, and so how much less than their number the values are worth.
        """
        import numpy as np

        lag = max(2, min(5, len(values) // 6))
        steps, strides = values[1:] - values[:-1], values[lag:] - values[:-lag]
        # About their median: a slope is no noise. A coarse scale repeats values, and the median of
        # its steps may be none.
        steps = steps - np.median(steps)
        near = max(_scatter(steps), _trimmed(steps, 0.9)) ** 2 / 2
        far = _scatter(strides - np.median(strides)) ** 2 / 2
        floor = (1e-4 * float(np.median(np.abs(values)))) ** 2 + 1e-300
        variance = max(near, far, floor)
        correlation = min(0.9, max(0.0, 1 - max(near, floor) / variance))
        self.variance = variance * (1 + correlation) / (1 - correlation)
        """Of a mean over n values: this by n."""


def _scatter(deviations: Floats) -> float:
    """Their standard deviation, were they Gaussian; up to half of them may be anything."""
    import numpy as np

    return float(_MAD_TO_SIGMA * np.median(np.abs(deviations)))


def _trimmed(deviations: Floats, share: float) -> float:
    """The root mean square of the smallest `share` of them."""
    import numpy as np

    smallest = np.sort(np.abs(deviations))[: max(1, int(share * len(deviations)))]
    return float(np.sqrt(np.mean(smallest**2)))


def _clip(values: Floats) -> Floats:
    """The values, those that are odd among their neighbours moved to the edge of the noise."""
    import numpy as np

    half = _NEIGHBOURS // 2
    padded = np.pad(values, half, mode="reflect")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, _NEIGHBOURS), axis=1)
    width = _ODD * (_scatter(values - middle) or _trimmed(values - middle, 0.95))
    return np.clip(values, middle - width, middle + width)


def _partition(values: Floats, noise: _Noise) -> list[int]:
    """Where the level changes: the cuts of least total cost, ascending."""
    import numpy as np

    count = len(values)
    shortest = max(3, count // 50)
    price = _price(count)
    centred = (values - values.mean()) / np.sqrt(noise.variance)
    sums = np.concatenate(([0.0], np.cumsum(centred)))
    squares = np.concatenate(([0.0], np.cumsum(centred**2)))
    best = np.full(count + 1, np.inf)
    best[0] = -price
    came_from = np.zeros(count + 1, dtype=np.intp)
    for stop in range(shortest, count + 1):
        begins = np.arange(stop - shortest + 1)
        lengths = stop - begins
        cost = squares[stop] - squares[begins] - (sums[stop] - sums[begins]) ** 2 / lengths
        total = best[begins] + cost + price
        came_from[stop] = int(np.argmin(total))
        best[stop] = total[came_from[stop]]
    cuts = []
    stop = int(came_from[count])
    while stop > 0:
        cuts.append(stop)
        stop = int(came_from[stop])
    return cuts[::-1]


def _price(count: int) -> float:
    """Of a cut, in variances of the noise. Few values tell their own noise badly: it costs more."""
    import math

    return 4 * math.log(count) + 200 / count


def _steady_start(levels: tuple[Level, ...]) -> int:
    """Where the last level begins, those before it that equal it included, and short ones between."""
    last = levels[-1]
    start, reach = last.start, SAME_LEVEL * abs(last.mean)
    for level in levels[-2::-1]:
        if abs(level.mean - last.mean) <= reach:
            start = level.start
        elif start - level.start > MIN_CHANGE * last.stop:
            break
    return start


def _after_odd_beginning(values: Floats, start: int) -> int:
    """`start`, moved over values that are odd beside all that follow."""
    import numpy as np

    rest = values[start:]
    middle = float(np.median(rest))
    width = _ODD * (_scatter(rest - middle) or _trimmed(rest - middle, 0.95))
    width = max(width, SAME_LEVEL * abs(middle))
    latest = start + len(rest) // 4
    while start < latest and abs(values[start] - middle) > width:
        start += 1
    return start


def _name_of_change(
    values: Floats, start: int, levels: tuple[Level, ...], *, larger_is_better: bool | None
) -> Steadiness:
    steady = float(values[start:].mean())
    before = [level.mean for level in levels if level.stop <= start] or [
        float(values[:start].mean())
    ]
    reach = SAME_LEVEL * abs(steady)
    faster = larger_is_better is not None and any(
        (mean - steady if larger_is_better else steady - mean) > reach for mean in before
    )
    return Steadiness.SLOW_DOWN if faster else Steadiness.WARM_UP


def _describe_unsteady(levels: tuple[Level, ...], count: int) -> str:
    means = [level.mean for level in levels]
    return (
        f"no steady state: levels between {number(min(means))} and {number(max(means))}, the last change"
        f" after {levels[-1].start} of {count} values"
    )
