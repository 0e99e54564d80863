# SPDX-License-Identifier: Apache-2.0
"""The command line `xtune`. One file a command; each is imported only when it is called."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import xlaunch.console
from xlaunch.console import flush_streams, prepare_streams, report_errors
from xlaunch.errors import UsageError
from xlaunch.options.commands import run_click, run_launch, words_for_help

if TYPE_CHECKING:
    import click

COMMANDS = {
    "compare": "xtune.cli.compare",
    "completion": "xtune.cli.completion",
    "export": "xtune.cli.export",
    "list": "xtune.cli.listing",
    "report": "xtune.cli.report",
    "resume": "xtune.cli.resume",
}
"""The module of each command; its function `command` runs it."""

COMPLETE = "_XTUNE_COMPLETE"
"""The variable by which a shell asks what may follow; see `xlaunch.options.completion`."""

RESERVED = frozenset(COMMANDS) | {"help", "version"}
"""Names that mean a program only after ``--`` or in a path."""

PACKAGES = ("numpy", "optuna", "scipy")
"""The packages that a search needs. They are in the extra `tune`; the launcher does without."""

HELP = frozenset(("-h", "--help", "--version"))

EXIT_INTERRUPTED = 130
"""Exit code of shells for a program that Ctrl-C ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; a user's mistake is one line."""
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
    if COMPLETE in os.environ:
        from xlaunch.options.completion import complete

        return complete("xtune", os.environ[COMPLETE], COMMANDS, _command)
    if word == "help":
        return _dispatch(words_for_help(arguments[1:], COMMANDS, "xtune"))
    if word == "version":
        return _dispatch(["--version"])
    if not HELP.intersection(arguments) and word != "completion":
        _require_packages()
    if word in COMMANDS:
        return run_click(_command(word), f"xtune {word}", arguments[1:], "xtune")
    return run_launch(_command(""), arguments, COMMANDS, "xtune")


def _command(word: str) -> click.Command:
    """The command with that name; for any other word, the command that searches."""
    command: click.Command = import_module(COMMANDS.get(word, "xtune.cli.tune")).command
    return command


def _require_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        names, are = " and ".join(missing), "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"xtune needs {names}, which {are} not installed: pip install {' '.join(missing)}"
        )
