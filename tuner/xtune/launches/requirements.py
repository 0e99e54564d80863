# SPDX-License-Identifier: Apache-2.0
"""Requirements such as ``--require 'p99<=20ms'``: parsing and checking.

p99<=20ms            p50 to p99.9 of the latency metric, over the values of all instances
p99(step_ms)<=20     of the metric step_ms; without a unit, in the unit in which it is printed
rss<=8GiB            peak memory of the launch, all instances together
cpu<=10min           CPU time;  wall<=90s  from start to end;  energy<=500J  of the machine
accuracy>=0.9        another metric, as printed; it is then measured too: the last tenth of its values
last(accuracy)>=0.9  the last value; also max, min and mean

Of a metric that is neither a rate nor a time, and of last, max, min and mean, the worst instance counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from xlaunch.metrics.collector import last_tenth, percentile
from xlaunch.metrics.metric_lines import SECONDS_AFTER_NUMBER, SECONDS_PER_UNIT, MetricKind
from xlaunch.text import number
from xtune.errors import ObjectiveError
from xtune.launches.announcements import MARK
from xtune.launches.launch import WALL, Objective, Requirement, Secondary
from xtune.launches.summaries import Summary, in_seconds, kind_in, name_of, unit_in

TIME_UNITS: dict[str, float] = {**SECONDS_PER_UNIT, "min": 60.0, "h": 3600.0}
MEMORY_UNITS: dict[str, float] = {
    "B": 1.0,
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": 1000.0**power for power, prefix in enumerate("kMGT", 1)},
}
ENERGY_UNITS = {"J": 1.0, "kJ": 1000.0, "Wh": 3600.0}

_PERCENTILE = re.compile(r"p([0-9]+(?:\.[0-9]+)?)(?:\((.+)\))?")
MIN_PERCENT, MAX_PERCENT = 50.0, 99.9
ADVISED = (99.0, 95.0, 90.0, 75.0, 50.0)
"""Percentiles to require where there are too few values."""
_STATISTIC = re.compile(r"(last|max|min|mean)\((.+)\)")
_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "max": max,
    "min": min,
    "mean": fmean,
}
_FORM = re.compile(
    r"(?P<quantity>[^<>=≤≥].*?)\s*(?P<sign><=|>=|≤|≥|==|[<>=])\s*"
    r"(?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(?P<unit>\D*)"
)
_EXAMPLES = "write for instance p99<=20ms, rss<=8GiB or accuracy>=0.9"


class _Resource(NamedTuple):
    """A quantity that is recorded for every launch."""

    units: Mapping[str, float]
    default: str | None
    """The unit of a number without one; None if a unit is required."""
    field: str
    """Name of the field in `Secondary`."""


RESOURCES = {
    "rss": _Resource(MEMORY_UNITS, None, "peak_rss_bytes"),
    "energy": _Resource(ENERGY_UNITS, "J", "energy_j"),
    "cpu": _Resource(TIME_UNITS, "s", "cpu_s"),
    WALL: _Resource(TIME_UNITS, "s", "wall_s"),
}


def parse_requirement(text: str) -> Requirement:
    """Parse a bound. Raises `ObjectiveError`.

    **Ex.:** ``p99 <= 20 ms``: quantity ``p99``, at most, limit 0.02.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ObjectiveError(f"--require {text!r}: not a bound; {_EXAMPLES}")
    quantity, sign, unit = match["quantity"].strip(), match["sign"], match["unit"].strip()
    if sign not in ("<=", ">=", "≤", "≥"):
        raise ObjectiveError(f"--require {text!r}: {sign!r} is not supported; write <= or >=")
    value = float(match["number"])
    if not math.isfinite(value):
        raise ObjectiveError(f"--require {text!r}: the limit is too large")
    asked = _PERCENTILE.fullmatch(quantity)
    if asked is not None and not MIN_PERCENT <= float(asked[1]) <= MAX_PERCENT:
        raise ObjectiveError(
            f"--require {text!r}: p{asked[1]} is not supported; write p{MIN_PERCENT:g} to p{MAX_PERCENT:g}"
        )
    limit, as_printed = _limit(text, quantity, value, unit)
    at_most = sign in ("<=", "≤")
    resource = quantity in RESOURCES or asked is not None
    if resource and at_most and limit <= 0:
        raise ObjectiveError(f"--require {text!r}: nothing can meet it; the limit must be above 0")
    return Requirement(text.strip(), quantity, at_most, limit, as_printed)


