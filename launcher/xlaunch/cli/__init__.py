# SPDX-License-Identifier: Apache-2.0
"""The command line. One file a command; each is imported only when it is called."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from xlaunch.errors import UsageError, XLaunchError

COMMANDS = {
    "env": "xlaunch.cli.env",
    "init": "xlaunch.cli.init",
    "libraries": "xlaunch.cli.libraries",
    "plan": "xlaunch.cli.plan",
    "topology": "xlaunch.cli.topology",
}
"""Commands by name, and the module whose function of that name runs them."""

RESERVED = frozenset(COMMANDS) | {
    "cache", "doctor", "explain", "help", "report", "run", "version",
}  # fmt: skip
"""Words that a program is reached by only behind ``--`` or by a path."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code. A user's mistake is one line, never a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C ends this process as it ends any other: a traceback would help nobody, and Python
        # can lose a KeyboardInterrupt on the way.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _prepare_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    _flush_streams()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code."""
    try:
        return _dispatch(list(arguments))
    except XLaunchError as error:
        say(f"error: {error}")
        return error.exit_code
    except OSError as error:  # of this process itself: standard output on a full disk, as a rule
        say(f"error: {error}")
        return XLaunchError.exit_code


def say(text: str) -> None:
    """Put one line of the launcher's own on standard error."""
    line = f"xlaunch: {' '.join(text.split())}\n"
    with contextlib.suppress(OSError):  # nobody can be told
        sys.stderr.write(line.encode(errors="backslashreplace").decode())
        sys.stderr.flush()


def _prepare_streams() -> None:
    """Put /dev/null where a standard stream is closed, or the next pipe opened would become one.

    What a stream's encoding lacks is written escaped: file names may hold anything.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number
    # Python has none where it found one closed.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush_streams() -> None:
    """Write what is left. What cannot be written was said to be so, and is dropped."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Python would try once more at its end, complain, and exit with a code of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(arguments: list[str]) -> int:
    word = arguments[0] if arguments else ""
    if word in COMMANDS:
        from importlib import import_module

        command = getattr(import_module(COMMANDS[word]), word)
        return _run_click(command, f"xlaunch {word}", arguments[1:])
    if word == "help":
        return _dispatch(["--help"])
    if word == "version":
        return _dispatch(["--version"])
    if word in RESERVED:
        raise UsageError(
            f"the command {word!r} is not in this version; to run a program of that name write "
            f"'xlaunch -- {word}' or a path"
        )
    from xlaunch.cli.launch import launch

    return _run_click(launch, "xlaunch", arguments)


def _run_click(command: object, name: str, arguments: list[str]) -> int:
    import click

    assert isinstance(command, click.Command)
    try:
        # The arguments are the context's object: click does not tell commands where `--` was.
        result = command.main(
            args=arguments, prog_name=name, standalone_mode=False, obj=tuple(arguments)
        )
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        say(f"error: {_explain(error)}; '{name} --help' lists the options")
        return UsageError.exit_code
    return result if isinstance(result, int) else 0


def _explain(error: object) -> str:
    import click

    if isinstance(error, click.NoSuchOption):
        # Opposites of flags (--no-verbose) are many, and near to every option that begins with n.
        meant_opposite = error.option_name.startswith("--no-")
        near = [it for it in error.possibilities or () if meant_opposite or it[:5] != "--no-"]
        hint = f"; did you mean {' or '.join(sorted(near))}?" if near else ""
        return f"there is no option {error.option_name}{hint}"
    assert isinstance(error, click.ClickException)
    return error.format_message().rstrip(".")
