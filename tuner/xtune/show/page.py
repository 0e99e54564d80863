# SPDX-License-Identifier: Apache-2.0
"""The result of a search as one HTML file without scripts, with its style inside.

Its Content Security Policy (level 3) allows no script and no fetching, so markup that got past the
escaping could still do nothing.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from importlib import import_module
from typing import TYPE_CHECKING, Any

from xlaunch.errors import UsageError, XLaunchError
from xlaunch.files import OutputKind, check_output
from xlaunch.planning.drawing import draw_machine
from xlaunch.planning.rendering import numactl_line, render_plan
from xlaunch.text import format_cpu_list, number
from xtune.evidence.verdicts import FinalistResults, VerdictKind
from xtune.launches.launch import Outcome
from xtune.show import charts, words
from xtune.show.result_text import advice, describe_interval, result_lines, resume_command
from xtune.show.results import HEADLINES, SearchResult, finite
from xtune.show.warnings import warnings_of
from xtune.show.words import settings_of
from xtune.space.identities import PROGRAM, SYSTEM, TUNER, installed
from xtune.space.parameters import BARE, Target

if TYPE_CHECKING:
    from jinja2 import Environment

WHERE = {
    Target.OPTION: "option of xlaunch",
    Target.VARIABLE: "environment variable",
    Target.PROGRAM: "parameter of the program",
}

GROUPS = {TUNER: "Tuner", PROGRAM: "Program", SYSTEM: "System"}

FILTERS = {
    "at": lambda value, scale: scale.at(value),
    "number": number,
    **{
        name: getattr(words, name)
        for name in ("counted", "duration", "launches", "percent", "size", "spans")
    },
}


def require_libraries() -> None:
    """Raise `UsageError` if Jinja2 cannot be imported."""
    try:
        import_module("jinja2")
    except ImportError as error:
        raise UsageError(f"the page needs Jinja2 ({error}): pip install Jinja2") from None


SUFFIXES = (".html", ".htm")

PAGE = OutputKind(
    "a page that xtune wrote", lambda head: b'<meta name="generator" content="xtune">' in head
)


def check_page(path: str, *, force: bool = False) -> None:
    """Raise `UsageError` unless a page can be written there and replaces no file but a page of xtune's.

    `force`: or any other file.
    """
    option = f"--html {path!r}"
    if path == "-":
        raise UsageError(
            f"{option}: a page goes to a file, not to standard output; write --html report.html"
        )
    # Without FILE, the study's name is taken for it, and that often starts with a script's name.
    if not path.endswith(SUFFIXES):
        raise UsageError(f"{option}: the name of a page ends in .html; write --html report.html")
    directory = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(directory):
        raise UsageError(f"{option}: the directory {directory} does not exist; create it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"{option}: {directory} is not writable")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageError(f"{option} exists and is not a regular file; choose another name")
    check_output(path, PAGE, option="--html", force=force)


def render_page(result: SearchResult) -> str:
    """The whole file."""
    headline, best = HEADLINES[result.verdict.kind], result.unproven_best
    is_promising = best is not None and best.is_promising and best.value is None
    template = page_environment().get_template("page.html")
    page = template.render(
        BARE=BARE,
        WHERE=WHERE,
        advice=advice(result),
        charts=charts,
        cpu_list=format_cpu_list,
        cut=sum(launch.outcome is Outcome.CUT for launch in result.launches),
        drawing=str(draw_machine(result.resolver.machine)),
        effect="difference" if result.objective.step else "ratio",
        headline=headline[0].upper() + headline[1:],
        interval_of=lambda interval: describe_interval(interval, "\N{MULTIPLICATION SIGN}"),
        json_value=lambda value: "null" if finite(value) is None else repr(value),
        numactl_line=numactl_line,
        period=words.period(
            result.launches[0].began_s,
            max(launch.began_s + launch.secondary.wall_s for launch in result.launches),
        ),
        pieces=lambda configuration: settings_of(configuration, result.space),
        placement=_placement(result),
        plain=result.to_plain(),
        preset=None if result.preset is None else os.path.basename(result.preset),
        promising=shlex.join(result.resolver.command(result.shown)) if is_promising else "",
        differences=words.describe_differences(result.objective),
        result=result,
        resume_command=resume_command(result),
        sentence=_sentence,
        finalist_word=lambda row: _finalist_word(result, row),
        text="\n".join(result_lines(result)),
        times=_times,
        verdict=result.verdict,
        versions=_versions(result),
        warnings=warnings_of(result),
        words=words,
    )
    return f"{page.strip()}\n"


def page_environment() -> Environment:
    """Jinja's environment: it escapes all values, and shows control characters as escapes."""
    import jinja2
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        is_plain = isinstance(value, str) and not isinstance(value, Markup)
        return charts.printable(value) if is_plain else value

    environment = jinja2.Environment(
        autoescape=True,
        finalize=finalize,
        loader=jinja2.PackageLoader("xtune.show"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= FILTERS
    return environment


def _sentence(line: str) -> str:
    line = line[:1].upper() + line[1:]
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _times(step: float, *effects: float) -> list[str]:
    sign = "" if step else "\N{MULTIPLICATION SIGN}"
    return [f"{text}{sign}" for text in words.effects(step, *effects)]


def _finalist_word(result: SearchResult, row: FinalistResults) -> str:
    verdict = result.verdict
    if row.out:
        return f"out: {row.out}"
    if row.dropped:
        return f"dropped: {row.dropped}"
    if verdict.kind is VerdictKind.GAIN and row.configuration == verdict.best:
        return "wins"
    if row.is_gain:
        return "also a gain"
    return "meets what the bare command breaks" if row.keeps_more else "no gain shown"


def _placement(result: SearchResult) -> dict[str, Any] | str:
    """How the winner is started and where it runs, or the reason why it cannot."""
    shown, resolver = result.shown, result.resolver
    if shown == BARE:
        return (
            "The bare command runs without xlaunch: on any CPU that it may use, with the environment"
            " that it inherits."
        )
    try:
        plan = resolver.resolve(shown).plan
        # Those of other instances differ in index, CPUs and file names.
        environment = resolver.environment(shown).settings[0]
    except XLaunchError as error:
        return f"It cannot run on this machine in its present state: {error}"
    return {
        "plan": plan,
        "environment": environment,
        "drawing": str(draw_machine(resolver.machine, plan)),
        "words": render_plan(plan, resolver.machine, explain=True),
    }


def _versions(result: SearchResult) -> dict[str, dict[str, str]]:
    """The versions of the latest launches, or those installed now if they were not recorded."""
    versions, program = result.records[-1].made.installed, None
    if not versions:
        with contextlib.suppress(XLaunchError):
            program = result.resolver.program
        versions = installed(program)
    return {title: dict(versions[group]) for group, title in GROUPS.items() if versions.get(group)}
