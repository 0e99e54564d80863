# SPDX-License-Identifier: Apache-2.0
"""The command line. One module per command; each is imported only when it is called."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from xlaunch.errors import UsageError, XLaunchError

if TYPE_CHECKING:
    import click

COMMANDS = frozenset(("cache", "doctor", "env", "libraries", "plan", "ps", "topology"))
"""Each is the object `command` in the module of the same name."""

RESERVED = COMMANDS | {"explain", "help", "report", "run", "version"}
"""A program with one of these names needs ``--`` before it, or a path."""


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


MIN_LIKENESS = 0.75
"""Options that are less like a misspelt one are not offered for it."""


def report_errors(
    dispatch: Callable[[list[str]], int], arguments: Sequence[str], program: str = "xlaunch"
) -> int:
    """The exit code of `dispatch`; an error is printed as one line."""
    try:
        return dispatch(list(arguments))
    except XLaunchError as error:
        say(f"error: {error}", program)
        return error.exit_code
    except OSError as error:  # usually standard output on a full disk
        if error.errno == errno.ENOENT and error.filename is None and _is_nowhere():
            say("error: the working directory has been removed; change to another one", program)
            return UsageError.exit_code
        say(f"error: {error}", program)
        return XLaunchError.exit_code


def _is_nowhere() -> bool:
    """Whether the working directory has been removed."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def say(text: str, program: str = "xlaunch") -> None:
    """Print one line of the program's own to standard error."""
    line = f"{program}: {' '.join(text.split())}\n"
    with contextlib.suppress(OSError):  # standard error is closed or full
        sys.stderr.write(line.encode(errors="backslashreplace").decode())
        sys.stderr.flush()


def prepare_streams() -> None:
    """Open /dev/null for each closed standard stream, whose number the next pipe would get.

    Characters that a stream's encoding lacks are escaped: file names may hold anything.
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


def flush_streams() -> None:
    """Flush the standard streams. What cannot be written is dropped: the error was reported."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # At exit Python would try again, print a complaint, and change the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(arguments: list[str]) -> int:
    word = arguments[0] if arguments else ""
    if word in COMMANDS:
        from importlib import import_module

        module = import_module(f"xlaunch.cli.{word}")
        return run_click(module.command, f"xlaunch {word}", arguments[1:])
    if word == "help":
        return _dispatch(["--help"])
    if word in ("version", "--version"):
        from xlaunch import __version__

        print(f"xlaunch {__version__}", flush=True)
        return 0
    if word in RESERVED:
        raise UsageError(
            f"the command {word!r} is not in this version; to run a program of that name write "
            f"'xlaunch -- {word}' or a path"
        )
    from xlaunch.cli.launch import command

    return run_click(command, "xlaunch", arguments)


def run_click(command: object, name: str, arguments: list[str], program: str = "xlaunch") -> int:
    """Run a click command of `program`; its exit code. `name`: what the user types for it."""
    import click

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
        context = getattr(error, "ctx", None)
        where = name if context is None else context.command_path
        say(f"error: {_explain(error)}; '{where} --help' lists the options", program)
        return UsageError.exit_code
    return result if isinstance(result, int) else 0


def _explain(error: click.ClickException) -> str:
    """What is wrong with a command line, without a full stop."""
    import click

    if not isinstance(error, click.NoSuchOption):
        return error.format_message().rstrip(".")
    near = _meant(error)
    hint = f"; did you mean {near}?" if near else ""
    return f"there is no option {error.option_name}{hint}"


def _meant(error: click.NoSuchOption) -> str:
    """Options of the command that an unknown one may mean, by meaning or else by spelling."""
    from difflib import SequenceMatcher

    from xlaunch.cli.migration import SYNONYMS

    offered = (
        set() if error.ctx is None else {it for p in error.ctx.command.params for it in p.opts}
    )
    word = error.option_name.lstrip("-").replace("_", "-")
    for option, names in SYNONYMS.items():
        if word in names and option.split()[0] in offered:
            return option
    # --no-smt and the like are near to every option that begins with n.
    opposite = error.option_name.startswith("--no-")
    near = [
        it
        for it in error.possibilities or ()
        if (opposite or not it.startswith("--no-"))
        and SequenceMatcher(None, error.option_name, it).ratio() >= MIN_LIKENESS
    ]
    return " or ".join(sorted(near))
