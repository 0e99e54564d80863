# SPDX-License-Identifier: Apache-2.0
"""The result of a search: one immutable value, which is shown as text, JSON and HTML."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from xlaunch.errors import UsageError
from xtune.evidence.finals import FinalPlan
from xtune.evidence.readings import Importance, Point, front_of, importance_of
from xtune.evidence.verdicts import Verdict, VerdictKind
from xtune.launches.launch import Launch, Objective, Outcome
from xtune.launches.summaries import compared, with_unit
from xtune.search.ablation import Ablation, ablations_of
from xtune.search.events import EndReason, Favourite, Resolution
from xtune.search.records import Record, ScoreScale, ended_launches
from xtune.search.study import Subject
from xtune.show.words import broken_requirements
from xtune.show.words import launches as counted_launches
from xtune.space.parameters import BARE, Configuration, Target, Value
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space

HEADLINES = {
    VerdictKind.GAIN: "gain",
    VerdictKind.NO_GAIN: "no gain: keep the bare command",
    VerdictKind.INCONCLUSIVE: "inconclusive: neither a gain nor its absence is established",
}

MAX_LABELS = 5
"""Configurations that are compared with the bare command in charts."""

PROMISING_ERRORS = 2.0
"""A lead of fewer standard errors is not called promising."""


class Failure(NamedTuple):
    """Launches with the same outcome, exit code and last line of standard error."""

    numbers: tuple[int, ...]
    """Of the launches, from 1."""
    launches: tuple[Launch, ...]


class UnprovenBest(NamedTuple):
    """The best configuration of a search that proved nothing."""

    configuration: Configuration
    value: float | None
    """Its value, where only the search tells; None with a final."""
    ratio: float | None
    """To the bare command, above 1 is better."""
    is_promising: bool | None = None
    """It is ahead of the bare command by more than the noise; None if the noise is unknown."""


class SearchResult(NamedTuple):
    """The result of a search."""

    study: str
    """Its name."""
    subject: Subject
    resolver: Resolver
    verdict: Verdict
    favourite: Favourite | None
    records: tuple[Record, ...]
    """Launches that have ended, also those of earlier searches of the study."""
    second: Objective | None = None
    """The second --metric, if it has a goal."""
    storage: str | None = None
    """--storage; None: the default storage."""
    preset: str | None = None
    """The file with the winner's settings."""
    earlier: str = ""
    """The verdict of an earlier search of the study, if this one is inconclusive."""
    resolution: Resolution | None = None
    """The gains that the search could show."""
    end_reason: EndReason = EndReason.DONE
    """How the last search ended."""
    directory: str = ""
    """The working directory of the launches, for the page."""

    @property
    def space(self) -> Space:
        return self.subject.space

    @property
    def objective(self) -> Objective:
        return compared(with_unit(self.subject.objective, self.launches), self.launches)

    @property
    def other_objective(self) -> Objective | None:
        """The second goal with its unit."""
        return None if self.second is None else with_unit(self.second, self.launches)

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(ended_launches(self.records))

    @property
    def wall_s(self) -> float:
        """The time of all launches."""
        return sum(launch.secondary.wall_s for launch in self.launches)

    # What to use.

    @property
    def command(self) -> str:
        """The command to use: with the preset, or with all options without one."""
        best = self.verdict.best
        if best != BARE and self.preset is not None:
            return shlex.join(self.resolver.command(best, preset=self.preset))
        return shlex.join(self.resolver.command(best))

    @property
    def preset_text(self) -> str:
        """The winner's settings as a preset; empty if it would set nothing."""
        if self.verdict.best == BARE:
            return ""
        try:
            text = self.resolver.preset(self.verdict.best, use=self.preset or "best.toml")
        except UsageError:
            return ""  # a value that TOML cannot hold
        sets_nothing = all(not line or line[0] == "#" for line in text.splitlines())
        return "" if sets_nothing and self.preset is None else text

    @property
    def shown(self) -> Configuration:
        """The winner, else the best finalist, else BARE."""
        if self.verdict.best != BARE or self.verdict.leader is None:
            return self.verdict.best
        return self.verdict.leader

    @property
    def unproven_best(self) -> UnprovenBest | None:
        """The leader of the final, else of all launches; None with a gain, or without any."""
        leader, interval, favourite = self.verdict.leader, self.verdict.interval, self.favourite
        if self.verdict.kind is VerdictKind.GAIN:
            return None
        error, pairs = math.inf, 1
        if leader is not None and interval is not None:
            unproven_best = UnprovenBest(leader, None, interval.estimate)
            error, pairs = interval.error, interval.pairs
        elif favourite is not None:
            configuration, ratio = favourite.configuration, favourite.ratio
            unproven_best = UnprovenBest(configuration, favourite.value, ratio)
            pairs = max(1, min(len(self.values(configuration)), len(self.values(BARE))))
        else:
            return None
        if math.isinf(error) and self.resolution is not None:
            error = self.resolution.spread * math.sqrt(2.0 / pairs)
        if math.isinf(error) or not unproven_best.ratio:
            return unproven_best
        return unproven_best._replace(
            is_promising=math.log(unproven_best.ratio) > PROMISING_ERRORS * error
        )

    # What was seen.

    def values(self, configuration: Configuration) -> list[float]:
        """The values of a configuration's launches, in order."""
        return [
            launch.value
            for launch in self.launches
            if launch.configuration == configuration and launch.value is not None
        ]

    def levels(self, launches: Iterable[Launch]) -> list[float]:
        """What these launches are compared by: see `Objective.level`."""
        levels = [self.objective.level(launch.value) for launch in launches]
        return [level for level in levels if level is not None]

    def median(self, configuration: Configuration) -> float | None:
        values = self.values(configuration)
        return statistics.median(values) if values else None

    @property
    def medians(self) -> dict[Configuration, float]:
        """The median of each configuration with a finite value; the bare command is left out."""
        groups: dict[Configuration, list[float]] = {}
        for launch in self.launches:
            value = launch.value
            if launch.configuration != BARE and value is not None and math.isfinite(value):
                groups.setdefault(self._whole(launch.configuration), []).append(value)
        return {one: statistics.median(values) for one, values in groups.items()}

    def broke(self, configuration: Configuration) -> str:
        """The requirements that its launches broke. **Ex.:** ``p99<=20ms in 1 of 5 launches``."""
        if not self.objective.requirements:
            return ""
        wanted = self._whole(configuration)
        broken = [
            broken_requirements(launch, self.objective)
            for launch in self.launches
            if launch.outcome is Outcome.MEASURED and self._whole(launch.configuration) == wanted
        ]
        texts = dict.fromkeys(requirement.text for one in broken for requirement in one)
        many = f"{sum(map(bool, broken))} of {counted_launches(len(broken))}"
        return f"{', '.join(texts)} in {many}" if texts else ""

    def _whole(self, configuration: Configuration) -> Configuration:
        """With a value for every setting; the bare command has none."""
        return configuration if configuration == BARE else self.space.complete(configuration)

    @property
    def best_so_far(self) -> list[float | None]:
        """After each launch, the best value that met all requirements; None before the first."""
        best: float | None = None
        bests: list[float | None] = []
        for launch in self.launches:
            value = launch.value
            if value is not None and self.objective.is_feasible(launch):
                better = best is None or self.objective.sign * (value - best) > 0
                best = value if better else best
            bests.append(best)
        return bests

    @property
    def labels(self) -> dict[Configuration, str]:
        """Names for charts: ``bare``, then a letter for each finalist, or without a final the best launched."""
        chosen = [row.configuration for row in self.verdict.finalists]
        if not chosen:
            met = [launch for launch in self.launches if self.objective.is_feasible(launch)]
            chosen = list(dict.fromkeys(o.configuration for o in met if o.configuration != BARE))
            chosen.sort(key=lambda launched: -self.objective.sign * (self.median(launched) or 0.0))
        return {BARE: "bare"} | dict(zip(chosen, "ABCDE"[:MAX_LABELS], strict=False))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures, in order of their first launch. Cut launches are no failures."""
        groups: dict[tuple[Outcome, int | None, str], list[tuple[int, Launch]]] = {}
        for number, one in enumerate(self.launches, start=1):
            if one.outcome not in (Outcome.MEASURED, Outcome.CUT):
                kind = one.outcome, one.exit_code, one.last_words
                groups.setdefault(kind, []).append((number, one))
        return tuple([Failure(*zip(*members, strict=True)) for members in groups.values()])

    @property
    def final_plan(self) -> FinalPlan | None:
        """The plan of the last final; None before the first."""
        details = [
            record.step.details for record in self.records if record.step.details is not None
        ]
        return details[-1].plan if details else None

    @property
    def ablations(self) -> tuple[Ablation, ...]:
        """The winner without each of its changes."""
        scale = ScoreScale(self.records, self.objective)
        return ablations_of(self.verdict.best, self.space, self.resolver.plan_hash, scale)

    @property
    def front(self) -> tuple[Point, ...]:
        """The configurations that have values of both goals; none without a second goal."""
        second = self.second
        return () if second is None else front_of(self.launches, self.objective, second)

    @property
    def importance(self) -> Importance:
        """Which settings mattered."""
        return importance_of(self.launches, self.space.parameters, self.objective)

    def to_plain(self) -> dict[str, Any]:
        """The output of --json."""
        interval, resolution = self.verdict.interval, self.resolution
        return {
            "verdict": self.verdict.kind.value,
            "gain": finite(self.verdict.gain),
            "interval": interval
            and [finite(interval.in_values(bound)) for bound in (interval.low, interval.high)],
            "compared_by": "difference" if self.objective.step else "ratio",
            "best": self._settings(self.verdict.best),
            "baseline": {
                "command": shlex.join(self.resolver.command(BARE)),
                "settings": self._settings(BARE),
                "metric": self.objective.metric,
                "value": self.median(BARE),
                "launches": len(self.values(BARE)),
            },
            "launches": len(self.launches),
            "noise": resolution and resolution.spread,
            "smallest_gain": resolution and resolution.gain,
            "command": self.command,
        }

    def _settings(self, configuration: Configuration) -> dict[str, Value]:
        """All settings; for the bare command only the user's parameters."""
        if configuration != BARE:
            return dict(self.space.complete(configuration))
        own = [p for p in self.space.parameters if p.where is Target.PROGRAM]
        return {parameter.name: parameter.default for parameter in own}


def finite(value: float | None) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None
