# SPDX-License-Identifier: Apache-2.0
"""The files that results are written to: the page of `xtune report --html`, and presets."""

from __future__ import annotations

import os

from xlaunch.errors import UsageError
from xlaunch.files import OutputKind, check_output, write_output
from xtune.cli import say
from xtune.cli.studies import StoredStudy
from xtune.show.page import render_page
from xtune.show.results import SearchResult
from xtune.space.parameters import BARE

SUFFIXES = (".html", ".htm")
KIB = 1 << 10


PAGE = OutputKind(
    "a page that xtune wrote", lambda head: b'<meta name="generator" content="xtune">' in head
)


def check_page(path: str, *, force: bool = False) -> None:
    """Raise `UsageError` unless a page can be written there and replaces no file but a page of xtune's.

    `force`: or any other file.
    """
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
        raise UsageError(f"{what}: the directory {directory} does not exist; create it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"{what}: {directory} is not writable")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageError(f"{what} exists and is not a regular file; choose another name")
    check_output(path, PAGE, option="--html", force=force)


def write_page(
    path: str, result: SearchResult, stored: StoredStudy, *, force: bool = False
) -> None:
    """Write the page in one step; on failure an existing file is left alone.

    Raises `UsageError` if it cannot be written.
    """
    text = render_page(result._replace(directory=stored.directory))
    write_output(path, text, option="--html", kind=PAGE, force=force)
    say(f"page: {path} ({len(text.encode()) / KIB:.0f} KiB)")


def preset_path(path: str | None, *, force: bool) -> str | None:
    """The absolute path of --save-preset. Raises `UsageError` unless a preset can be written there."""
    from xlaunch.options.presets import check_preset_path

    if path is None:
        return None
    check_preset_path(path, force=force)
    return os.path.abspath(path)


FREE_NAMES = ("best.toml", *(f"best-{number}.toml" for number in range(2, 1000)))


def write_best(
    result: SearchResult, wanted: str | None, *, force: bool = False
) -> tuple[str | None, str]:
    """Write the winner's preset; return its path, or None and the reason.

    wanted
        The user's file; None: the first free of best.toml, best-2.toml, ..., unless the preset
        would set nothing.
    force
        The user's file may be another than an earlier preset, but none that the program uses.

    Raises `UsageError` if the user's file cannot be written.
    """
    from xlaunch.options.presets import write_preset

    best = result.verdict.best
    if best == BARE:
        return None, "" if wanted is None else f"{wanted} is not written: the bare command is kept"
    path = wanted or next(name for name in FREE_NAMES if not os.path.lexists(name))
    text = result.resolver.preset(best, use=path)
    if wanted is None and not any(line and line[0] != "#" for line in text.splitlines()):
        return None, ""  # only arguments of the program change
    try:
        write_preset(path, text, force=force, program=result.resolver.program.argv)
    except UsageError as error:
        if wanted is not None:
            raise
        return None, f"no preset is written: {error}"
    return path, ""
