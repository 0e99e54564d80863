# SPDX-License-Identifier: Apache-2.0
"""The command line. One module per command; each is imported only when it is called."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from xlaunch.console import flush_streams, prepare_streams, report_errors
from xlaunch.errors import UsageError


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code. A user's mistake is one line, never a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C ends this process as it ends any other: a traceback would help nobody, and Python
        # can lose a KeyboardInterrupt on the way.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    prepare_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    flush_streams()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code."""
    return report_errors(_dispatch, arguments)


def _dispatch(arguments: list[str]) -> int:
    word = arguments[0] if arguments else ""
    if word in ("version", "--version"):
        from xlaunch import __version__

        print(f"xlaunch {__version__}", flush=True)
        return 0
    from xlaunch.options.commands import run_click
    from xlaunch.options.definitions import COMMANDS, RESERVED

    if word in COMMANDS:
        from importlib import import_module

        module = import_module(f"xlaunch.cli.{word}")
        return run_click(module.command, f"xlaunch {word}", arguments[1:])
    if word == "help":
        return _dispatch(["--help"])
    if word in RESERVED:
        raise UsageError(
            f"the command {word!r} is not in this version; to run a program of that name write "
            f"'xlaunch -- {word}' or a path"
        )
    from xlaunch.cli.launch import command

    return run_click(command, "xlaunch", arguments)
