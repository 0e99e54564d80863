# SPDX-License-Identifier: Apache-2.0
"""Values, durations and configurations as people read them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from xlaunch.measurement.metric_lines import Kind
from xtune.measurement.launches import Launch, Outcome
from xtune.measurement.objectives import WALL, Objective
from xtune.measurement.summaries import kind_in, name_of, unit_in
from xtune.search.budget import Budget
from xtune.search.events import Outline, Progress
from xtune.search.records import Record, Stage, Step
from xtune.search.strategy import Favourite
from xtune.space.offers import LeftOut
from xtune.space.parameters import BARE, Configuration
from xtune.space.spaces import Space

STAGES = {
    Stage.BASELINE: "the bare command",
    Stage.SEED: "what is worth trying first",
    Stage.RACE: "racing all there is",
    Stage.SEARCH: "searching",
    Stage.CONTROL: "the bare command again",
    Stage.ABLATION: "the best without some of its changes",
    Stage.FINAL: "the final: the best and the bare command in turns",
}
"""What launches are made for."""

MOST_VALUES = 8
"""Of a parameter that are named."""


def duration(time_s: float) -> str:
    """**Ex.:** ``0.02 s``, ``0.3 s``, ``48 s``, ``3 min 20 s``, ``1 h 5 min``."""
    if time_s < 1.0:
        return f"{time_s:.1g} s" if time_s < 0.1 else f"{time_s:.1f} s"
    if time_s < 9.95:
        return f"{time_s:.1f} s"
    seconds = round(time_s)
    if seconds < 120:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def counted(count: float, noun: str, plural: str = "") -> str:
    """**Ex.:** ``1 launch``, ``12 launches``."""
    return f"{count:.0f} {noun if round(count) == 1 else plural or noun + 's'}"


def launches(count: float) -> str:
    return counted(count, "launch", "launches")


def aim(objective: Objective) -> str:
    """**Ex.:** ``images/s, maximize, with rss<=8GiB``."""
    name = "wall time" if objective.metric == WALL else objective.metric
    required = "".join(f", with {one.text}" for one in objective.requirements)
    return f"{name}, {objective.goal.value}{required}"


def number(value: float, digits: int = 4) -> str:
    """So many significant digits, thousands grouped. **Ex.:** ``0.0123``, ``12.34``, ``126,800``."""
    if not math.isfinite(value) or not (value == 0 or 1e-4 <= abs(value) < 1e12):
        return f"{value:.{digits}g}"
    rounded = float(f"{value:.{digits}g}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def unit_of(metric: str) -> str:
    """The unit of a metric's values as they are printed; empty where its name does not say.

    **Ex.:** ``s`` of ``wall``, ``ms`` of ``step_ms``, ``images/s`` of itself.
    """
    if metric == WALL:
        return "s"
    name = name_of(metric)
    unit = unit_in(name) if kind_in(metric) is Kind.TIME else None
    if unit is None and "/" in name and " " not in name:
        unit = name
    return unit or ""


def amount(value: float, objective: Objective) -> str:
    """A value of the objective. **Ex.:** ``126,800 images/s``, ``1.5 s``, ``0.9 (accuracy)``."""
    unit = unit_of(objective.metric)
    return f"{number(value)} {unit or f'({objective.metric})'}"


def settings(configuration: Configuration, space: Space) -> str:
    """What of a configuration is not xlaunch's default. **Ex.:** ``allocator=tcmalloc, batch=8``."""
    if configuration == BARE:
        return "the bare command"
    changed = space.changes(configuration)
    if not changed:
        return "xlaunch as it is"
    return ", ".join(f"{name}={value}" for name, value in changed.items())


def describe_space(
    space: Space, left_out: Sequence[LeftOut], *, verbose: bool = False
) -> Iterator[str]:
    """What is searched, a line each, then what is not: in one line, if `verbose` each with its reason."""
    yield f"to search: {counted(space.size, 'configuration')}"
    width = max(len(parameter.name) for parameter in space.parameters)
    for parameter in space.parameters:
        values = [str(value) for value in parameter.values]
        if len(values) > MOST_VALUES:
            values = [*values[: MOST_VALUES - 2], "...", values[-1]]
        reason = f"  ({parameter.reason})" if parameter.reason else ""
        yield f"  {parameter.name:<{width}}  {' '.join(values)}{reason}"
    for condition in space.conditions:
        yield f"  when {condition.text}"
    if left_out and not verbose:
        counts = Counter(one.name.partition("=")[0] for one in left_out if "=" in one.name)
        several = {name: f"{count} values of {name}" for name, count in counts.items() if count > 1}
        names = dict.fromkeys(several.get(one.name.partition("=")[0], one.name) for one in left_out)
        yield f"  left out: {', '.join(names)} (-v says why)"
        return
    for one in left_out:
        yield f"  left out: {one.name}: {one.reason}"


