# SPDX-License-Identifier: Apache-2.0
"""Configurations, launches and progress as users read them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import WALL, Objective
from xtune.search.budget import Budget
from xtune.search.events import Favourite, Outline, Progress, Resolution
from xtune.search.records import Record, Stage, Step
from xtune.show.quantities import amount, counted, duration, launches, ratios
from xtune.space.offers import LeftOut
from xtune.space.parameters import BARE, Configuration
from xtune.space.spaces import Space

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
"""Values of a parameter that are listed."""


def aim(objective: Objective) -> str:
    """The objective in words. **Ex.:** ``images/s, maximize, with rss<=8GiB``."""
    name = "wall time" if objective.metric == WALL else objective.metric
    required = "".join(f", with {one.text}" for one in objective.requirements)
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
    """The parameters and their values; what is left out, with reasons if `verbose`."""
    more = "" if space.is_counted else "more than "
    yield f"to search: {more}{counted(space.size, 'configuration')}"
    width = max(len(parameter.name) for parameter in space.parameters)
    for parameter in space.parameters:
        values = [str(value) for value in parameter.values]
        if len(values) > MAX_VALUES:
            values = [*values[: MAX_VALUES - 2], "...", values[-1]]
        reason = f"  ({parameter.reason})" if parameter.reason else ""
        yield f"  {parameter.name:<{width}}  {' '.join(values)}{reason}"
    for condition in space.conditions:
        yield f"  when {condition.text}"
    if verbose:
        yield from (f"  left out: {one.name}: {one.reason}" for one in left_out)
    elif left_out:
        counts = Counter(one.name.partition("=")[0] for one in left_out if "=" in one.name)
        several = {name: f"{count} values of {name}" for name, count in counts.items() if count > 1}
        names = dict.fromkeys(several.get(one.name.partition("=")[0], one.name) for one in left_out)
        yield f"  left out: {', '.join(names)} (-v gives the reasons)"


def describe_outline(outline: Outline) -> str:
    """How the space will be searched."""
    plans = ""
    if outline.plans is not None:
        plans = f" ({outline.plans:,} different ways to start the program)"
    before = f"; {launches(outline.records)} of earlier searches count" if outline.records else ""
    return f"budget: {outline.budget}; {counted(outline.size, 'configuration')}{plans}{before}"


def time_left(progress: Progress, budget: Budget) -> float | None:
    """Seconds until the budget is used up if launches take as long as so far.

    None before the first launch has ended.
    """
    if not progress.launches or not math.isfinite(progress.left):
        return None
    left_s = progress.left * progress.elapsed_s / progress.launches
    if budget.time_s is not None:
        left_s = min(left_s, budget.time_s - progress.elapsed_s)
    return max(left_s, 0.0)


def describe_left(progress: Progress, budget: Budget) -> str:
    """Launches made and left. **Ex.:** ``12 launches, up to 28 left (40 s)``."""
    made = launches(progress.launches)
    left_s = time_left(progress, budget)
    if left_s is None:
        return made
    if budget.launches is None:  # the number of launches left is unknown
        return f"{made}, up to {duration(left_s)} left"
    return f"{made}, up to {progress.left:,.0f} left ({duration(left_s)})"


def describe_favourite(favourite: Favourite, space: Space, objective: Objective) -> str:
    """The best configuration so far; only a final says how sure that is."""
    shown = f"{settings(favourite.configuration, space)}: {amount(favourite.value, objective)}"
    if favourite.ratio is None:
        return shown
    ahead = "the bare command, then " if favourite.ratio < 1.0 else ""
    return f"{ahead}{shown}, {ratios(favourite.ratio)[0]} times the bare command"


def describe_resolution(resolution: Resolution, budget: Budget) -> str:
    """What a budget can show. **Ex.:** ``40 launches detect gains above about 6 % (noise: ...)``."""
    return f"{budget}: detects gains {describe_gains(resolution)}; smaller ones stay open"


def describe_gains(resolution: Resolution) -> str:
    """**Ex.:** ``above 4.1 to 9.2 % (noise: 3.1 % from launch to launch)``."""
    low, high = (
        f"{100 * one:.{0 if one >= 0.1 else 1}f}" for one in (resolution.low, resolution.high)
    )
    span = low if low == high else f"{low} to {high}"
    return f"above {span} % (noise: {100 * resolution.spread:.1f} % from launch to launch)"


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


def broken_requirements(launch: Launch, objective: Objective) -> list[str]:
    """The requirements for which a launch has a value that breaks them, as the user wrote them."""
    seen = dict(launch.requirements)
    return [
        one.text
        for one in objective.requirements
        if seen.get(one.text) is not None and not one.holds(seen[one.text])
    ]


def unmet(launch: Launch, objective: Objective) -> str:
    """The requirements that a measured launch breaks, or the reason why that is unknown."""
    unknown = [note for note in launch.notes if note.startswith("--require ")]
    return "; ".join([*broken_requirements(launch, objective), *unknown])


def describe_failure(launch: Launch) -> str:
    """How a launch without a value ended. **Ex.:** ``crashed: exit code 3: no such file``."""
    lines = launch.stderr_tail.strip().splitlines()
    return ": ".join([launch.outcome.value, *launch.notes[:1], *lines[-1:]])


def describe_step(step: Step, space: Space) -> str:
    """What is launched and why."""
    origin = f" ({step.origin})" if step.origin and step.configuration != BARE else ""
    return f"{settings(step.configuration, space)}{origin}"
