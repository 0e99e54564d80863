# SPDX-License-Identifier: Apache-2.0
"""The command line. One module per command; each is imported only when it is called."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from xlaunch.console import flush_streams, prepare_streams, report_errors
from xlaunch.errors import UsageError

if TYPE_CHECKING:
    import click

FIRST_STEPS = """\
xlaunch runs a program pinned to cores and NUMA nodes:

  xlaunch train.py                           one process on all cores
  xlaunch --instances 4 --ncores 4 infer.py  four, each on cores of its own
  xlaunch --optimize auto infer.py           with a faster form of its models
  xlaunch plan --instances 4                 what would run where; runs nothing
  xlaunch topology                           this machine
  xlaunch doctor                             what slows programs down here
  xlaunch --help                             all options and commands
"""
"""What `xlaunch` alone prints."""

COMPLETE = "_XLAUNCH_COMPLETE"
"""The variable by which a shell asks what may follow; see `xlaunch.options.completion`."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code. A user's mistake is one line, never a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C ends this process as it ends any other: a traceback would help nobody, and Python
        # can lose a KeyboardInterrupt on the way.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The objects that imports make stay: searching them for garbage again and again only delays the start.
    gc.set_threshold(100_000)
    prepare_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    flush_streams()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return its exit code."""
    return report_errors(_dispatch, arguments)


def _dispatch(arguments: list[str]) -> int:
    word = arguments[0] if arguments else ""
    if word in ("version", "--version"):
        from xlaunch import __version__

        print(f"xlaunch {__version__}", flush=True)
        return 0
    from xlaunch.options.commands import run_click, run_launch, words_for_help
    from xlaunch.options.definitions import COMMANDS, RESERVED

    if COMPLETE in os.environ:
        from xlaunch.options.completion import complete

        return complete("xlaunch", os.environ[COMPLETE], COMMANDS, _command)
    if not arguments:
        sys.stderr.write(FIRST_STEPS)
        return UsageError.exit_code
    if word in COMMANDS:
        return run_click(_command(word), f"xlaunch {word}", arguments[1:])
    if word == "help":
        return _dispatch(words_for_help(arguments[1:], COMMANDS, "xlaunch"))
    if word in RESERVED:
        from xlaunch.options.suggestions import command_hint

        hint = command_hint(word, COMMANDS, "xlaunch")
        raise UsageError(
            f"there is no command {word!r}{hint}; for a program of that name: xlaunch -- {word}"
        )
    return run_launch(_command(""), arguments, COMMANDS)


def _command(word: str) -> click.Command:
    """The command of that name, or the one that launches programs."""
    from importlib import import_module

    from xlaunch.options.definitions import COMMANDS

    module = import_module(f"xlaunch.cli.{word if word in COMMANDS else 'launch'}")
    command: click.Command = module.command
    return command
