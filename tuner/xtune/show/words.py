# SPDX-License-Identifier: Apache-2.0
"""Numbers, durations, configurations, launches and progress as users read them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xlaunch import text
from xlaunch.metrics.metric_lines import SECONDS_PER_UNIT, MetricKind
from xlaunch.text import number
from xtune.launches.announcements import MARK
from xtune.launches.launch import WALL, Goal, Launch, Objective, Outcome, Requirement
from xtune.launches.requirements import describe_seen
from xtune.launches.summaries import kind_in, name_of, unit_in
from xtune.search.budget import Budget
from xtune.search.events import Favourite, Outline, Progress, Resolution
from xtune.search.records import NextLaunch, Record, Stage
from xtune.space.offers import LeftOut
from xtune.space.parameters import BARE, Configuration, Parameter, Target
from xtune.space.spaces import Space

NOTHING = "\N{EN DASH}"
"""Shown where there is no value."""

MAX_PLACES = 4
"""Decimal places of a ratio."""


class Quantity(NamedTuple):
    """A metric's name, unit and goal."""

    name: str
    """**Ex.:** ``wall time``, ``images/s``."""
    unit: str
    """**Ex.:** ``s``, ``ms``, ``images/s``; empty where unknown."""
    goal: Goal
    is_scaled: bool = False
    """Values in seconds are shown in ms, us or ns where these fit better."""

    @property
    def axis(self) -> str:
        """Title of a chart's axis. **Ex.:** ``wall time (s)``, ``images/s``."""
        unit = f" ({self.unit})" if self.unit and self.unit not in self.name else ""
        return f"{self.name}{unit}"

    @property
    def better(self) -> str:
        return "more is better" if self.goal is Goal.MAXIMIZE else "less is better"

    def of(self, value: float | None) -> str:
        """A value with its unit. **Ex.:** ``126,800 images/s``, ``1.5 s``, ``0.9 (accuracy)``."""
        if value is None:
            return NOTHING
        if self.is_scaled:
            units = ("s", "ms", "us", "ns")
            unit = next((unit for unit in units if abs(value) >= SECONDS_PER_UNIT[unit]), self.unit)
            return f"{number(value / SECONDS_PER_UNIT[unit])} {unit}"
        return f"{number(value)} {self.unit or f'({self.name})'}"


def objective_quantity(objective: Objective) -> Quantity:
    """The quantity that an objective's metric measures.

    **Ex.:** the unit is ``s`` for ``wall``, ``ms`` for ``step_ms``, ``images/s`` for itself.
    """
    metric, goal, unit = objective.metric, objective.goal, objective.unit
    if metric == WALL:
        return Quantity("wall time", "s", goal)
    name = name_of(metric)
    named = unit_in(name) if kind_in(metric) is MetricKind.TIME else None
    if named is None and "/" in name and " " not in name and not unit:
        named = name
    if metric.startswith(MARK):
        name = metric.removeprefix(MARK).strip() or "announced value"
    return Quantity(name, named or unit, goal, is_scaled=named is None and bool(unit))


def amount(value: float, objective: Objective) -> str:
    """A value of the objective with its unit."""
    return objective_quantity(objective).of(value)


def ratios(*values: float) -> list[str]:
    """Ratios with enough digits to distinguish them from each other and from 1.

    **Ex.:** ``1.0436``, ``1.0004``, ``1.0886``; ``3.98``, ``3.90``, ``4.06``.
    """
    finite = [value for value in values if math.isfinite(value)] or [1.0]
    apart = [abs(value - 1.0) for value in finite] + [max(finite) - min(finite)]
    smallest = min([distance for distance in apart if distance > 1e-6], default=1.0)
    places = min(max(2, 1 - math.floor(math.log10(smallest))), MAX_PLACES)
    return [f"{value:.{places}f}" if value < 10.0 else number(value) for value in values]


def effects(step: float, *factors: float) -> list[str]:
    """Ratios as `ratios` writes them; with a step (see `Objective.step`) the differences they stand for.

    **Ex.:** ``1.04``, ``1.01``, ``1.09``; ``+0.31``, ``-0.02``, ``+0.64``.
    """
    if not step:
        return ratios(*factors)
    differences = [step * math.log(factor) if factor > 0 else -math.inf for factor in factors]
    return [f"{'+' if difference > 0 else ''}{number(difference)}" for difference in differences]


def as_good_as(step: float, *factors: float) -> str:
    """The first of some ratios in words: ``1.04 times as good as``, ``+0.31 better than``."""
    shown = effects(step, *factors)[0]
    return f"{shown} better than" if step else f"{shown} times as good as"


def against_bare(step: float, factor: float) -> str:
    """**Ex.:** ``1.04 times the bare command``, ``+0.31 against the bare command``."""
    return f"{effects(step, factor)[0]} {'against' if step else 'times'} the bare command"


