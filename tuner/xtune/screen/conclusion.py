# SPDX-License-Identifier: Apache-2.0
"""The result of a search, and its form as text and as JSON."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from xlaunch.errors import UsageError
from xlaunch.wording import number
from xtune.evidence.finals import FinalPlan
from xtune.evidence.fronts import SecondGoal
from xtune.evidence.importance import Importance, SettingImportance, importance_of
from xtune.evidence.verdicts import Kind, Verdict
from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import Objective
from xtune.screen.cautions import launch_warnings
from xtune.screen.front import front_lines
from xtune.screen.quantities import amount, counted, duration, launches, percent
from xtune.screen.words import describe_gains, settings, unmet
from xtune.search.ablation import Ablation, ablations_of
from xtune.search.encoding import decode_final_plan
from xtune.search.events import Favourite, Resolution
from xtune.search.provenance import Made
from xtune.search.records import Record, Stage
from xtune.search.scale import Scale
from xtune.search.study import Subject
from xtune.space.parameters import BARE, Configuration, Value, Where
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space

MIN_EFFECT_SHOWN = 0.005
"""Smaller effects get no line, however sure they are."""

MAX_CONFIGURATIONS_SHOWN = 8
"""Size of a space up to which all configurations are listed."""

HEADLINES = {
    Kind.GAIN: "gain",
    Kind.NO_GAIN: "no gain: keep the default",
    Kind.INCONCLUSIVE: "inconclusive: nothing is shown yet",
}


class Conclusion(NamedTuple):
    """The result of a search."""

    study: str
    """Its name."""
    subject: Subject
    resolver: Resolver
    verdict: Verdict
    favourite: Favourite | None
    records: tuple[Record, ...]
    """Launches that have ended, also those of earlier searches of the study."""
    second: SecondGoal | None = None
    """The second --metric, if it has a goal."""
    storage: str | None = None
    """--storage; None: the default storage."""
    preset: str | None = None
    """The file with the winner's settings."""
    trouble: str = ""
    """Why the search ended early."""
    earlier: str = ""
    """The verdict of an earlier search of the study, if this one is inconclusive."""
    resolution: Resolution | None = None
    """The gains that the search could show."""
    ended: str = ""
    """How the last search ended; empty if unknown."""
    directory: str = ""
    """The working directory of the launches, for the page."""
    made: tuple[Made, ...] = ()
    """The launches by program version and environment, as far as that was kept; for the page."""

    @property
    def space(self) -> Space:
        return self.subject.space

    @property
    def objective(self) -> Objective:
        return self.subject.objective

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple([record.launch for record in self.records if record.launch is not None])

    @property
    def command(self) -> str:
        """The command to use: with the preset, or with all options without one."""
        best = self.verdict.best
        if best != BARE and self.preset is not None:
            return shlex.join(self.resolver.preset_command(best, use=self.preset))
        return shlex.join(self.resolver.command(best))

    @property
    def ablations(self) -> tuple[Ablation, ...]:
        """The winner without each of its changes."""
        scale = Scale(self.records, self.objective)
        return ablations_of(self.verdict.best, self.space, self.resolver.plan_hash, scale)

    @property
    def shown(self) -> Configuration:
        """The winner, else the most promising finalist, else BARE."""
        if self.verdict.best != BARE or self.verdict.leader is None:
            return self.verdict.best
        return self.verdict.leader

    @property
    def final_plan(self) -> FinalPlan | None:
        """The plan of the last final; None before the first."""
        for record in reversed(self.records):
            if record.step.stage is Stage.FINAL and "plan" in record.step.details:
                return decode_final_plan(record.step.details["plan"])
        return None

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
    def medians(self) -> dict[Configuration, float]:
        """The median of each configuration with a finite value; the bare command is left out."""
        groups: dict[Configuration, list[float]] = {}
        for launch in self.launches:
            value = launch.value
            if launch.configuration != BARE and value is not None and math.isfinite(value):
                groups.setdefault(self.space.complete(launch.configuration), []).append(value)
        return {one: statistics.median(values) for one, values in groups.items()}

    def values(self, configuration: Configuration) -> list[float]:
        """The values of a configuration's launches, in order."""
        return [
            launch.value
            for launch in self.launches
            if launch.configuration == configuration and launch.value is not None
        ]

    def median(self, configuration: Configuration) -> float | None:
        found = self.values(configuration)
        return statistics.median(found) if found else None

    def to_plain(self) -> dict[str, Any]:
        """The output of --json."""
        verdict = self.verdict
        interval = verdict.interval
        bare = self.values(BARE)
        return {
            "verdict": verdict.kind.value,
            "gain": _finite(verdict.gain),
            "interval": None
            if interval is None
            else [_finite(interval.low), _finite(interval.high)],
            "best": self._settings(verdict.best),
            "baseline": {
                "command": shlex.join(self.resolver.command(BARE)),
                "settings": self._settings(BARE),
                "metric": self.objective.metric,
                "value": statistics.median(bare) if bare else None,
                "launches": len(bare),
            },
            "launches": len(self.launches),
            "noise": None if self.resolution is None else self.resolution.spread,
            "smallest_gain": None if self.resolution is None else self.resolution.gain,
            "command": self.command,
        }

    def lines(self) -> Iterator[str]:
        """The output at the end, the verdict first."""
        verdict, objective = self.verdict, self.objective
        yield f"{HEADLINES[verdict.kind]}{self._ratio()}"
        if verdict.kind is Kind.GAIN:
            yield f"  best: {settings(verdict.best, self.space)}"
            bare, best = self.values(BARE), self.values(verdict.best)
            if bare and best:
                yield (
                    f"  median: {amount(statistics.median(best), objective)}"
                    f" ({launches(len(best))}); bare command:"
                    f" {amount(statistics.median(bare), objective)} ({launches(len(bare))})"
                )
        else:
            yield f"  {verdict.reason}"
            yield from self._promising()
        if verdict.kind is Kind.INCONCLUSIVE:
            yield from self._what_next()
        if self.earlier:
            yield f"  {self.earlier}"
        yield from self._mattered()
        yield from self._failures()
        if self.second is not None:
            yield from front_lines(self.launches, self.space, self.objective, self.second)
        for warned in launch_warnings(self.records):
            yield f"  warning: {warned.text}"
        if self.trouble:
            yield f"  {self.trouble}"
        yield f"  run it: {self.command}"
        if self.preset is not None:
            yield f"  preset: {self.preset}"
        spent_s = sum(launch.secondary.wall_s for launch in self.launches)
        yield (
            f"  {launches(len(self.launches))}, {duration(spent_s)} in all; details: xtune report"
            f"{self._storage_option()} {shlex.quote(self.study)}"
        )

    @property
    def advice(self) -> str:
        """What the resume command is for."""
        more = self.verdict.more
        if more is None:
            return "to continue"
        return (
            f"about {launches(more.launches)} more ({duration(more.seconds)}) in its final should"
            " settle it (90 % power)"
        )

    @property
    def resume_command(self) -> str:
        """The command that continues the search; with the budget that should settle it, if known."""
        more = self.verdict.more
        budget = "" if more is None else f" --budget '{more.launches} launches'"
        return f"xtune resume{self._storage_option()}{budget} {shlex.quote(self.study)}"

    def _storage_option(self) -> str:
        """--storage, if it was given."""
        return "" if self.storage is None else f" --storage {shlex.quote(self.storage)}"

    def _settings(self, configuration: Configuration) -> dict[str, Value]:
        """All settings; for the bare command only the user's parameters."""
        if configuration != BARE:
            return dict(self.space.complete(configuration))
        own = [p for p in self.space.parameters if p.where is Where.PROGRAM]
        return {parameter.name: parameter.default for parameter in own}

    def _ratio(self) -> str:
        verdict, interval = self.verdict, self.verdict.interval
        if verdict.kind is not Kind.GAIN or interval is None:
            return ""
        return (
            f": {number(interval.estimate, 3)} times as good as the bare command (95 % confidence"
            f" interval: {number(interval.low, 3)} to {number(interval.high, 3)},"
            f" {counted(interval.pairs, 'pair')})"
        )

    def _promising(self) -> Iterator[str]:
        """The leader of the final, else of all launches, if it is ahead of the bare command."""
        if self.verdict.kind is Kind.NO_GAIN:
            return
        if self.verdict.leader is not None:
            configuration, interval = self.verdict.leader, self.verdict.interval
            shown = settings(configuration, self.space)
            ratio = None if interval is None else interval.estimate
        elif self.favourite is not None and self.favourite.is_ahead:
            configuration, ratio = self.favourite.configuration, self.favourite.ratio
            shown = f"{settings(configuration, self.space)}: {amount(self.favourite.value, self.objective)}"
            shown += "" if ratio is None else f", {number(ratio, 3)} times the bare command"
        else:
            return
        if ratio is not None and ratio <= 1.0:
            yield f"  nothing is ahead of the bare command so far; the best is {shown}"
            return
        command = shlex.join(self.resolver.command(configuration))
        yield f"  most promising, but not proven: {shown}; to try it: {command}"

    def _what_next(self) -> Iterator[str]:
        if self.resolution is not None:
            yield f"  it could show gains {describe_gains(self.resolution)}"
        yield f"  {self.advice}: {self.resume_command}"

    def _mattered(self) -> Iterator[str]:
        """The settings that mattered; for a small space the median of each configuration."""
        left_out = self.ablations
        for one in left_out:
            yield f"  without its {_describe_ablation(one)}"
        importance = importance_of(self.launches, self.space.parameters, self.objective)
        found = [row for row in importance.settings if row.matters and _is_visible(row)]
        for row in found:
            yield f"  mattered: {_describe(row)}"
        if found or left_out:
            return
        if self.space.size > MAX_CONFIGURATIONS_SHOWN:
            yield f"  what mattered: {_nothing(importance)}"
            return
        for configuration in self.space:
            values = self.values(configuration)
            if values:
                yield (
                    f"  {settings(configuration, self.space)}: median"
                    f" {amount(statistics.median(values), self.objective)} ({launches(len(values))})"
                )

    def _failures(self) -> Iterator[str]:
        failed: dict[Outcome, int] = {}
        for launch in self.launches:
            if launch.outcome not in (Outcome.MEASURED, Outcome.CUT):
                failed[launch.outcome] = failed.get(launch.outcome, 0) + 1
        if failed:
            counts = ", ".join(f"{count} {outcome.value}" for outcome, count in failed.items())
            yield f"  failed launches: {counts} (xtune export has their standard error)"
        measured = [one for one in self.launches if one.outcome is Outcome.MEASURED]
        broke = [one for one in measured if not self.objective.is_feasible(one)]
        if broke:
            bounds = unmet(broke[-1], self.objective)
            yield (
                f"  {len(broke):,} of {launches(len(measured))} broke requirements; the last: {bounds}"
            )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _is_visible(row: SettingImportance) -> bool:
    """Whether some value has an effect worth a line."""
    return any(abs(effect.ratio - 1.0) >= MIN_EFFECT_SHOWN for effect in row.effects)


def _describe(row: SettingImportance) -> str:
    best = row.best
    assert best is not None  # it matters
    return (
        f"{row.name} ({percent(row.share)} of the differences, {percent(row.share_low)} to"
        f" {percent(row.share_high)}): {best.value} is {number(best.ratio, 3)} times its default,"
        f" {number(best.low, 3)} to {number(best.high, 3)}"
    )


def _describe_ablation(one: Ablation) -> str:
    return (
        f"{one.name}={one.value}: {number(one.ratio, 3)} times as good,"
        f" {number(one.low, 3)} to {number(one.high, 3)}"
    )


def _nothing(importance: Importance) -> str:
    return importance.note or "no single setting for certain"
