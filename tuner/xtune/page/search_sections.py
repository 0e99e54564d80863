# SPDX-License-Identifier: Apache-2.0
"""The page's second half: every launch, every configuration, what mattered, what failed."""

from __future__ import annotations

from xtune.evidence.fronts import SecondGoal, front_of
from xtune.evidence.importance import Importance, ValueEffect
from xtune.evidence.pareto import Estimate, Place
from xtune.measurement.launches import Launch, Outcome
from xtune.page.charts import front, history, importance
from xtune.page.findings import Failure, Findings, failures
from xtune.page.intervals import Axis, axis_for, axis_picture, interval_picture
from xtune.page.markup import Child, Markup, element, join
from xtune.page.parallel import MOST_AXES, parallel_lines
from xtune.page.parts import (
    Section,
    changed,
    chart_frame,
    code,
    folded,
    legend,
    marks_legend,
    paragraph,
    table,
)
from xtune.page.quantities import (
    NOTHING,
    Quantity,
    number,
    objective_quantity,
    percent,
    quantity_of,
    ratio,
    reach,
    size,
)
from xtune.screen.words import counted, duration, launches, spans
from xtune.search.ablation import Ablation
from xtune.space.parameters import BARE

MOST_EFFECTS = 40
"""Rows of the table of values' effects."""

MOST_FRONT = 40


def history_section(findings: Findings) -> Section:
    """Every launch in order."""
    quantity = objective_quantity(findings.objective)
    chart, marks = history(findings)
    entries = [
        *marks_legend(marks),
        ("line", "@best", "best launch so far"),
        ("dots", "@bare", "the bare command, joined"),
    ]
    rows = [
        _row(findings, number_, record.step.stage.value, record.launch)
        for number_, record in enumerate(findings.records, start=1)
        if record.launch is not None
    ]
    head = ("launch", "stage", "configuration", quantity.axis, "time", "memory", "how it ended")
    everything = table(head, rows, numbers=(0, 3, 4, 5), klass="launches")
    body = join(
        legend(entries),
        chart_frame(chart),
        folded(f"All {launches(len(rows))} as a table", everything, is_long=True),
    )
    lead = f"Every launch in the order of the search; {quantity.axis}, {quantity.better}."
    return Section("history", "History", body, (chart,), lead=lead)


def _row(findings: Findings, place: int, stage: str, launch: Launch) -> tuple[Child, ...]:
    ended = launch.outcome.value
    if launch.outcome is Outcome.MEASURED and not findings.objective.is_feasible(launch):
        ended = "breaks what is required"
    value = NOTHING if launch.value is None else number(launch.value)
    return (
        str(place),
        stage,
        changed(launch.configuration, findings.space),
        element("data", value, value="null" if launch.value is None else repr(launch.value)),
        duration(launch.secondary.wall_s),
        size(launch.secondary.peak_rss_bytes),
        ended,
    )


def configurations_section(findings: Findings, found: Importance) -> Section:
    """Parallel coordinates."""
    lines = parallel_lines(findings, [row.name for row in found.settings])
    title = "Configurations"
    if lines is None:
        told = "Fewer than two configurations have a value: there is nothing to compare."
        return Section("configurations", title, paragraph(told))
    axes = ""
    if lines.varied > len(lines.axes):
        axes = f" The {MOST_AXES} settings that mattered most of {lines.varied} that varied."
    shown = (
        f"{lines.seen}" if lines.shown == lines.seen else f"The best {lines.shown} of {lines.seen}"
    )
    what = "the winner" if findings.verdict.best != BARE else "the best finalist"
    entries: list[tuple[str, str, Child]] = [
        ("line", "@band1", "the best fifth"),
        ("line", "@band3", "the middle"),
        ("line", "@band5", "the last fifth"),
    ]
    if findings.shown != BARE:
        entries.insert(0, ("diamond", "@one", what))
    body = join(
        legend(entries),
        chart_frame(lines.chart),
        paragraph(
            f"{shown} of {counted(findings.space.size, 'configuration')} were launched with a value."
            f" On the right is the median of each, the better ones above.{axes} An asterisk marks"
            " what xlaunch does of itself, or a parameter's first value.",
            klass="note",
        ),
    )
    lead = "Each line is a configuration, from setting to setting to what it came to."
    return Section("configurations", title, body, (lines.chart,), lead=lead)


