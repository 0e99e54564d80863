# SPDX-License-Identifier: Apache-2.0
"""Measurement of a Python function in place of a program."""

from __future__ import annotations

import inspect
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

from xlaunch.errors import XLaunchError
from xlaunch.planning import Plan
from xtune.errors import ObjectiveError
from xtune.launches.generators import summary_of_share
from xtune.launches.launch import NO_LIMITS, Launch, Limits, Objective, Outcome, Secondary
from xtune.launches.requirements import check
from xtune.space.parameters import BARE, Configuration, Target, Value
from xtune.space.resolution import Resolver


class Trial(NamedTuple):
    """The configuration that a function is called with."""

    parameters: Mapping[str, Value]
    """The values of `param`, by name."""
    layout: Plan | None = None
    """The CPUs and the memory of each instance that the function starts; None: only parameters are
    searched, or it is to be measured as it is without xlaunch."""
    environment: tuple[Mapping[str, str], ...] = ()
    """All variables of each instance, if there is a layout."""

    def launch(self, value: float, *, metrics: Mapping[str, float] | None = None) -> Launch:
        """The result of a function that has followed the layout and the environment.

        `metrics`: other numbers, by the names that requirements and a second metric give them.
        """
        named_metrics = tuple((metrics or {}).items())
        return Launch(BARE, "", Outcome.MEASURED, value, 0.0, metrics=named_metrics)


Function = Callable[[Trial], "float | Launch"]


def words_of_function(function: Function, parameters: Iterable[str]) -> tuple[str, ...]:
    """A command that stands for a function in studies: its file, its name and its parameters."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        path = None
    file = [path] if path is not None and os.path.isfile(path) else []
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return (
        sys.executable,
        *file,
        name,
        *[f"{parameter}={{{parameter}}}" for parameter in parameters],
    )


@dataclass(frozen=True)
class FunctionMeasurer:
    """A `Measurer` that calls a function."""

    function: Function
    resolver: Resolver
    objective: Objective

    @property
    def _has_layouts(self) -> bool:
        places = {parameter.where for parameter in self.resolver.space.parameters}
        return places > {Target.PROGRAM} or Target.PROGRAM not in places

    def now_s(self) -> float:
        return time.monotonic()

    def measure(self, configuration: Configuration, limits: Limits = NO_LIMITS) -> Launch:
        """See `Measurer`; a call is never cut.

        Raises `ObjectiveError` for a result of another type, `SpaceError` for a configuration that is not
        in the space.
        """
        launch = Launch.not_started(configuration, self.resolver.plan_hash(configuration))
        started = time.monotonic()
        try:
            trial = self._trial(configuration)
        except XLaunchError as error:
            return launch._replace(notes=(str(error),))
        try:
            result = self.function(trial)
        except Exception as error:  # noqa: BLE001 - a failure of the workload
            used, why = Secondary(time.monotonic() - started), f"{type(error).__name__}: {error}"
            return launch._replace(outcome=Outcome.CRASHED, secondary=used, notes=(why,))
        return self._read(launch, trial, result, time.monotonic() - started)

    def _trial(self, configuration: Configuration) -> Trial:
        parameters = self.resolver.own_values(configuration)
        if not self._has_layouts or configuration == BARE:
            return Trial(parameters)
        layout = self.resolver.resolve(configuration).plan
        return Trial(parameters, layout, self.resolver.environment(configuration).variables)

    def _read(self, launch: Launch, trial: Trial, result: Any, wall_s: float) -> Launch:
        if not isinstance(result, Launch):
            if isinstance(result, bool) or not isinstance(result, Real):
                raise ObjectiveError(
                    f"the function returned {result!r}: return a number, or configuration.launch(number)"
                )
            if self._has_layouts:
                raise ObjectiveError(
                    "the function returned a number, but layouts and variables are searched, which only"
                    " it can follow: return configuration.launch(number) where it does, or leave out"
                    " only_params=False"
                )
            result = trial.launch(float(result))
        secondary = result.secondary
        completed: Launch = result._replace(
            configuration=launch.configuration, plan_hash=launch.plan_hash, began_s=launch.began_s,
            secondary=secondary if secondary.wall_s else secondary._replace(wall_s=wall_s),
        )  # fmt: skip
        if completed.value is not None and not math.isfinite(completed.value):
            notes = (f"the function returned {completed.value}",)
            return completed._replace(outcome=Outcome.NOT_FINITE, value=None, notes=notes)
        summaries = {name: summary_of_share(name, value) for name, value in completed.metrics}
        seen, unmet = check(self.objective.requirements, summaries, completed.secondary)
        return completed._replace(requirements=seen, notes=(*completed.notes, *unmet))
