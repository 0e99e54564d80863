# SPDX-License-Identifier: Apache-2.0
"""Turns what was seen of a run, or printed by load generators, into the measurement of a launch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

from xlaunch.metrics.metric_lines import MetricKind, parse_metric
from xlaunch.report import Report
from xlaunch.text import number
from xtune.errors import ObjectiveError
from xtune.launches.announcements import MARK, Announcement, LaunchAnnouncements, read_announcements
from xtune.launches.generators import (
    ERRORS,
    GENERATORS,
    LATENCY,
    REJECTED,
    summaries_of,
    summary_of_share,
)
from xtune.launches.highest_load import LOAD
from xtune.launches.launch import WALL, Launch, Objective, Outcome, Series, Steadiness
from xtune.launches.meters import MemoryWatch
from xtune.launches.requirements import RESOURCES, check, describe_seen, metrics_to_read
from xtune.launches.services import Load
from xtune.launches.summaries import (
    ALWAYS,
    Summary,
    Window,
    comparable,
    name_of,
    printed_units,
    series_of,
    summaries_of_run,
    unit_in,
    window_of,
)
from xtune.launches.watching import EndedRun, LaunchObservations, describe_unseen, failure_of
from xtune.space.parameters import BARE

ERRORS_NOT_SEEN = (
    "failed requests are not seen: the output is not that of a known load generator"
    f" ({', '.join(GENERATORS)})"
)

MAX_LINES_TOLD = 3
"""Of a generator's output without the metric."""

_RATES = re.compile(r"(?<![\w/])[A-Za-z]\w*/s(?:ec|econd)?(?!\w)|\b(?:fps|qps|rps|tps)\b")
_TRANSFERS = re.compile(r"[kmgt]?i?b(?:ytes?|its?)?/s.*", re.IGNORECASE)
"""Rates of downloads and files. **Ex.:** ``MB/s``."""


