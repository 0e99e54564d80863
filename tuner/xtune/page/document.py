# SPDX-License-Identifier: Apache-2.0
"""The page in one file: style, sections, charts and plotly's script, and nothing from elsewhere.

A policy in its head (Content Security Policy level 3) lets the two scripts of the page run and no
other, and lets nothing be fetched: what a user's text might smuggle in would do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import import_module
from importlib.resources import files

from xlaunch.errors import UsageError
from xtune.evidence.importance import importance_of
from xtune.page.findings import Findings, contestants
from xtune.page.machine_sections import (
    machine_section,
    plan_section,
    space_section,
    versions_section,
)
from xtune.page.markup import Markup, element, join, script_json
from xtune.page.parts import Section
from xtune.page.search_sections import (
    configurations_section,
    failures_section,
    front_section,
    history_section,
    importance_section,
)
from xtune.page.verdict_sections import (
    HEADLINES,
    decision_section,
    distributions_section,
    header,
    verdict_section,
    warnings_section,
)


def plotly_script() -> str:
    """Plotly's script, as its package carries it. Raises `UsageError` without the package."""
    try:
        plotly = import_module("plotly.offline")  # without types, and not there for every checker
    except ImportError as error:
        raise UsageError(
            f"the charts of a page need plotly, which cannot be imported ({error}): "
            "pip install plotly"
        ) from None
    # A browser reads one kind of line end; and what ends a script element, should a version hold that.
    text = str(plotly.get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def sections_of(findings: Findings) -> tuple[Section, ...]:
    """All parts of the page, in order."""
    people = contestants(findings)
    found = importance_of(findings.launches, findings.space.parameters, findings.objective)
    second = findings.second
    return (
        verdict_section(findings),
        warnings_section(findings),
        decision_section(findings, people),
        distributions_section(findings, people),
        history_section(findings),
        configurations_section(findings, found),
        importance_section(findings, found),
        *([] if second is None else [front_section(findings, second)]),
        failures_section(findings),
        machine_section(findings),
        plan_section(findings),
        space_section(findings),
        versions_section(findings),
    )


def page(findings: Findings, plotly: str) -> str:
    """The whole file.

    plotly
        As `plotly_script` gives it.
    """
    sections = sections_of(findings)
    style = _own("page.css")
    script = _own("page.js")
    charts = [chart.to_plain() for section in sections for chart in section.charts]
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:;"
        f" script-src '{_digest(plotly)}' '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    title = f"{HEADLINES[findings.verdict.kind][1]} - {findings.study} - xtune"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    links = [element("a", section.title, href=f"#{section.name}") for section in sections]
    body = element(
        "body",
        header(findings),
        element("nav", join(*links), aria_label="Sections"),
        element("main", join(*map(_section, sections))),
        element("noscript", "The charts need JavaScript; the tables hold their numbers."),
        element("script", script_json(charts), type="application/json", id="charts"),
        element(
            "script", script_json(dict(findings.plain)), type="application/json", id="verdict-json"
        ),
        element("script", Markup(plotly)),
        element("script", Markup(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _section(section: Section) -> Markup:
    return element(
        "section",
        element("h2", section.title),
        element("p", section.lead, klass="lead") if section.lead else None,
        section.body,
        id=section.name,
    )


def _own(name: str) -> str:
    return files("xtune.page").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