def importance_section(findings: Findings, found: Importance) -> Section:
    """Which settings mattered, with uncertainty."""
    title = "What mattered"
    chart = importance(found)
    if chart is None:
        told = f"Nothing can be said of single settings: {found.note or 'none varied enough'}."
        body = join(paragraph(told), _ablations(findings), _medians(findings))
        return Section("importance", title, body)
    effects = [(row, effect) for row in found.settings for effect in row.effects]
    shown = effects[:MOST_EFFECTS]
    axis = axis_for([end for _, one in shown for end in (one.low, one.high, one.ratio)])
    rows = [
        (
            element("code", row.name),
            element("code", str(effect.value)),
            *_interval_cells(axis, effect, sure=row.matters),
            str(effect.configurations),
        )
        for row, effect in shown
    ]
    matters = [row.name for row in found.settings if row.matters]
    told = f"Surely: {', '.join(matters)}." if matters else "None by itself, as far as can be told."
    left_out = _ablations(findings)
    if left_out is not None:
        told += " What the winner owes to each of its changes is below."
    hidden = len(effects) - len(shown)
    body = join(
        paragraph(told),
        legend(
            [
                ("square", "@one", "surely matters, corrected for how many were looked at"),
                ("square", "@faint", "may be chance"),
            ]
        ),
        chart_frame(chart),
        left_out,
        element("h3", "What each value did"),
        table(
            ("setting", "value", "ratio", "interval", axis_picture(axis), "configurations"),
            rows,
            numbers=(2, 5),
            klass="effects",
        ),
        paragraph(
            (f"{hidden} more values are not shown. " if hidden else "")
            + "Ratio: to the setting's default, all else being equal; intervals of 95 %, each by"
            f" itself. From {launches(found.launches)} of"
            f" {counted(found.configurations, 'configuration')} by an additive model, which"
            f" explains {percent(found.explained)} of the differences; what settings only do"
            " together is not in it.",
            klass="note",
        ),
    )
    lead = "How much of the differences each setting accounts for, with its 95 % interval."
    return Section("importance", title, body, (chart,), lead=lead)


def _ablations(findings: Findings) -> Markup | None:
    """The winner without one of its changes."""
    found = findings.ablations
    if not found:
        return None
    axis = axis_for([end for one in found for end in (one.low, one.high, one.ratio)])
    rows = [
        (
            element("code", one.name),
            element("code", f"{one.default} instead of {one.value}"),
            *_interval_cells(axis, one, sure=True),
            str(one.launches),
        )
        for one in found
    ]
    return join(
        element("h3", "The winner without one of its changes"),
        table(
            ("setting", "with", "ratio", "interval", axis_picture(axis), "launches"),
            rows,
            numbers=(2, 5),
            klass="effects",
        ),
        paragraph(
            "Ratio: to the winner itself, so below 1 where the change helps; intervals of 95 %, all of"
            " them together.",
            klass="note",
        ),
    )


def _interval_cells(
    axis: Axis, one: ValueEffect | Ablation, *, sure: bool
) -> tuple[Child, Child, Child]:
    """A ratio, its interval, and both drawn: strongly where it is `sure` and leaves out 1."""
    strong = sure and not one.low <= 1.0 <= one.high
    return (
        ratio(one.ratio, one.low, one.high),
        reach(one.low, one.high),
        interval_picture(axis, one.ratio, one.low, one.high, strong=strong),
    )