def describe_seen(requirement: Requirement, seen: float) -> str:
    """A measured value in the unit of the requirement's text. **Ex.:** ``34.2 ms``, ``0.87``."""
    match = _FORM.fullmatch(requirement.text)
    if match is None or not requirement.limit:
        return number(seen)
    value = number(seen / requirement.limit * float(match["number"]))
    return f"{value} {match['unit'].strip()}".rstrip()


def _limit(text: str, quantity: str, number: float, unit: str) -> tuple[float, bool]:
    """The limit, and whether it is in the unit of the printed number, not in base units."""
    if quantity in RESOURCES:
        resource = RESOURCES[quantity]
        allowed = ", ".join(resource.units)
        factor = resource.units.get(unit or resource.default or "")
        if factor is None:
            said = f"{unit!r} is not a unit of it" if unit else "give a unit"
            raise ObjectiveError(f"--require {text!r}: {said}; {quantity} takes {allowed}")
        return number * factor, False
    if not unit or unit == "%":
        return number, True
    if unit not in TIME_UNITS:
        raise ObjectiveError(
            f"--require {text!r}: {unit!r} is not a unit of time ({', '.join(TIME_UNITS)}); write the"
            " limit of a metric as it is printed, without a unit"
        )
    return number * TIME_UNITS[unit], False


def metrics_to_read(objective: Objective, others: Iterable[str] = ()) -> tuple[str, ...]:
    """The metrics for xlaunch's --metric: the objective's, `others`, and those of requirements.

    Raises `ObjectiveError` for a percentile without a clear metric, `UsageError` for an invalid
    metric.
    """
    wanted = [text for text in (objective.metric, *others) if text != WALL]
    for requirement in objective.requirements:
        asked = _PERCENTILE.fullmatch(requirement.quantity)
        worded = asked or _STATISTIC.fullmatch(requirement.quantity)
        name = worded[2] if worded else requirement.quantity
        if name is not None and name not in RESOURCES:
            is_time = asked is not None and not name.startswith(MARK)
            wanted.append(f"{MetricKind.TIME.value}:{name}" if is_time else name)
    metrics_by_name: dict[str, str] = {}
    for text in wanted:
        metrics_by_name.setdefault(name_of(text), text)
    times = [name for name, text in metrics_by_name.items() if kind_in(text) is MetricKind.TIME]
    for requirement in objective.requirements:
        _percentile_of(requirement, times)
    return tuple(
        dict.fromkeys(MARK if text.startswith(MARK) else text for text in metrics_by_name.values())
    )


def _percentile_of(requirement: Requirement, times: Sequence[str]) -> tuple[float, str] | None:
    """The required percentile and its metric; None for other quantities.

    `times`: the metrics that are times. Raises `ObjectiveError` if the metric is not clear.
    """
    match = _PERCENTILE.fullmatch(requirement.quantity)
    if match is None:
        return None
    if match[2] is not None:
        return float(match[1]), name_of(match[2])
    if len(times) == 1:
        return float(match[1]), times[0]
    head = f"--require {requirement.text!r}"
    if not times:
        raise ObjectiveError(
            f"{head}: p{match[1]} of what? No metric is a latency; name it, as in p{match[1]}(step_ms)"
        )
    listed = ", ".join(f"p{match[1]}({name})" for name in times)
    raise ObjectiveError(f"{head}: of which metric? Write one of {listed}")


