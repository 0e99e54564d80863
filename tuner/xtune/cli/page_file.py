# SPDX-License-Identifier: Apache-2.0
"""The file of `xtune report --html`."""

from __future__ import annotations

import os

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Machine
from xlaunch.whole_files import write_output
from xtune.cli import say
from xtune.cli.conclusion import Conclusion
from xtune.cli.preparation import Task
from xtune.cli.studies import StoredStudy
from xtune.page.document import render_page
from xtune.page.findings import Findings
from xtune.search.provenance import Made, made_with
from xtune.search.study import Subject
from xtune.space.parameters import BARE

SUFFIXES = (".html", ".htm")
MIB = 1 << 20


def check_page(path: str) -> None:
    """Raise `UsageError` unless a page can be written there and replaces no other kind of file."""
    what = f"--html {path!r}"
    if path == "-":
        raise UsageError(
            f"{what}: a page goes to a file, not to standard output; write --html report.html"
        )
    # Without FILE, the study's name is taken for it, and that often starts with a script's name.
    if not path.endswith(SUFFIXES):
        raise UsageError(f"{what}: the name of a page ends in .html; write --html report.html")
    directory = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(directory):
        raise UsageError(f"{what}: there is no directory {directory}; make it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"{what}: {directory} is not writable")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageError(f"{what} exists and is not a regular file; choose another name")


def write_page(
    path: str, plotly: str, conclusion: Conclusion, task: Task, stored: StoredStudy
) -> None:
    """Write the page in one step; on failure an existing file is left alone.

    Raises `UsageError` if it cannot be written.
    """
    ended = stored.study.notes.get("ended") or ""
    findings = findings_of(
        conclusion,
        task.subject,
        task.machine,
        ended=ended,
        directory=stored.directory,
        made=made_with(stored.study, conclusion.records),
    )
    text = render_page(findings, plotly)
    write_output(path, text, option="--html")
    say(f"page: {path} ({len(text.encode()) / MIB:.1f} MiB)")


def findings_of(
    conclusion: Conclusion,
    subject: Subject,
    machine: Machine,
    *,
    ended: str = "",
    directory: str = "",
    made: tuple[Made, ...] = (),
) -> Findings:
    """The page's data; `machine` is of the kind that the launches ran on."""
    preset = conclusion.preset
    return Findings(
        study=conclusion.study,
        subject=subject,
        verdict=conclusion.verdict,
        records=tuple([record for record in conclusion.records if record.launch is not None]),
        plain=conclusion.to_plain(),
        words=tuple(conclusion.lines()),
        machine=machine,
        resolver=conclusion.resolver,
        preset=None if preset is None else os.path.basename(preset),
        preset_text=_preset_text(conclusion),
        second=conclusion.second,
        ended=ended,
        directory=directory,
        made=made,
        advice=conclusion.advice,
        resume=conclusion.resume_command,
    )


def _preset_text(conclusion: Conclusion) -> str:
    """The winner's settings as a preset; empty if it would set nothing."""
    best = conclusion.verdict.best
    if best == BARE:
        return ""
    try:
        text = conclusion.resolver.preset(best, use=conclusion.preset or "best.toml")
    except UsageError:
        return ""  # a value that TOML cannot hold
    says_nothing = all(not line or line[0] == "#" for line in text.splitlines())
    return "" if says_nothing and conclusion.preset is None else text
