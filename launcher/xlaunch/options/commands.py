# SPDX-License-Identifier: Apache-2.0
"""Options and commands as click has them: the options of a launch, and how a command is run."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from xlaunch.console import say
from xlaunch.errors import ProgramNotFoundError, UsageError
from xlaunch.options.definitions import (
    BY_KEY,
    FLAG,
    IPEXRUNS_WORDS,
    OPTIONS,
    Option,
    OptionGroup,
    OptionKind,
)
from xlaunch.options.precedence import (
    COMMAND_LINE,
    Layer,
    ResolvedOptions,
    file_layers,
    resolve,
    variables_layer,
)
from xlaunch.text import check_passable

Command = Callable[..., Any]

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # not subscriptable before click 8.4

CONTEXT = {
    "allow_interspersed_args": False,
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
"""What follows the program's name is the program's, byte for byte."""


class OptionType(ParamType):
    """A value of an `OptionKind`."""

    def __init__(self, kind: OptionKind) -> None:
        self.kind = kind
        self.name = kind.metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The values as they are typed; click would show them in capitals."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.kind.parse(value)
        except UsageError as error:
            return self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The words that the value may be, or files or directories."""
        from click.shell_completion import CompletionItem

        words = [word for word in self.kind.words if word.startswith(incomplete.lower())]
        if words or "FILE" in self.name or "DIR" in self.name:
            kind = "dir" if self.name == "DIR" else "file"
            return [CompletionItem(word) for word in words] or [_complete_files(incomplete, kind)]
        return []


def _complete_files(incomplete: str, kind: str = "file") -> CompletionItem:
    """Has the shell complete names of files, or with ``"dir"`` of directories."""
    from click.shell_completion import CompletionItem

    return CompletionItem(incomplete, type=kind)


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups, then other commands if there are any."""

    modules: Mapping[str, str] = {}
    """The module of each other command, whose `command` it is."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each other command."""
        others = {
            name: import_module(module).command for name, module in sorted(self.modules.items())
        }
        if others:
            rows = [
                (f"{ctx.command_path} {name}", command.get_short_help_str(limit=100))
                for name, command in others.items()
            ]
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete options; after the program's name, files: what follows it is the program's."""
        if ctx.params.get("program"):
            return [_complete_files(incomplete)]
        return super().shell_complete(ctx, incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group, then one for the options that are in none."""
        sections: dict[str, list[tuple[str, str]]] = {group.value: [] for group in OptionGroup}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                option = BY_KEY.get(parameter.name or "")
                title = "Other" if option is None else option.group.value
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records, col_max=34)


class CommandGroup(click.Group):
    """A group of commands whose error for an unknown command lists the known ones."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with. Raises `UsageError`."""
        if args[0] not in self.commands:
            raise _no_command(args[0], self.commands, ctx.command_path)
        return super().resolve_command(ctx, args)


class LaunchCommand(GroupedCommand):
    """A command with the options of a launch, which also accepts those of other launchers."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse `args`; those of ipexrun and run_cpu are translated, and a note shows the command."""
        typed = tuple(args)
        if not IPEXRUNS_WORDS.isdisjoint(args):
            from xlaunch.options.migration import without_ipexruns_words

            typed = without_ipexruns_words(args)
        if typed == tuple(args):
            try:
                return super().parse_args(ctx, args)
            except click.NoSuchOption as error:
                from xlaunch.options.migration import is_old

                if not is_old(error.option_name):
                    raise
        from xlaunch.options.migration import in_todays_words

        arguments, notes = in_todays_words(typed, ctx.command_path)
        ctx.obj = arguments
        program = super().parse_args(ctx, list(arguments))
        if not ctx.params.get("quiet"):
            for note in notes:
                say(f"note: {note}")
        return program


def click_options(
    options: Collection[Option], hidden: Collection[str] = ()
) -> list[Callable[[Command], Command]]:
    """Options of the table as click has them; their values are None unless they are typed.

    `hidden`: names of those that help does not show.
    """
    decorators: list[Callable[[Command], Command]] = []
    types = {kind: OptionType(kind) for kind in {option.kind for option in options}}
    for option in options:
        flag = option.kind is FLAG
        long = f"--{option.name}/--no-{option.name}" if option.opposite else f"--{option.name}"
        decorators.append(
            click.option(
                *([option.short] if option.short else []),
                long,
                is_flag=flag,
                type=None if flag else types[option.kind],
                multiple=option.multiple,
                default=None,
                help=option.help,
                hidden=option.name in hidden,
            )
        )
    return decorators