def _medians(findings: Findings) -> Markup | None:
    """Of a small space what each configuration came to."""
    quantity = objective_quantity(findings.objective)
    seen = dict.fromkeys(launch.configuration for launch in findings.launches)
    rows = [
        (
            changed(configuration, findings.space),
            str(len(values)),
            quantity.of(findings.median(configuration)),
        )
        for configuration in list(seen)[:MOST_EFFECTS]
        if (values := findings.values(configuration))
    ]
    return table(("configuration", "launches", "median"), rows, numbers=(1, 2)) if rows else None


def front_section(findings: Findings, second: SecondGoal) -> Section:
    """What nothing else beats in both goals."""
    first = objective_quantity(findings.objective)
    other = quantity_of(second.metric, second.goal)
    title = f"Two goals: {first.name} and {other.name}"
    points = front_of(findings.launches, findings.objective, second)
    if not points:
        return Section("front", title, paragraph("Too few launches have both values."))
    best = [point for point in points if point.place is Place.FRONT]
    chart = front(findings, points, other)

    def cells(quantity: Quantity, one: Estimate) -> tuple[Child, Child]:
        ends = f"{number(one.low)} to {number(one.high)}"
        return quantity.of(one.value), element("span", ends, klass="nowrap")

    rows = [
        (
            changed(one.configuration, findings.space),
            *cells(first, one.first),
            *cells(other, one.other),
        )
        for one in best[:MOST_FRONT]
    ]
    more = len(best) - len(rows)
    body = join(
        legend(
            [
                ("diamond", "@one", "on the front: nothing beats it in both"),
                ("circle", "@faint", "behind by the values, not surely"),
                ("circle-open", "@muted", "surely behind"),
            ]
        ),
        chart_frame(chart),
        table(
            ("configuration", first.name, "interval", other.name, "interval"), rows, numbers=(1, 3)
        ),
        paragraph(
            (f"{more} more are on the front. " if more else "")
            + "The search followed the first goal; this is of what it happened to launch. Intervals of"
            " 95 %, by the noise of all that was launched more than once.",
            klass="note",
        ),
    )
    lead = f"{len(best)} of {counted(len(points), 'configuration')} are worth choosing from."
    return Section("front", title, body, (chart,), lead=lead)


def failures_section(findings: Findings) -> Section:
    """What failed, with the end of its standard error."""
    found = failures(findings)
    cut = sum(launch.outcome is Outcome.CUT for launch in findings.launches)
    also = ""
    if cut:
        also = f" {launches(cut)} ended early, since they could not win any more: no failures."
    if not found:
        return Section("failures", "Failures", paragraph(f"No launch failed.{also}", klass="calm"))
    count = sum(len(one.numbers) for one in found)
    body = join(
        paragraph(
            f"{launches(count)} of {len(findings.launches)} failed, and can win nothing.{also}"
        ),
        *[_failure(findings, one, opened=len(found) <= 3) for one in found],
    )
    return Section("failures", "Failures", body)


def _failure(findings: Findings, one: Failure, *, opened: bool) -> Markup:
    count = f", {len(one.numbers)} times" if len(one.numbers) > 1 else ""
    several = len(one.configurations) > 1
    exited = "" if one.exit_code is None else f", exit code {one.exit_code}"
    numbers = "launch " if len(one.numbers) == 1 else "launches "
    head = join(
        element("span", "\N{MULTIPLICATION X}", klass="cross", aria_hidden="true"),
        element("b", f"{one.outcome.value}{count}"),
        f"{exited} ({numbers}{spans(one.numbers)}) ",
        f"with {len(one.configurations)} configurations"
        if several
        else changed(one.configurations[0], findings.space),
    )
    said = one.stderr_tail.strip("\n")
    listed = [element("li", changed(each, findings.space)) for each in one.configurations]
    return folded(
        head,
        element("ul", join(*listed), klass="listed") if several else None,
        *[paragraph(note) for note in one.notes],
        paragraph("The end of its standard error:", klass="note") if said else None,
        code(said, copied=False) if said else paragraph("It left nothing on standard error."),
        opened=opened,
    )