def describe_outline(outline: Outline) -> str:
    """How the space will be gone through."""
    how = "each is launched several times" if outline.races else "a model chooses what to launch"
    plans = ""
    if outline.plans is not None:
        plans = f" ({outline.plans} that differ in how the program is started)"
    before = f"; {launches(outline.records)} of earlier searches count" if outline.records else ""
    return (
        f"budget: {outline.budget}; {counted(outline.size, 'configuration')}{plans}: {how}{before}"
    )


def time_left(progress: Progress, budget: Budget) -> float | None:
    """Seconds until the budget is used up, if launches go on taking as long, all that is around
    them included; None before one was made.
    """
    if not progress.launches or not math.isfinite(progress.left):
        return None
    left_s = progress.left * progress.elapsed_s / progress.launches
    if budget.time_s is not None:
        left_s = min(left_s, budget.time_s - progress.elapsed_s)
    return max(left_s, 0.0)


def describe_left(progress: Progress, budget: Budget) -> str:
    """**Ex.:** ``12 launches, up to 28 left (40 s)``."""
    made = launches(progress.launches)
    left_s = time_left(progress, budget)
    if left_s is None:
        return made
    if budget.launches is None:  # how many more that will be, nobody knows
        return f"{made}, up to {duration(left_s)} left"
    return f"{made}, up to {progress.left:.0f} left ({duration(left_s)})"


def describe_favourite(favourite: Favourite, space: Space, objective: Objective) -> str:
    """The best so far and how sure that is."""
    is_behind = favourite.ratio is not None and favourite.ratio < 1.0
    text = (
        f"{'the bare command, then ' if is_behind else ''}{settings(favourite.configuration, space)}: {amount(favourite.value, objective)},"
        f" {number(favourite.low)} to {number(favourite.high)}"
    )
    if favourite.ratio is not None:
        text += f"; {favourite.ratio:.2f} times the bare command"
    return text


def describe_launch(record: Record, space: Space, objective: Objective) -> str:
    """One launch that has ended."""
    launch = record.launch
    assert launch is not None
    told = settings(record.step.configuration, space)
    if launch.outcome is Outcome.MEASURED and launch.value is not None:
        broken = ""
        if not objective.is_feasible(launch):
            broken = f"; breaks what is required: {unkept(launch, objective)}"
        return f"{told}: {amount(launch.value, objective)}{broken}"
    return f"{told}: {describe_failure(launch)}"


def unkept(launch: Launch, objective: Objective) -> str:
    """What a launch that was measured does not keep of what is required, and where that is not known, why."""
    seen = dict(launch.requirements)
    broken = [
        one.text
        for one in objective.requirements
        if seen.get(one.text) is not None and not one.holds(seen[one.text])
    ]
    unknown = [note for note in launch.notes if note.startswith("--require ")]
    return "; ".join([*broken, *unknown])


def describe_failure(launch: Launch) -> str:
    """How a launch ended that has no value. **Ex.:** ``crashed: exit code 3: no such file``."""
    parts = [launch.outcome.value, *launch.notes[:1]]
    lines = launch.stderr_tail.strip().splitlines()
    return ": ".join([*parts, *lines[-1:]])


def describe_step(step: Step, space: Space) -> str:
    """What is launched now, and what for."""
    origin = f" ({step.origin})" if step.origin and step.configuration != BARE else ""
    return f"{settings(step.configuration, space)}{origin}"


def spans(numbers: Sequence[int]) -> str:
    """Numbers as people list them. **Ex.:** ``3, 7 to 9``."""
    found = []
    for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        if len(members) > 2:
            found.append(f"{members[0]} to {members[-1]}")
        else:
            found += [str(number) for number in members]
    return ", ".join(found)
