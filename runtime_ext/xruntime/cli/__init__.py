# SPDX-License-Identifier: Apache-2.0
"""``python -m xruntime``. One file a command; each is imported only when it is called."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from xlaunch.errors import UsageError, XLaunchError

COMMANDS = {
    "allocator": "xruntime.cli.allocator",
}
"""Commands by name, and the module whose function of that name runs them."""

PROGRAM = "python -m xruntime"


class Commands(click.Group):
    """The commands of `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=Commands,
    no_args_is_help=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.pass_context
def xruntime(context: click.Context) -> None:
    """Tell what this process, started as it was, has to work with."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code. A user's mistake is one line, never a traceback."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try once more at its end, complain, and exit with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _say(str(error))
        code = XLaunchError.exit_code
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code."""
    try:
        result = xruntime.main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        _say(f"{error.format_message().rstrip('.')}; '{PROGRAM} --help' lists what there is")
        return UsageError.exit_code
    except XLaunchError as error:
        _say(str(error))
        return error.exit_code
    except OSError as error:  # of this process itself: standard output on a full disk, as a rule
        _say(str(error))
        return XLaunchError.exit_code
    return result if isinstance(result, int) else 0


def _say(text: str) -> None:
    line = f"xruntime: error: {' '.join(text.split())}\n"
    with contextlib.suppress(OSError):  # nobody can be told
        sys.stderr.write(line.encode(errors="backslashreplace").decode())
        sys.stderr.flush()