def describe_differences(objective: Objective) -> str:
    """How launches are compared, if not by ratios; else empty."""
    if not objective.step:
        return ""
    name = objective_quantity(objective).name
    return (
        f"{name} is not always above 0, so launches are compared by differences: + is better, and"
        f" percentages are of {number(objective.step)}"
    )


def percent(share: float) -> str:
    """A share in percent. **Ex.:** ``42 %``, ``<1 %``."""
    return "<1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def size(size_bytes: float | None) -> str:
    """A size in memory. **Ex.:** ``512 MiB``, ``7.8 GiB``."""
    return NOTHING if size_bytes is None else text.size(int(size_bytes))


def duration(time_s: float) -> str:
    """A length of time. **Ex.:** ``20 ms``, ``0.3 s``, ``48 s``, ``3 min 20 s``, ``1 h 5 min``."""
    if time_s < 0.0995:
        return f"{1000 * time_s:.0f} ms"
    if time_s < 9.95:
        return f"{time_s:.1f} s"
    seconds = round(time_s)
    if seconds < 120:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def period(from_s: float, to_s: float) -> str:
    """Two Unix times. **Ex.:** ``20 Nov 2026, 19:20 to 19:45 UTC``."""
    first, last = time.gmtime(from_s), time.gmtime(to_s)
    began = time.strftime("%-d %b %Y, %H:%M", first)
    ended = time.strftime("%H:%M" if first[:3] == last[:3] else "%-d %b %Y, %H:%M", last)
    return f"{began} to {ended} UTC"


def counted(count: float, noun: str, plural: str = "") -> str:
    """A count with its noun. **Ex.:** ``1 launch``, ``1,200 pairs``."""
    return f"{count:,.0f} {noun if round(count) == 1 else plural or noun + 's'}"


def launches(count: float) -> str:
    return counted(count, "launch", "launches")


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers, runs shortened. **Ex.:** ``3, 7 to 9``."""
    ranges = []
    for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        if len(members) > 2:
            ranges.append(f"{members[0]} to {members[-1]}")
        else:
            ranges += [str(number) for number in members]
    return ", ".join(ranges)


STAGES = {
    Stage.BASELINE: "the bare command",
    Stage.SEED: "starting points",
    Stage.SEARCH: "searching",
    Stage.CONTROL: "the bare command again",
    Stage.ABLATION: "the best without some of its changes",
    Stage.FINAL: "final: the best and the bare command in turns",
}
"""The purpose of a launch."""

MAX_VALUES = 8
MAX_VALUES_OF_OURS = 4
"""Values that are listed of one of the program's parameters, and of another."""

MAX_GAIN_SHOWN = 10.0
"""Larger bounds of what a budget detects are numbers without meaning: the noise is too high."""


def aim(objective: Objective) -> str:
    """The objective in words. **Ex.:** ``images/s, maximize, with rss<=8GiB``."""
    name = "wall time" if objective.metric == WALL else objective.metric
    required = "".join(f", with {requirement.text}" for requirement in objective.requirements)
    return f"{name}, {objective.goal.value}{required}"


def settings_of(configuration: Configuration, space: Space) -> list[str]:
    """The settings that differ from xlaunch's defaults. **Ex.:** ``["allocator=tcmalloc"]``."""
    if configuration == BARE:
        return ["the bare command"]
    changed = space.changes(configuration)
    return [f"{name}={value}" for name, value in changed.items()] or ["xlaunch's defaults"]


def settings(configuration: Configuration, space: Space) -> str:
    """As `settings_of`, in one line. **Ex.:** ``allocator=tcmalloc, batch=8``."""
    return ", ".join(settings_of(configuration, space))


def describe_space(
    space: Space, left_out: Sequence[LeftOut], *, verbose: bool = False
) -> Iterator[str]:
    """The parameters; with all values, and what is left out, with reasons, if `verbose`."""
    more = "" if space.is_counted else "more than "
    hint = "" if verbose else " (-v lists all values, and what is left out)"
    yield f"to search: {more}{counted(space.size, 'configuration')}{hint}"
    if verbose:
        width = max(len(parameter.name) for parameter in space.parameters)
        for one in space.parameters:
            reason = f"  ({one.reason})" if one.reason else ""
            yield f"  {one.name:<{width}}  {' '.join(map(str, one.values))}{reason}"
    else:
        yield f"  {', '.join(map(_short, space.parameters))}"
    for condition in space.conditions:
        yield f"  when {condition.text}"
    if verbose:
        yield from (f"  left out: {omitted.name}: {omitted.reason}" for omitted in left_out)


def _short(parameter: Parameter) -> str:
    """**Ex.:** ``thp=auto|always|never``, ``allocator (7 values)``."""
    limit = MAX_VALUES if parameter.where is Target.PROGRAM else MAX_VALUES_OF_OURS
    if len(parameter.values) > limit:
        return f"{parameter.name} ({len(parameter.values)} values)"
    return f"{parameter.name}={'|'.join(map(str, parameter.values))}"


