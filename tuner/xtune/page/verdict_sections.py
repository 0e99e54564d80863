# SPDX-License-Identifier: Apache-2.0
"""The page's first half: the verdict, what to know before believing it, and how it was decided."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from xtune.evidence.ratios import RatioInterval
from xtune.evidence.verdicts import Kind, Standing
from xtune.page.cautions import warnings_of
from xtune.page.charts import pairs
from xtune.page.distribution_charts import distributions, samples
from xtune.page.findings import Contestant, Findings
from xtune.page.intervals import Axis, axis_for, axis_picture, interval_picture
from xtune.page.markup import Child, Markup, element, join
from xtune.page.parts import (
    Section,
    changed,
    chart_frame,
    code,
    data,
    facts,
    folded,
    paragraph,
    people_legend,
    table,
)
from xtune.page.quantities import (
    NOTHING,
    number,
    objective_quantity,
    percent,
    period,
    ratio,
    reach,
    size,
)
from xtune.screen.words import aim, counted, duration, launches, spans
from xtune.space.parameters import BARE

HEADLINES = {
    Kind.GAIN: ("\N{CHECK MARK}", "Gain"),
    Kind.NO_GAIN: ("=", "No gain: keep the default"),
    Kind.INCONCLUSIVE: ("?", "Inconclusive: nothing is shown yet"),
}


def header(findings: Findings) -> Markup:
    """What was searched, and when."""
    first = findings.launches[0].began_s
    last = max(launch.began_s + launch.secondary.wall_s for launch in findings.launches)
    command = findings.plain["baseline"]["command"]
    return element(
        "header",
        element("p", "xtune report", klass="eyebrow"),
        element("h1", findings.study),
        element("p", element("code", command), klass="program"),
        element(
            "p",
            f"Compared by {aim(findings.objective)}. {launches(len(findings.launches))},"
            f" {period(first, last)}.",
            klass="lead",
        ),
    )


def verdict_section(findings: Findings) -> Section:
    """What was found, how sure that is, and what to type."""
    verdict, plain = findings.verdict, findings.plain
    icon, headline = HEADLINES[verdict.kind]
    if verdict.gain is not None:
        assert verdict.interval is not None
        shown = ratio(verdict.gain, verdict.interval.low, verdict.interval.high)
        told: Child = join("Gain: ", data(plain["gain"], shown, "gain"))
        below = "as good as the bare command"
    else:
        told, below = headline, ""
    statement = element(
        "div",
        element("span", icon, klass=f"icon {verdict.kind.value}", aria_hidden="true"),
        element("div", element("p", told, klass="headline", id="headline"),
                element("p", below, klass="below") if below else None),
        klass="statement",
    )  # fmt: skip
    interval = verdict.interval
    body = join(
        statement,
        _hero_interval(findings, interval) if interval is not None else None,
        paragraph(_sentence(verdict.reason), klass="reason") if _tells_more(findings) else None,
        _key_figures(findings),
        _what_to_type(findings),
        folded("As told in the terminal", code("\n".join(findings.words))),
    )
    return Section("verdict", "Verdict", element("div", body, klass=f"hero {verdict.kind.value}"))


def _tells_more(findings: Findings) -> bool:
    """Whether the reason says what figure and interval do not."""
    verdict = findings.verdict
    return verdict.kind is not Kind.GAIN or ";" in verdict.reason


def _hero_interval(findings: Findings, interval: RatioInterval) -> Markup:
    rule = findings.final_plan.rule if findings.final_plan is not None else None
    least = 1.0 + (rule.min_effect if rule is not None else 0.0)
    confidence = percent(rule.confidence) if rule is not None else "95 %"
    axis = axis_for([interval.low, interval.high, interval.estimate, least])
    low, high = findings.plain["interval"]
    ends = interval.low, interval.high
    is_gain = findings.verdict.kind is Kind.GAIN
    told = join(
        "Between " if is_gain else "The best finalist: between ",
        data(low, ratio(interval.low, *ends), "low"),
        " and ",
        data(high, ratio(interval.high, *ends), "high"),
        f" with {confidence} confidence, from {counted(interval.pairs, 'pair')} of launches.",
        " Above 1 is better, whatever the goal.",
    )
    return element(
        "figure",
        interval_picture(
            axis,
            interval.estimate,
            interval.low,
            interval.high,
            strong=is_gain,
            least=least,
            tall=True,
        ),
        axis_picture(axis),
        element("figcaption", told),
        klass="hero-interval",
    )


def _key_figures(findings: Findings) -> Markup:
    quantity, plain = objective_quantity(findings.objective), findings.plain
    baseline = plain["baseline"]
    value = data(baseline["value"], quantity.of(baseline["value"]), "baseline-value")
    rows: list[tuple[str, Child]] = [(f"bare command, median of {baseline['launches']}", value)]
    if findings.shown != BARE:
        seen = findings.values(findings.shown)
        name = "winner" if findings.verdict.kind is Kind.GAIN else "best finalist"
        median = quantity.of(findings.median(findings.shown))
        rows.append((f"{name}, median of {len(seen)}", median))
    rows.append(("launches", data(plain["launches"], str(plain["launches"]), "launches")))
    spent_s = sum(launch.secondary.wall_s for launch in findings.launches)
    rows.append(("time of all launches", duration(spent_s)))
    return facts(rows, klass="figures")


def _what_to_type(findings: Findings) -> Markup:
    verdict = findings.verdict
    parts: list[Child] = [
        element("h3", "The command to use"),
        code(findings.plain["command"], "command"),
    ]
    if verdict.best != BARE:
        parts.append(paragraph("It sets ", changed(verdict.best, findings.space), "."))
    elif (
        verdict.leader is not None
        and verdict.interval is not None
        and verdict.interval.estimate > 1
    ):
        command = shlex.join(findings.resolver.command(verdict.leader))
        parts += [
            element("h3", "The most promising one, which is not proven"),
            code(command, "promising"),
        ]
    if verdict.more is not None:
        parts.append(
            paragraph(
                f"About {launches(verdict.more.launches)} more ({duration(verdict.more.seconds)}) in"
                " a final would settle it, four times in five; ",
                element("code", "xtune resume"),
                " goes on.",
            )
        )
    if findings.preset_text:
        where = (
            f"The preset {findings.preset}"
            if findings.preset
            else "The preset, to save as best.toml"
        )
        parts.append(folded(where, code(findings.preset_text, "preset"), opened=True))
    return element("div", join(*parts), klass="type")


def warnings_section(findings: Findings) -> Section:
    """What to know before believing it."""
    found = warnings_of(findings)
    if not found:
        body: Markup = paragraph(
            "Nothing: control launches of the bare command did not drift, search and final agree, and"
            " no launch stands out.",
            klass="calm",
        )
    else:
        items = [
            element(
                "li",
                element("b", one.about.capitalize()),
                " ",
                element("span", _sentence(one.text)),
            )
            for one in found
        ]
        body = element("ul", join(*items), klass="warnings")
    return Section("warnings", "Worth knowing", body)


def decision_section(findings: Findings, people: tuple[Contestant, ...]) -> Section:
    """Finalists, their ratios and corrected intervals."""
    standings = findings.verdict.standings
    if not standings:
        told = f"There was no paired final: {findings.verdict.reason}."
        return Section("decision", "How it was decided", paragraph(_sentence(told)))
    intervals = [row.interval for row in standings if row.interval is not None]
    axis = axis_for([end for one in intervals for end in (one.low, one.high, one.estimate)])
    names = {person.configuration: person.name for person in people}
    rows = [
        (
            element("b", names.get(row.contender.configuration, NOTHING)),
            changed(row.contender.configuration, findings.space),
            *_ratio_cells(row, axis, findings),
            f"{row.probability_best:.0%}",
            f"{row.chance:.2g}",
            size(row.contender.memory_bytes),
            _standing_word(findings, row),
        )
        for row in standings
    ]
    head = ("", "finalist", "ratio", "interval", axis_picture(axis), "pairs", "best", "chance",
            "memory", "")  # fmt: skip
    chart = pairs(findings, people)
    baseline_best = findings.verdict.baseline_probability_best
    body = join(
        paragraph(*_how(findings)),
        table(head, rows, numbers=(2, 5, 6, 7, 8), klass="finalists"),
        paragraph(
            "Ratio: times as good as the bare command. Best: the probability to be the best of all"
            f" (the bare command: {percent(baseline_best)}). Chance: how often noise alone would"
            " favour it as much, by the exact sign-flip test, one-sided and uncorrected. Memory: the"
            " median peak of a launch.",
            klass="note",
        ),
        element("h3", "Pairs, block by block") if chart is not None else None,
        people_legend(people, findings.space, with_bare=False) if chart is not None else None,
        chart_frame(chart) if chart is not None else None,
    )
    return Section("decision", "How it was decided", body, (chart,) if chart is not None else ())


def _how(findings: Findings) -> Iterator[Child]:
    plan = findings.final_plan
    assert plan is not None
    done = max(len(row.contender.log_ratios) for row in findings.verdict.standings)
    yield (
        f"{counted(len(plan.finalists), 'finalist')} and the bare command took turns in up to"
        f" {counted(len(plan.orders), 'block')}, each in an order drawn by lot; only these launches"
        f" count. "
    )
    yield (
        f"It was planned to look after block {spans(plan.looks)}; {min(done, len(plan.orders))}"
        " were begun. "
    )
    yield (
        f"The intervals are corrected for the number of finalists and looks: together they hold with"
        f" {percent(plan.rule.confidence)} confidence. A gain counts from"
        f" {percent(plan.rule.min_effect)} on."
    )
    if plan.attempt:
        yield (
            f" This was final {plan.attempt + 1} of this study, so it was allowed to err"
            f" {2**plan.attempt} times less often."
        )


def _ratio_cells(row: Standing, axis: Axis, findings: Findings) -> tuple[Child, ...]:
    interval = row.interval
    if interval is None:
        return NOTHING, NOTHING, None, "0"
    wins = row.contender.configuration == findings.verdict.best
    alone = 100.0 * (1.0 - 2.0 * interval.level)
    return (
        data(interval.estimate, ratio(interval.estimate, interval.low, interval.high)),
        element(
            "span",
            reach(interval.low, interval.high),
            title=f"alone of {alone:.3g} % confidence; {interval.method.value}",
        ),
        interval_picture(axis, interval.estimate, interval.low, interval.high, strong=wins),
        str(interval.pairs),
    )


def _standing_word(findings: Findings, row: Standing) -> str:
    contender = row.contender
    if contender.out:
        return f"out: {contender.out}"
    if contender.dropped:
        return f"dropped: {contender.dropped}"
    if findings.verdict.kind is Kind.GAIN and contender.configuration == findings.verdict.best:
        return "wins"
    if row.is_gain:
        return "a gain too"
    if row.keeps_more:
        return "keeps what the default breaks"
    return "no gain shown"


def distributions_section(findings: Findings, people: tuple[Contestant, ...]) -> Section:
    """What launches of the contestants came to, and their raw samples where there are many."""
    quantity = objective_quantity(findings.objective)
    overall, raw = distributions(findings, people), samples(findings, people)
    rows = []
    for person in people:
        seen = sorted(findings.values(person.configuration))
        if seen:
            rows.append(
                (
                    element("b", person.name),
                    str(len(seen)),
                    number(seen[0]),
                    quantity.of(findings.median(person.configuration)),
                    number(seen[-1]),
                )
            )
    who = "finalists" if findings.verdict.standings else "best of the search"
    body = join(
        people_legend(people, findings.space),
        chart_frame(overall),
        paragraph(
            f"A point is a launch of the bare command or of the {who}: filled in the final, hollow"
            " before it. Boxes hold the middle half.",
            klass="note",
        ),
        table(("", "launches", "least", "median", "most"), rows, numbers=(1, 2, 3, 4)),
        element("h3", "Raw samples of each launch") if raw is not None else None,
        chart_frame(raw) if raw is not None else None,
        paragraph(
            "Every value that a launch gave, warm-up included, as a box of its own: the number below"
            " is the launch's.",
            klass="note",
        )
        if raw is not None
        else None,
    )
    charts = (overall,) if raw is None else (overall, raw)
    return Section(
        "distributions",
        "Launch by launch",
        body,
        charts,
        lead=f"{quantity.axis}; {quantity.better}.",
    )


def _sentence(told: str) -> str:
    told = told[:1].upper() + told[1:]
    return told if told.endswith((".", "!", "?")) else f"{told}."
