# SPDX-License-Identifier: Apache-2.0
"""The command line `xtune`. One file a command; each is imported only when it is called."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

import xlaunch.console
from xlaunch.console import flush_streams, prepare_streams, report_errors
from xlaunch.errors import UsageError
from xlaunch.options.commands import run_click

COMMANDS = {
    "export": "xtune.cli.export",
    "list": "xtune.cli.listing",
    "report": "xtune.cli.report",
    "resume": "xtune.cli.resume",
}
"""The module of each command; its function `command` runs it."""

RESERVED = frozenset(COMMANDS) | {"help", "version"}
"""Names that mean a program only after ``--`` or in a path."""

PACKAGES = ("numpy", "optuna", "scipy")
"""What searching needs; an extra, `tune`, so that the launcher installs without."""

HELP = frozenset(("-h", "--help", "--version"))

EXIT_INTERRUPTED = 130
"""Exit code of shells for a program that Ctrl-C ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code. A user's mistake is one line, never a traceback."""
    prepare_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    flush_streams()
    return code


def run(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code."""
    try:
        return report_errors(_dispatch, arguments, "xtune")
    except KeyboardInterrupt:
        say("interrupted; finished launches are kept, see xtune list")
        return EXIT_INTERRUPTED


def say(text: str) -> None:
    """Write one line to standard error."""
    xlaunch.console.say(text, "xtune")


def _dispatch(arguments: list[str]) -> int:
    word = arguments[0] if arguments else ""
    if not HELP.intersection(arguments) and word not in ("help", "version"):
        _require_packages()
    if word in COMMANDS:
        from importlib import import_module

        module = import_module(COMMANDS[word])
        return run_click(module.command, f"xtune {word}", arguments[1:], "xtune")
    if word in ("help", "version"):
        return _dispatch([f"--{word}"])
    from xtune.cli.tune import command

    return run_click(command, "xtune", arguments, "xtune")


def _require_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        names, are = " and ".join(missing), "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"xtune needs {names}, which {are} not installed: pip install {' '.join(missing)}"
        )