def describe_outline(outline: Outline) -> str:
    """How the space will be searched."""
    text = f"budget: {outline.budget}"
    if outline.plans not in (None, outline.size):
        text += f"; the configurations start the program in {outline.plans:,} different ways"
    if outline.records:
        count = "counts" if outline.records == 1 else "count"
        text += f"; {launches(outline.records)} of earlier searches {count}"
    return text


def time_left(progress: Progress, budget: Budget) -> float | None:
    """Seconds until the budget is used up at the pace so far; None before the first launch has ended."""
    if not progress.launches or not math.isfinite(progress.left):
        return None
    left_s = progress.left * progress.elapsed_s / progress.launches
    if budget.time_s is not None:
        left_s = min(left_s, budget.time_s - progress.elapsed_s)
    return max(left_s, 0.0)


def describe_left(progress: Progress, budget: Budget) -> str:
    """Launches made and left. **Ex.:** ``12 launches, up to 28 left (40 s)``."""
    launches_made = launches(progress.launches)
    left_s = time_left(progress, budget)
    if left_s is None or progress.left == 0:
        return launches_made
    if budget.launches is None:  # the number of launches left is unknown
        return f"{launches_made}, up to {duration(left_s)} left"
    return f"{launches_made}, up to {progress.left:,.0f} left ({duration(left_s)})"


def describe_favourite(favourite: Favourite, space: Space, objective: Objective) -> str:
    """The best configuration so far; only a final says how sure that is."""
    shown = f"{settings(favourite.configuration, space)}: {amount(favourite.value, objective)}"
    if favourite.ratio is None:
        return shown
    ahead = "the bare command, then " if favourite.ratio < 1.0 else ""
    return f"{ahead}{shown}, {against_bare(favourite.step, favourite.ratio)}"


def describe_resolution(resolution: Resolution, budget: Budget) -> str:
    """What a budget can show. **Ex.:** ``40 launches detect gains above about 6 % (noise: ...)``."""
    return f"{budget}: detects gains {describe_gains(resolution)}; smaller ones stay open"


def describe_gains(resolution: Resolution) -> str:
    """**Ex.:** ``above 4.1 to 9.2 % (noise: 3.1 % from launch to launch)``."""
    noise = f"(noise: {100 * resolution.spread:.1f} % from launch to launch)"
    if resolution.low >= MAX_GAIN_SHOWN:
        return f"above {100 * MAX_GAIN_SHOWN:.0f} % only {noise}"
    low, high = (
        f"{100 * bound:.{0 if bound >= 0.1 else 1}f}" for bound in (resolution.low, resolution.high)
    )
    if resolution.high >= MAX_GAIN_SHOWN:
        return f"above {low} % at best {noise}"
    span = low if low == high else f"{low} to {high}"
    return f"above {span} % {noise}"


def describe_launch(record: Record, space: Space, objective: Objective) -> str:
    """A launch that has ended: its value, or how it failed."""
    launch = record.launch
    assert launch is not None
    shown = settings(record.step.configuration, space)
    if launch.outcome is not Outcome.MEASURED or launch.value is None:
        return f"{shown}: {describe_failure(launch)}"
    is_broken = not objective.is_feasible(launch)
    broken = f"; breaks a requirement: {unmet(launch, objective)}" if is_broken else ""
    return f"{shown}: {amount(launch.value, objective)}{broken}"


def broken_requirements(launch: Launch, objective: Objective) -> list[Requirement]:
    """The requirements for which a launch has a value that breaks them."""
    seen = dict(launch.requirements)
    return [
        requirement
        for requirement in objective.requirements
        if seen.get(requirement.text) is not None and not requirement.holds(seen[requirement.text])
    ]


def unmet(launch: Launch, objective: Objective) -> str:
    """The requirements that a measured launch breaks, or the reason why that is unknown."""
    seen = dict(launch.requirements)
    broken = [
        f"{requirement.text} (measured: {describe_seen(requirement, value)})"
        for requirement in broken_requirements(launch, objective)
        if (value := seen[requirement.text]) is not None
    ]
    unknown = [note for note in launch.notes if note.startswith("--require ")]
    return "; ".join([*broken, *unknown])


def describe_failure(launch: Launch) -> str:
    """How a launch without a value ended. **Ex.:** ``crashed: exit code 3: no such file``."""
    parts = [launch.outcome.value, *launch.notes[:1]]
    if launch.last_words and launch.last_words.strip() not in parts[-1]:
        parts.append(launch.last_words)
    return ": ".join(parts)


def describe_step(step: NextLaunch, space: Space) -> str:
    """The configuration of a launch and its purpose."""
    origin = f" ({step.origin})" if step.origin and step.configuration != BARE else ""
    return f"{settings(step.configuration, space)}{origin}"