@dataclass(eq=False)
class Reader:
    """Reads the launches of a study, whose values it compares in one unit.

    Raises `ObjectiveError` or `UsageError` for metrics that cannot be measured.
    """

    objective: Objective
    others: InitVar[Sequence[str]] = ()
    """Further metrics to record, as for xlaunch's --metric."""
    is_service: bool = field(default=False, kw_only=True)
    """The metrics are what load generators print."""
    printed: dict[str, str] = field(default_factory=dict)
    """See `printed_units`."""
    announcements: tuple[Announcement, ...] = ()
    """The announcements of the last launch."""

    def __post_init__(self, others: Sequence[str]) -> None:
        if self.is_service:
            others = (*others, f"{MetricKind.TIME.value}:{LATENCY}")
        self.metrics = metrics_to_read(self.objective, others)
        """All metrics, as for xlaunch's --metric."""

    def learn(self, launches: Iterable[Launch]) -> None:
        """Compare with the values of earlier launches of the study, whatever units are printed."""
        self.printed = {**self.printed, **printed_units(launches, self.metrics)}

    def read(
        self, launch: Launch, run: EndedRun, limit_s: float | None = None, until_s: float = math.inf
    ) -> Launch:
        """The measurement of a launch that has ended or was ended.

        `limit_s`: the limit at which a program that still runs is measured by its values so far, if
        any; `until_s`: the same, since the launch began.
        """
        is_timeout = run.observations.ended_as is Outcome.TIMED_OUT and limit_s is not None
        if is_timeout and limit_s is not None:
            served = self._served(launch, run, limit_s, until_s)
            if served is not None:
                return served
        failure = failure_of(run)
        if failure is None:
            return self.measured(launch, run)
        outcome, reason = failure
        if is_timeout and self.objective.metric == WALL:
            reason += "; a program that does not end needs a --metric that it prints while running"
        elif is_timeout:
            reason += f"; it had too few steady values of {self.objective.metric!r} by then: increase --timeout"
        return launch._replace(
            outcome=outcome,
            series=(*series_of(run.report), *self._announced(run).series),
            stderr_tail="" if outcome is Outcome.CUT else run.said,
            notes=(reason, *run.notes),
        )

    def _announced(self, run: EndedRun) -> LaunchAnnouncements:
        announced = read_announcements(run.observations.lines, run.observations.began)
        self.announcements = announced.announcements
        return announced

    def _served(
        self, launch: Launch, run: EndedRun, limit_s: float, until_s: float
    ) -> Launch | None:
        """The measurement of a launch that was stopped while running; None if it is not enough.

        Every instance must have enough steady values of the objective's metric while all were running.
        """
        window = Window(until_s=until_s)
        served = self.measured(launch, run._replace(said="", notes=()), window)
        name = self._metric_name(self.announcements)
        for total in run.report.metrics:
            if total.name == name:
                window = window_of(total).within(window)
        seen = [row for row in served.series if row.metric == name and window.of(row).values]
        if served.outcome is Outcome.NOT_FINITE:
            return served
        if (
            served.outcome is not Outcome.MEASURED
            or served.steadiness in (Steadiness.TOO_FEW, Steadiness.NOT_STEADY)
            or len({series.instance for series in seen}) < len(run.report.instances)
        ):
            return None
        limit = number(limit_s)
        note = f"it was still running after {limit} s: measured until then and stopped"
        return served._replace(notes=(note, *served.notes))

    def _metric_name(self, announcements: Sequence[Announcement]) -> str:
        """The name of the objective's metric in series."""
        objective = self.objective
        name = objective.metric if objective.metric == WALL else name_of(objective.metric)
        return announcements[0].metric if name == MARK and announcements else name

    def measured(self, launch: Launch, run: EndedRun, window: Window = ALWAYS) -> Launch:
        """The measurement of a launch that succeeded. `window`: when values count."""
        announced, report = self._announced(run), run.report
        series = (*series_of(report), *announced.series)
        summaries = summaries_of_run(report, announced, self.objective, window)
        name = self._metric_name(announced.announcements)
        launch = launch._replace(series=series, stderr_tail=run.said)
        lines = [
            f"{total.name}: {total.not_finite}" for total in report.metrics if total.not_finite
        ]
        lines += [announced.not_finite] if announced.not_finite else []
        if lines:
            return launch._replace(outcome=Outcome.NOT_FINITE, notes=(*lines[:1], *run.notes))
        notes, unseen = run.other_notes, describe_unseen(self.objective.metric, report)
        return self._concluded(launch, summaries, name, [*notes, *announced.notes], unseen)

    def _concluded(
        self,
        launch: Launch,
        summaries: Mapping[str, Summary],
        name: str,
        notes: Sequence[str],
        unseen: str,
    ) -> Launch:
        """The launch with its value.

        `name`: of the objective's metric. `unseen`: the note for a metric without a value.
        """
        try:
            launch, summaries = self._comparable(launch, summaries)
        except ObjectiveError as error:
            return launch._replace(outcome=Outcome.NO_METRIC, notes=(str(error), *notes))
        seen, unmet = check(self.objective.requirements, summaries, launch.secondary, self.printed)
        launch = launch._replace(requirements=seen, metrics=tuple(_others(summaries, name)))
        for other, summary in summaries.items():
            # A generator's table of percentiles may have no median.
            has_no_median = self.is_service and other == LATENCY != name
            if not summary.is_finite and not has_no_median:
                lines = (f"{other} is {number(summary.value)}", *notes)
                return launch._replace(outcome=Outcome.NOT_FINITE, notes=lines)
        notes = (*notes, *unmet)
        if name != WALL and name not in summaries:
            notes = (unseen, *dict.fromkeys(notes))
            return launch._replace(outcome=Outcome.NO_METRIC, notes=notes)
        value, steadiness, told = launch.secondary.wall_s, Steadiness.TOO_FEW, list[str]()
        if name != WALL:
            value, steadiness = summaries[name].value, summaries[name].steadiness
            told += summaries[name].notes
        told += notes
        for other, summary in summaries.items():
            if other != name:
                told += [f"{other}: {note}" for note in summary.notes]
        implied = (LATENCY,) if self.is_service else ()
        told += [
            f"{text}: it was not printed"
            for text in self.metrics
            if text != MARK and name_of(text) not in (*summaries, *implied)
        ]
        return launch._replace(
            outcome=Outcome.MEASURED,
            value=value,
            steadiness=steadiness,
            stderr_tail="",
            notes=tuple(dict.fromkeys(told)),
        )

    def _comparable(
        self, launch: Launch, summaries: Mapping[str, Summary]
    ) -> tuple[Launch, dict[str, Summary]]:
        """The launch and its summaries in the units of the study; see `comparable`.

        Raises `ObjectiveError` for a unit that cannot be compared.
        """
        converted, factors = dict(summaries), dict[str, float]()
        for name, summary in summaries.items():
            is_time = summary.kind is MetricKind.TIME
            unit = summary.unit if is_time else summary.printed_in
            first = self.printed.get(name)
            factors[name], unit = comparable(name, summary.kind, unit, first)
            converted[name] = summary.times(factors[name], unit if is_time else None)
            if unit_in(name) is None or not is_time:
                self.printed.setdefault(name, summary.printed_in)
            if summary.printed_in if not is_time else unit_in(name) is None:
                launch = launch._replace(units=(*launch.units, (name, summary.printed_in)))
        every_series = []
        for series in launch.series:
            factor = factors.get(series.metric, 1.0)
            values = tuple([value * factor for value in series.values])
            every_series.append(series._replace(values=values))
        return launch._replace(series=tuple(every_series)), converted

    def tried(self, load: Load, memory: MemoryWatch) -> tuple[bool, str]:
        """Whether a load is within the requirements that its generators can tell, and what was measured."""
        if load.problem:
            return False, load.problem
        unmeasured = Launch(BARE, "", Outcome.NOT_STARTED, None, 0.0)
        unreported = EndedRun(Report(0, "", 0.0, 0, (), (), ()), memory)
        launch = self.measured_load(unmeasured, load, unreported)
        if launch.value is None:
            return False, launch.notes[0]
        seen = dict(launch.requirements)
        requirements = self.objective.requirements
        bounds = [bound for bound in requirements if bound.quantity not in RESOURCES]
        values = [(bound, seen.get(bound.text)) for bound in bounds]
        shown = [f"{number(launch.value)} {self.objective.metric}"]
        for bound, value in values:
            told = "not printed" if value is None else describe_seen(bound, value)
            shown.append(f"{bound.quantity} {told}")
        return all(bound.holds(value) for bound, value in values), ", ".join(shown)

    def measured_load(self, launch: Launch, load: Load, run: EndedRun) -> Launch:
        """The measurement of a service by what its generators printed."""
        notes = run.other_notes
        if not load.service_ended:
            launch = launch._replace(exit_code=None)
        if load.problem:
            outcome, reason = load.outcome, load.problem
            run = run._replace(observations=LaunchObservations(), said=load.said)
            if load.service_ended and (ended := failure_of(run)):
                outcome, reason = ended[0], f"{reason}: {ended[1]}"
            return launch._replace(outcome=outcome, stderr_tail=load.said, notes=(reason, *notes))
        required = {requirement.quantity for requirement in self.objective.requirements}
        requests = load.requests
        shares = {} if requests is None else requests.shares
        if requests is not None and any(shares[name] for name in shares.keys() - required):
            hint = f"allow a share of them with --require '{ERRORS}<=1%' or '{REJECTED}<=1%'"
            return launch._replace(outcome=Outcome.CRASHED, notes=(f"{requests}; {hint}", *notes))
        if requests is None:
            notes.append(ERRORS_NOT_SEEN)
        summaries, name = summaries_of(load.outputs, self.metrics), name_of(self.objective.metric)
        summaries |= {word: summary_of_share(word, share) for word, share in shares.items()}
        if load.level is not None:
            word, level = load.level
            summaries[f"{LOAD} {word}"] = summary_of_share(f"{LOAD} {word}", level)
        series = [Series(0, n, (0.0,), (summary.value,)) for n, summary in summaries.items()]
        lines = [line.strip() for line in load.outputs[0].splitlines() if line.strip()]
        unseen = f"the generator printed no {self.objective.metric!r}; its last lines:"
        unseen = f"{unseen} {' | '.join(lines[-MAX_LINES_TOLD:]) or 'none'}"
        launch = launch._replace(series=tuple(series))
        return self._concluded(launch, summaries, name, notes, unseen)


def _others(summaries: Mapping[str, Summary], objective: str) -> Iterable[tuple[str, float]]:
    """The other metrics, and the mean, p90 and p99 of each time."""
    for name, summary in summaries.items():
        if name != objective:
            yield name, summary.value
        if summary.kind is MetricKind.TIME and summary.count > 1:
            spread = (("mean", summary.mean), ("p90", summary.p90), ("p99", summary.p99))
            yield from ((f"{name} {label}", value) for label, value in spread if value is not None)


def rate_in(output: str) -> str | None:
    """The last rate in a program's output, as --metric names it (``images/s``); None if there is none."""
    for line in reversed(output.splitlines()):
        for name in reversed(_RATES.findall(line)):
            if not _TRANSFERS.fullmatch(name) and parse_metric(name).read(line) is not None:
                return str(name)
    return None
