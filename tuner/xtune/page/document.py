# SPDX-License-Identifier: Apache-2.0
"""The page as one file, with its style, data and scripts inside.

Its Content Security Policy (level 3) allows the page's two scripts by their hashes and no fetching,
so markup that got past the escaping could still do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import shlex
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from xlaunch import text
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
from xtune.launches.launch import Outcome
from xtune.page.cautions import warnings_of
from xtune.page.contestants import contestants, failures
from xtune.screen import quantities
from xtune.screen.conclusion import Conclusion
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
    text.number,
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
    script = str(plotly.get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def render_page(conclusion: Conclusion, plotly: str) -> str:
    """The whole file.

    plotly
        Plotly's script, from `require_libraries`.
    """
    from markupsafe import Markup

    from xtune.page.charts import MAX_CONFIGURATIONS, MAX_DIMENSIONS, charts_of

    def pieces(configuration: Configuration) -> list[str]:
        return settings_of(configuration, conclusion.space)

    environment = page_environment()
    people = contestants(conclusion)
    importance = importance_of(
        conclusion.launches, conclusion.space.parameters, conclusion.objective
    )
    charts = charts_of(conclusion, people, importance)
    script = _source(environment, "page.js")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:;"
        f" script-src '{_digest(plotly)}' '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    second = conclusion.second
    points = (
        front_of(conclusion.launches, conclusion.objective, second) if second is not None else ()
    )
    page = environment.get_template("page.html").render(
        BARE=BARE,
        MAX_CONFIGURATIONS=MAX_CONFIGURATIONS,
        MAX_DIMENSIONS=MAX_DIMENSIONS,
        WHERE=WHERE,
        ablations=conclusion.ablations,
        aim=aim(conclusion.objective),
        charts=charts,
        charts_json=[chart.to_plain() for chart in charts.values() if chart is not None],
        cpu_list=format_cpu_list,
        cut=sum(launch.outcome is Outcome.CUT for launch in conclusion.launches),
        drawing=str(draw_machine(conclusion.resolver.machine)),
        failures=failures(conclusion),
        conclusion=conclusion,
        front=[point for point in points if point.place is Place.FRONT],
        headline=HEADLINES[conclusion.verdict.kind],
        importance=importance,
        json_value=_json_value,
        names={one.configuration: one.name for one in people},
        numactl_line=numactl_line,
        other=None if second is None else quantities.quantity_of(second.metric, second.goal),
        people=people,
        period=_period(conclusion),
        plain=conclusion.to_plain(),
        preset=None if conclusion.preset is None else os.path.basename(conclusion.preset),
        pieces=pieces,
        placement=_placement(conclusion),
        plotly=Markup(plotly),  # noqa: S704
        points=points,
        policy=policy,
        promising=_promising(conclusion),
        quantity=quantities.objective_quantity(conclusion.objective),
        script=Markup(script),  # noqa: S704
        sentence=_sentence,
        standing_word=lambda row: _standing_word(conclusion, row),
        style=Markup(_source(environment, "page.css")),  # noqa: S704
        verdict=conclusion.verdict,
        versions=_versions(conclusion),
        warnings=warnings_of(conclusion),
        words="\n".join(conclusion.lines()),
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


def _period(conclusion: Conclusion) -> str:
    began_s = conclusion.launches[0].began_s
    ended_s = max(launch.began_s + launch.secondary.wall_s for launch in conclusion.launches)
    return quantities.period(began_s, ended_s)


def _promising(conclusion: Conclusion) -> str:
    """The command of a leader that is ahead of the bare command without proof; empty otherwise."""
    verdict = conclusion.verdict
    if verdict.best != BARE or verdict.leader is None or verdict.interval is None:
        return ""
    if verdict.interval.estimate <= 1.0:
        return ""
    return shlex.join(conclusion.resolver.command(verdict.leader))


def _standing_word(conclusion: Conclusion, row: Standing) -> str:
    contender, verdict = row.contender, conclusion.verdict
    if contender.out:
        return f"out: {contender.out}"
    if contender.dropped:
        return f"dropped: {contender.dropped}"
    if verdict.kind is Kind.GAIN and contender.configuration == verdict.best:
        return "wins"
    if row.is_gain:
        return "also a gain"
    return "keeps what the default breaks" if row.keeps_more else "no gain shown"


def _placement(conclusion: Conclusion) -> Placement | str:
    """How the winner runs, or the reason why it cannot."""
    shown, resolver = conclusion.shown, conclusion.resolver
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
        str(draw_machine(resolver.machine, plan)),
        render_plan(plan, resolver.machine, explain=True),
    )


def _versions(conclusion: Conclusion) -> dict[str, dict[str, str]]:
    """What the latest launches were made with, or what is installed now if that was not kept."""
    found: Installed = (
        conclusion.made[-1].provenance.installed
        if conclusion.made
        else installed(conclusion.resolver.request(BARE))
    )
    return {title: dict(found[group]) for group, title in GROUPS.items() if found.get(group)}