def with_options(*groups: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Give a command the options of `groups`, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return decorate


def with_program(command: Command, *, required: bool = True) -> Command:
    """Give a command the program's words: all that follows the options."""
    metavar = "[--] PROGRAM [ARGS...]" if required else "[[--] PROGRAM [ARGS...]]"
    return click.argument(
        "program",
        nargs=-1,
        type=click.UNPROCESSED,
        metavar=metavar,
        shell_complete=lambda _context, _parameter, incomplete: [_complete_files(incomplete)],
    )(command)


def launch_command(
    *,
    program_required: bool,
    without: Collection[str] = (),
    hidden: Collection[str] = (),
    own: Sequence[Callable[[Command], Command]] = (),
) -> Callable[[Callable[[ResolvedOptions], int | None]], LaunchCommand]:
    """Turn a function that takes `ResolvedOptions` into a command with the options of a launch.

    `without`: names of options that the command has not. `hidden`: of those that it takes and does
    not show: they change nothing, and are on command lines of `xlaunch` that become its own. `own`:
    options that are its alone; their values are among the resolved ones.
    """
    options = click_options([row for row in OPTIONS if row.name not in without], hidden)

    def decorate(run: Callable[[ResolvedOptions], int | None]) -> LaunchCommand:
        def callback(**typed: Any) -> int | None:
            resolved = resolved_options(typed)
            path = resolved.values.get("save_preset")
            if path is not None:
                from xlaunch.options.presets import save_preset

                save_preset(path, resolved.values)
                if not resolved.values.get("quiet"):
                    say(f"{path}: saved, for xlaunch --preset {path}")
            try:
                return run(resolved)
            except UsageError as error:
                raise UsageError(f"{error}{resolved.set_elsewhere()}") from None

        callback.__doc__ = run.__doc__
        command = with_program(with_options(own, options)(callback), required=program_required)
        return click.command(cls=LaunchCommand, context_settings=CONTEXT)(command)

    return decorate


def resolved_options(typed: dict[str, Any]) -> ResolvedOptions:
    """Merge what was typed, as click gives it, with variables and files, and print the notes."""
    typed_values = {key: value for key, value in typed.items() if value not in (None, ())}
    # A caller within Python may give what no command line holds. The program is looked for first.
    for key, value in typed_values.items():
        if key != "program":
            check_passable(value)
    variables = variables_layer(os.environ, typed_values)
    early = {**variables.values, **typed_values}
    notes: list[str] = []
    isolated = early.get("isolated", False)
    layers = file_layers(
        early.get("preset"), isolated=isolated, environment=os.environ, notes=notes
    )
    resolved = resolve([Layer(COMMAND_LINE, typed_values), variables, *layers])
    resolved = resolved._replace(notes=(*notes, *resolved.notes))
    if not resolved.values.get("quiet"):
        for note in resolved.notes:
            say(f"note: {note}")
    return resolved


def say_chosen(resolved: ResolvedOptions) -> None:
    """Before a launch, note which code a project's file or a preset chooses; of ranks the first says it."""
    chosen = resolved.note_of_files()
    if chosen is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        say(f"note: {chosen}")


def words_for_help(words: Sequence[str], commands: Collection[str], program: str) -> list[str]:
    """The command line that prints what ``help WORDS`` asks for. Raises `UsageError`."""
    if words[:1] in (["-h"], ["--help"]):
        words = []
    if words and words[0] not in commands:
        raise _no_command(words[0], commands, program)
    return [*words, "--help"]


def _no_command(word: str, commands: Collection[str], program: str) -> UsageError:
    """The error for a word that is not one of the commands."""
    from xlaunch.options.suggestions import command_hint

    hint = (
        command_hint(word, commands, program) or f"; the commands are {', '.join(sorted(commands))}"
    )
    return UsageError(f"there is no command {word!r}{hint}")


def run_launch(
    command: object, arguments: list[str], commands: Collection[str], program: str = "xlaunch"
) -> int:
    """Run the command that starts programs. An absent program may be a misspelt command."""
    try:
        return run_click(command, program, arguments, program)
    except ProgramNotFoundError as error:
        from xlaunch.options.suggestions import command_hint

        near = command_hint(arguments[0], commands, program)
        raise ProgramNotFoundError(f"{error}{near}") from None


def run_click(command: object, name: str, arguments: list[str], program: str = "xlaunch") -> int:
    """Run a click command of `program`, typed as `name`; return its exit code."""
    assert isinstance(command, click.Command)
    if all(parameter.name != "program" for parameter in command.params):
        check_passable(tuple(arguments))  # see `resolved_options`
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
        from xlaunch.options.suggestions import option_hint

        context = getattr(error, "ctx", None)
        where = name if context is None else context.command_path
        hint = option_hint(error, arguments) or f"; '{where} --help' lists the options"
        problem = error.format_message().rstrip(".")
        if isinstance(error, click.NoSuchOption):
            problem = f"there is no option {error.option_name}"
        say(f"error: {problem}{hint}", program)
        return UsageError.exit_code
    return result if isinstance(result, int) else 0
