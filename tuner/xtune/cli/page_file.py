# SPDX-License-Identifier: Apache-2.0
"""The page of a study as a file: whether it can be written, and writing it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Machine
from xtune.cli import say
from xtune.cli.conclusion import Conclusion
from xtune.cli.kept import Kept
from xtune.cli.preparation import Task
from xtune.search.provenance import Made, made_with
from xtune.search.study import Subject
from xtune.space.parameters import BARE

if TYPE_CHECKING:
    from xtune.page.findings import Findings

SUFFIXES = (".html", ".htm")
MIB = 1 << 20


def check_page(path: str) -> None:
    """Raise `UsageError` unless a page can be written there, and would replace nothing else."""
    what = f"--html {path!r}"
    if path == "-":
        raise UsageError(
            f"{what}: a page goes to a file, not to standard output; name one, as report.html"
        )
    # A forgotten FILE makes the study's name one, and that is often the name of a script.
    if not path.endswith(SUFFIXES):
        raise UsageError(f"{what}: the name of a page ends in .html; write --html report.html")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"{what}: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{what}: {folder} is no folder that can be written")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageError(f"{what} is there and is not a regular file; choose another name")


def load_plotly() -> str:
    """What draws a page's charts. Raises `UsageError` where it is not installed."""
    from xtune.page.document import plotly_script

    return plotly_script()


def write_page(path: str, plotly: str, conclusion: Conclusion, task: Task, kept: Kept) -> None:
    """Write the page; a file that is there is replaced in one step, or stays as it was.

    Raises `UsageError` where it cannot be written.
    """
    from xlaunch.whole_files import write_output
    from xtune.page.document import page

    ended = kept.study.notes.get("ended") or ""
    findings = findings_of(
        conclusion,
        task.subject,
        task.machine,
        ended=ended,
        folder=kept.folder,
        made=made_with(kept.study, conclusion.records),
    )
    text = page(findings, plotly)
    write_output(path, text, option="--html")
    say(f"page: {path} ({len(text.encode()) / MIB:.1f} MiB)")


def findings_of(
    conclusion: Conclusion,
    subject: Subject,
    machine: Machine,
    *,
    ended: str = "",
    folder: str = "",
    made: tuple[Made, ...] = (),
) -> Findings:
    """What a page tells of a conclusion; its launches were made on `machine`, or one of its kind."""
    from xtune.page.findings import Findings

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
        folder=folder,
        made=made,
    )


def _preset_text(conclusion: Conclusion) -> str:
    """The settings of what won as a preset; empty where there is nothing to set."""
    best = conclusion.verdict.best
    if best == BARE:
        return ""
    try:
        text = conclusion.resolver.preset(best, use=conclusion.preset or "best.toml")
    except UsageError:
        return ""  # a value that TOML cannot hold
    says_nothing = all(not line or line[0] == "#" for line in text.splitlines())
    return "" if says_nothing and conclusion.preset is None else text
