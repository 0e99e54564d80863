# SPDX-License-Identifier: Apache-2.0
"""The command line `xtune`. One file a command; each is imported only when it is called."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from xlaunch.errors import UsageError, XLaunchError

COMMANDS = {
    "export": "xtune.cli.export",
    "list": "xtune.cli.listing",
    "report": "xtune.cli.report",
    "resume": "xtune.cli.resume",
}
"""The module of each command; its function `command` runs it."""

RESERVED = frozenset(COMMANDS) | {"help", "version"}
"""Names that mean a program only after ``--`` or in a path."""

EXIT_INTERRUPTED = 130
"""Exit code of shells for a program that Ctrl-C ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code. A user's mistake is one line, never a traceback."""
    _prepare_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    _flush_streams()
    return code


def run(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code."""
    try:
        return _dispatch(list(arguments))
    except XLaunchError as error:
        say(f"error: {error}")
        return error.exit_code
    except OSError as error:  # usually standard output on a full disk
        say(f"error: {error}")
        return XLaunchError.exit_code
    except KeyboardInterrupt:
        say("interrupted; finished launches are kept, see xtune list")
        return EXIT_INTERRUPTED


def say(text: str) -> None:
    """Write one line to standard error."""
    line = f"xtune: {' '.join(text.split())}\n"
    with contextlib.suppress(OSError):  # standard error is closed or full
        sys.stderr.write(line.encode(errors="backslashreplace").decode())
        sys.stderr.flush()


def _prepare_streams() -> None:
    """Escape what the encoding of a stream lacks: arguments may hold any bytes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush_streams() -> None:
    """Flush, and drop what cannot be written: that was reported before."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Otherwise Python tries again at exit, complains, and changes the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(arguments: list[str]) -> int:
    word = arguments[0] if arguments else ""
    if word in COMMANDS:
        from importlib import import_module

        return _run_click(import_module(COMMANDS[word]).command, f"xtune {word}", arguments[1:])
    if word in ("help", "version"):
        return _dispatch([f"--{word}"])
    from xtune.cli.tune import command

    return _run_click(command, "xtune", arguments)


def _run_click(command: object, name: str, arguments: list[str]) -> int:
    import click

    from xlaunch.cli import explain_error

    assert isinstance(command, click.Command)
    try:
        # The arguments are passed as the context's object: click does not keep `--`.
        result = command.main(
            args=arguments, prog_name=name, standalone_mode=False, obj=tuple(arguments)
        )
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        say(f"error: {explain_error(error)}; '{name} --help' lists the options")
        return UsageError.exit_code
    return result if isinstance(result, int) else 0
