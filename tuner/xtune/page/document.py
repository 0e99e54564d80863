# SPDX-License-Identifier: Apache-2.0
"""The page as one file, with its style, data and scripts inside.

Its Content Security Policy (level 3) allows the page's two scripts by their hashes and no fetching,
so markup that got past the escaping could still do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from xlaunch import wording
from xlaunch.cli.machine_drawing import draw_machine
from xlaunch.environment.variables import Setting
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.planning.plans import Plan
from xlaunch.planning.rendering import numactl_line, render_plan
from xtune.evidence.fronts import front_of
from xtune.evidence.importance import importance_of
from xtune.evidence.pareto import Place
from xtune.evidence.verdicts import Kind, Standing
from xtune.measurement.launches import Outcome
from xtune.page.cautions import warnings_of
from xtune.page.findings import Findings, contestants, failures
from xtune.screen import quantities
from xtune.screen.words import aim, settings_of
from xtune.space.installed import PROGRAM, SYSTEM, TUNER, Installed, installed
from xtune.space.parameters import BARE, Configuration, Where

if TYPE_CHECKING:
    from jinja2 import Environment

HEADLINES = {
    Kind.GAIN: "Gain",
    Kind.NO_GAIN: "No gain: keep the default",
    Kind.INCONCLUSIVE: "Inconclusive: nothing is shown yet",
}

WHERE = {
    Where.OPTION: "option of xlaunch",
    Where.VARIABLE: "environment variable",
    Where.PROGRAM: "parameter of the program",
}

GROUPS = {TUNER: "Tuner", PROGRAM: "Program", SYSTEM: "System"}

FILTERS = (
    quantities.counted,
    quantities.duration,
    quantities.launches,
    wording.number,
    quantities.percent,
    quantities.size,
    quantities.spans,
)


class Placement(NamedTuple):
    """How the winner is started, and where it runs."""

    plan: Plan
    settings: Sequence[Setting]
    """Of the first instance; those of the others differ in index, CPUs and file names."""
    drawing: str
    words: str


def require_libraries() -> str:
    """Plotly's script. Raises `UsageError` if plotly or Jinja2 cannot be imported."""
    try:
        import_module("jinja2")
        plotly = import_module("plotly.offline")  # has no types
    except ImportError as error:
        raise UsageError(
            f"the page needs plotly and Jinja2 ({error}): pip install plotly Jinja2"
        ) from None
    # A hash is of the text as the browser reads it, with one kind of line end.
    text = str(plotly.get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def render_page(findings: Findings, plotly: str) -> str:
    """The whole file.

    plotly
        Plotly's script, from `require_libraries`.
    """
    from markupsafe import Markup

    from xtune.page.charts import MAX_CONFIGURATIONS, MAX_DIMENSIONS, charts_of

    def pieces(configuration: Configuration) -> list[str]:
        return settings_of(configuration, findings.space)

    environment = page_environment()
    people = contestants(findings)
    importance = importance_of(findings.launches, findings.space.parameters, findings.objective)
    charts = charts_of(findings, people, importance)
    script = _source(environment, "page.js")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:;"
        f" script-src '{_digest(plotly)}' '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    second = findings.second
    points = front_of(findings.launches, findings.objective, second) if second is not None else ()
    page = environment.get_template("page.html").render(
        BARE=BARE,
        MAX_CONFIGURATIONS=MAX_CONFIGURATIONS,
        MAX_DIMENSIONS=MAX_DIMENSIONS,
        WHERE=WHERE,
        ablations=findings.ablations,
        aim=aim(findings.objective),
        charts=charts,
        charts_json=[chart.to_plain() for chart in charts.values() if chart is not None],
        cpu_list=format_cpu_list,
        cut=sum(launch.outcome is Outcome.CUT for launch in findings.launches),
        drawing=str(draw_machine(findings.machine)),
        failures=failures(findings),
        findings=findings,
        front=[point for point in points if point.place is Place.FRONT],
        headline=HEADLINES[findings.verdict.kind],
        importance=importance,
        json_value=_json_value,
        names={one.configuration: one.name for one in people},
        numactl_line=numactl_line,
        other=None if second is None else quantities.quantity_of(second.metric, second.goal),
        people=people,
        period=_period(findings),
        pieces=pieces,
        placement=_placement(findings),
        plotly=Markup(plotly),  # noqa: S704
        points=points,
        policy=policy,
        promising=_promising(findings),
        quantity=quantities.objective_quantity(findings.objective),
        script=Markup(script),  # noqa: S704
        sentence=_sentence,
        standing_word=lambda row: _standing_word(findings, row),
        style=Markup(_source(environment, "page.css")),  # noqa: S704
        verdict=findings.verdict,
        versions=_versions(findings),
        warnings=warnings_of(findings),
    )
    return f"{page.strip()}\n"


def page_environment() -> Environment:
    """Jinja's environment: it escapes all values, and shows control characters as escapes."""
    import jinja2
    from markupsafe import Markup

    from xtune.page.figures import printable

    def finalize(value: Any) -> Any:
        is_plain = isinstance(value, str) and not isinstance(value, Markup)
        return printable(value) if is_plain else value

    environment = jinja2.Environment(
        autoescape=True,
        finalize=finalize,
        loader=jinja2.PackageLoader("xtune.page"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {one.__name__: one for one in FILTERS}
    return environment


def _source(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _json_value(value: float | None) -> str:
    """A value as JSON, for programs that read the page; infinity has none."""
    return "null" if value is None or not math.isfinite(value) else repr(value)


def _sentence(line: str) -> str:
    line = line[:1].upper() + line[1:]
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _period(findings: Findings) -> str:
    began_s = findings.launches[0].began_s
    ended_s = max(launch.began_s + launch.secondary.wall_s for launch in findings.launches)
    return quantities.period(began_s, ended_s)


def _promising(findings: Findings) -> str:
    """The command of a leader that is ahead of the bare command without proof; empty otherwise."""
    verdict = findings.verdict
    if verdict.best != BARE or verdict.leader is None or verdict.interval is None:
        return ""
    if verdict.interval.estimate <= 1.0:
        return ""
    return shlex.join(findings.resolver.command(verdict.leader))


def _standing_word(findings: Findings, row: Standing) -> str:
    contender, verdict = row.contender, findings.verdict
    if contender.out:
        return f"out: {contender.out}"
    if contender.dropped:
        return f"dropped: {contender.dropped}"
    if verdict.kind is Kind.GAIN and contender.configuration == verdict.best:
        return "wins"
    if row.is_gain:
        return "also a gain"
    return "keeps what the default breaks" if row.keeps_more else "no gain shown"


def _placement(findings: Findings) -> Placement | str:
    """How the winner runs, or the reason why it cannot."""
    shown, resolver, machine = findings.shown, findings.resolver, findings.machine
    if shown == BARE:
        return (
            "The bare command runs without xlaunch: on any CPU that it may use, with the environment"
            " that it inherits."
        )
    try:
        plan = resolver.resolve(shown).plan
        settings = resolver.environment(shown).settings
    except XLaunchError as error:
        return f"It cannot run on this machine in its present state: {error}"
    return Placement(
        plan,
        settings[0],
        str(draw_machine(machine, plan)),
        render_plan(plan, machine, explain=True),
    )


def _versions(findings: Findings) -> dict[str, dict[str, str]]:
    """What the latest launches were made with, or what is installed now if that was not kept."""
    found: Installed = (
        findings.made[-1].provenance.installed
        if findings.made
        else installed(findings.resolver.request(BARE))
    )
    return {title: dict(found[group]) for group, title in GROUPS.items() if found.get(group)}