def check(
    requirements: Sequence[Requirement],
    summaries: Mapping[str, Summary],
    secondary: Secondary,
    printed: Mapping[str, str] = {},
) -> tuple[tuple[tuple[str, float | None], ...], tuple[str, ...]]:
    """The measured value of each requirement, by its text, in the unit of its limit; and notes.

    None, with a note, if nothing was measured or there are too few values. `printed`: see `printed_units`.
    """
    times = [name for name, summary in summaries.items() if summary.kind is MetricKind.TIME]
    seen: list[tuple[str, float | None]] = []
    notes: list[str] = []
    for requirement in requirements:
        value, note = _seen(requirement, summaries, times, secondary, printed)
        seen.append((requirement.text, value))
        if value is None:
            notes.append(f"--require {requirement.text!r}: {note}")
    return tuple(seen), tuple(notes)


def _seen(
    requirement: Requirement,
    summaries: Mapping[str, Summary],
    times: Sequence[str],
    secondary: Secondary,
    printed: Mapping[str, str],
) -> tuple[float | None, str]:
    if requirement.quantity in RESOURCES:
        field = RESOURCES[requirement.quantity].field
        return getattr(secondary, field), f"{requirement.quantity} cannot be read on this system"
    try:
        asked = _percentile_of(requirement, times)
    except ObjectiveError:
        return None, "no latency was printed"
    if asked is None:
        statistic = _STATISTIC.fullmatch(requirement.quantity)
        name = name_of(statistic[2] if statistic else requirement.quantity)
        summary = summaries.get(name)
        value = _statistic(requirement, statistic and statistic[1], summary)
    else:
        summary = summaries.get(asked[1])
        value = None if summary is None else _percentile(summary, asked[0])
    if summary is None:
        return None, "it was not printed"
    if value is None and asked is not None and not summary.printed:
        return None, _too_few(asked[0], summary.count)
    if value is None and summary.printed:
        percentiles = [f"p{percent:g}" for percent in sorted(summary.printed)]
        return None, f"the load generator printed only {', '.join(percentiles)}"
    if value is None or math.isnan(value):
        return None, "it was not printed"
    if requirement.as_printed:
        unit = None if unit_in(summary.metric) else printed.get(summary.metric)
        return value / in_seconds(1.0, unit) if unit and summary.unit else value, ""
    unit = summary.unit or printed.get(summary.metric)
    if unit not in SECONDS_AFTER_NUMBER:
        return None, (
            f"the unit of {summary.metric!r} is unknown, since neither its name nor its lines have one:"
            " write the limit as it is printed, without a unit"
        )
    return in_seconds(value, unit), ""


def _statistic(requirement: Requirement, word: str | None, summary: Summary | None) -> float | None:
    """The statistic of the worst instance; of a rate or time without a word, its value."""
    if summary is None or (word is None and summary.kind is not MetricKind.VALUE):
        return summary and summary.value
    statistic = last_tenth if word is None else _STATISTICS[word]
    worst = max if requirement.at_most else min
    return worst([statistic(values) for values in summary.values], default=None)


def _percentile(summary: Summary, percent: float) -> float | None:
    """The percentile of all values; None where there are too few, or the generator printed others."""
    if summary.printed:
        return summary.printed.get(percent)
    pooled = sorted([value for values in summary.values for value in values])
    return percentile(pooled, percent) if len(pooled) >= _values_needed(percent) else None


def _values_needed(percent: float) -> int:
    """So many that one lies above the percentile. **Ex.:** 20 for p95, 1,000 for p99.9."""
    return math.ceil(round(100.0 / (100.0 - percent), 6))


def _too_few(percent: float, count: int) -> str:
    needed = _values_needed(percent)
    text = f"p{percent:g} takes {needed:,} values and there are {count}: run longer"
    advised = [percentile for percentile in ADVISED if _values_needed(percentile) <= count]
    return f"{text}, or require p{advised[0]:g}" if advised else text
