# SPDX-License-Identifier: Apache-2.0
"""Completion of command lines in bash, zsh and fish, by click's scripts."""

from __future__ import annotations

import glob
from collections.abc import Callable, Collection

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from xlaunch.errors import UsageError
from xlaunch.options.commands import CONTEXT

SHELLS = ("bash", "zsh", "fish")


def completion_command(program: str) -> click.Command:
    @click.command(context_settings=CONTEXT)
    @click.argument("shell", type=click.Choice(SHELLS), metavar="|".join(SHELLS))
    def command(shell: str) -> None:
        click.echo(_of_shell(shell, program).source())

    command.help = f"""Print a script for completion in bash, zsh or fish.

    It completes commands, options and their values:

    \b
    bash: eval "$({program} completion bash)"   in ~/.bashrc
    zsh:  eval "$({program} completion zsh)"    in ~/.zshrc
    fish: {program} completion fish > ~/.config/fish/completions/{program}.fish
    """
    return command


def complete(
    program: str,
    instruction: str,
    commands: Collection[str],
    command_of: Callable[[str], click.Command],
) -> int:
    """Print what may follow the words that a shell's script passes on; return the exit code.

    `instruction`: what the script asks for, such as ``bash_complete``. `command_of`: returns the
    command of a name, and for any other word the command that takes a program.
    """
    shell, _, request = instruction.partition("_")
    if request != "complete":
        raise UsageError(f"{instruction!r} is not bash_complete, zsh_complete or fish_complete")
    words, incomplete = _of_shell(shell, program).get_completion_args()
    items = [] if words else _beginning((*commands, "help"), incomplete)
    if incomplete and items:  # where no command matches, the program's command completes files
        items += map(CompletionItem, sorted(glob.glob(f"{glob.escape(incomplete)}*")))
    if words[:1] == ["help"]:
        words = words[1:]
        items = [] if words else _beginning(commands, incomplete)
    word = words[0] if words else ""
    completion = _of_shell(shell, program, command_of(word))
    items = items or completion.get_completions(words[word in commands :], incomplete)
    click.echo("\n".join([completion.format_completion(item) for item in items]))
    return 0


def _beginning(words: Collection[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in sorted(words) if word.startswith(incomplete)]


def _of_shell(shell: str, program: str, command: click.Command | None = None) -> ShellComplete:
    completion = get_completion_class(shell)
    if completion is None:
        raise UsageError(
            f"there is no completion for {shell!r}; the shells are {', '.join(SHELLS)}"
        )
    variable = f"_{program.upper()}_COMPLETE"
    return completion(command or click.Command(program), {}, program, variable)
