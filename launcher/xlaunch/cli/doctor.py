# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor`: is this machine ready, is this script right, does the device really work?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from xlaunch.errors import UsageError


class DoctorCommand(click.Command):
    """Reports a missing `--` when an option of the program was read as one of this command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words."""
        typed = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if "--device" not in typed or "--" in typed:
                raise
            raise UsageError(
                f"there is no option {error.option_name}; put -- before the program and its "
                "arguments: xlaunch doctor --device -- PROGRAM ARGS"
            ) from None


@click.command(
    cls=DoctorCommand,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Machine: show what is in order, too.")
@click.option("--sysroot", metavar="DIR|FILE", help="Machine: check a captured tree of another.")
@click.option(
    "--import",
    "imports",
    metavar="MODULE",
    multiple=True,
    help="Machine: also import MODULE, in a child, to find second OpenMP runtimes; repeatable.",
)
@click.option("--python", metavar="FILE", help="Machine: the interpreter that is checked.")
@click.option("--hints", is_flag=True, help="Scripts: also advise on performance.")
@click.option("--select", metavar="CODES", help="Scripts: only these rules, e.g. XL001,XL03.")
@click.option(
    "--ignore",
    metavar="NAMES",
    help="Scripts: not these rules. Machine: not these checks, e.g. swap,load.",
)
@click.option(
    "--output-format",
    metavar="text|json|github",
    help="Scripts: lines for people, one JSON document, or annotations of GitHub Actions.",
)
@click.option(
    "--rule", metavar="CODE", help="Explain a rule, with a failing and a passing example."
)
@click.option("--device", is_flag=True, help="Run PROGRAM and say which devices worked.")
@click.option(
    "--compare",
    metavar="DEVICES",
    help="With --device: run PROGRAM once on each, e.g. cpu,cuda, and compare throughput.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[FILE_OR_DIRECTORY]...")
def command(
    *,
    as_json: bool,
    rule: str | None,
    device: bool,
    compare: str | None,
    words: tuple[str, ...],
    **options: Any,
) -> int:
    """Check this machine, scripts, or a program's devices.

    Nothing is changed.

    \b
    xlaunch doctor                        the machine, libraries and GPUs
    xlaunch doctor train.py src/          the source of scripts; runs nothing
    xlaunch doctor --device -- train.py   run a program: where did it work?

    The exit code is 1 if something serious was found, and the program's own with --device.
    """
    ignore = {"ignore": options.pop("ignore")}
    of_scripts = {name: options.pop(name) for name in ("hints", "select", "output_format")}
    if rule is not None:
        _refuse("--rule explains a rule", {**options, **of_scripts, **ignore, "a file": words})
        from xlaunch.cli.doctor_script import explain_rule

        return explain_rule(rule)
    if device or compare is not None:
        _refuse("--device runs a program", {**options, **of_scripts, **ignore})
        from xlaunch.cli.doctor_device import watch_program

        return watch_program(words, compared=compare, as_json=as_json)
    if words:
        _refuse("files are checked by their source", options)
        from xlaunch.cli.doctor_script import check_scripts

        of_scripts["output_format"] = of_scripts["output_format"] or ("json" if as_json else "text")
        return check_scripts(words, **of_scripts, **ignore)
    _refuse("without files the machine is checked", of_scripts)
    from xlaunch.cli.doctor_machine import check_machine

    return check_machine(as_json=as_json, **options, **ignore)


_SPELT = {
    "imports": "--import",
    "verbose": "-v",
    "output_format": "--output-format",
    "a file": "a file",
}


def _refuse(what: str, options: Mapping[str, object]) -> None:
    """Raise `UsageError` if an option was given that is for another kind of check."""
    given = [_SPELT.get(name, f"--{name}") for name, value in options.items() if value]
    if given:
        raise UsageError(f"{what}; {given[0]} does not go with that")
