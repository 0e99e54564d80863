# SPDX-License-Identifier: Apache-2.0
"""The file of `xtune report --html`."""

from __future__ import annotations

import os

from xlaunch.errors import UsageError
from xlaunch.files import write_output
from xtune.cli import say
from xtune.cli.studies import StoredStudy
from xtune.show.page import render_page
from xtune.show.results import Result

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


def write_page(path: str, plotly: str, result: Result, stored: StoredStudy) -> None:
    """Write the page in one step; on failure an existing file is left alone.

    Raises `UsageError` if it cannot be written.
    """
    text = render_page(result._replace(directory=stored.directory), plotly)
    write_output(path, text, option="--html")
    say(f"page: {path} ({len(text.encode()) / MIB:.1f} MiB)")
