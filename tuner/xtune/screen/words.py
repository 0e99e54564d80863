# SPDX-License-Identifier: Apache-2.0
"""Configurations, launches and progress as users read them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from xlaunch.wording import number
from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import WALL, Objective
from xtune.screen.quantities import amount, counted, duration, launches
from xtune.search.budget import Budget
from xtune.search.events import Favourite, Outline, Progress, Resolution
from xtune.search.records import Record, Stage, Step
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
"""What a launch is made for."""

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
    if left_out and not verbose:
        counts = Counter(one.name.partition("=")[0] for one in left_out if "=" in one.name)
        several = {name: f"{count} values of {name}" for name, count in counts.items() if count > 1}
        names = dict.fromkeys(several.get(one.name.partition("=")[0], one.name) for one in left_out)
        yield f"  left out: {', '.join(names)} (-v gives the reasons)"
        return
    for one in left_out:
        yield f"  left out: {one.name}: {one.reason}"


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
    """The best configuration so far, with its interval."""
    is_behind = favourite.ratio is not None and favourite.ratio < 1.0
    ahead = "the bare command, then " if is_behind else ""
    shown = settings(favourite.configuration, space)
    text = f"{ahead}{shown}: {amount(favourite.value, objective)}"
    if favourite.low is not None and favourite.high is not None:
        text += f", {number(favourite.low)} to {number(favourite.high)}"
    if favourite.ratio is not None:
        text += f"; {number(favourite.ratio, 3)} times the bare command"
    return text


def describe_resolution(resolution: Resolution, budget: Budget) -> str:
    """What a budget can show. **Ex.:** ``40 launches: gains from about 6 % at the noise seen (...)``."""
    return f"{budget}: gains {describe_gains(resolution)}; smaller ones stay open"


def describe_gains(resolution: Resolution) -> str:
    """**Ex.:** ``from 4.1 to 9 % on, depending on the noise (3.1 % from launch to launch so far)``."""
    low, high = (
        f"{100 * one:.{0 if one >= 0.1 else 1}f}" for one in (resolution.low, resolution.high)
    )
    return (
        f"from {low} to {high} % on, depending on the noise"
        f" ({100 * resolution.spread:.1f} % from launch to launch so far)"
    )


def describe_launch(record: Record, space: Space, objective: Objective) -> str:
    """A launch that has ended: its value, or how it failed."""
    launch = record.launch
    assert launch is not None
    shown = settings(record.step.configuration, space)
    if launch.outcome is Outcome.MEASURED and launch.value is not None:
        broken = ""
        if not objective.is_feasible(launch):
            broken = f"; breaks a requirement: {unmet(launch, objective)}"
        return f"{shown}: {amount(launch.value, objective)}{broken}"
    return f"{shown}: {describe_failure(launch)}"


def unmet(launch: Launch, objective: Objective) -> str:
    """The requirements that a measured launch breaks, or the reason why that is unknown."""
    seen = dict(launch.requirements)
    broken = [
        one.text
        for one in objective.requirements
        if seen.get(one.text) is not None and not one.holds(seen[one.text])
    ]
    unknown = [note for note in launch.notes if note.startswith("--require ")]
    return "; ".join([*broken, *unknown])


def describe_failure(launch: Launch) -> str:
    """How a launch without a value ended. **Ex.:** ``crashed: exit code 3: no such file``."""
    parts = [launch.outcome.value, *launch.notes[:1]]
    lines = launch.stderr_tail.strip().splitlines()
    return ": ".join([*parts, *lines[-1:]])


def describe_step(step: Step, space: Space) -> str:
    """What is launched and why."""
    origin = f" ({step.origin})" if step.origin and step.configuration != BARE else ""
    return f"{settings(step.configuration, space)}{origin}"
