# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor`: is this machine ready, is this script right, does the device really work?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from xlaunch.errors import UsageError
from xlaunch.text import counted, did_you_mean

if TYPE_CHECKING:
    from xlaunch.doctor.lint.running import LintResult
    from xlaunch.doctor.lint.source import ScriptFinding

SCHEMA_VERSION = 1
FORMATS = ("text", "json", "github")


class DoctorCommand(click.Command):
    """Reports a missing `--` when an option of the program was read as one of this command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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
@click.option("-v", "--verbose", is_flag=True, help="Also show what is in order.")
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
        return _explain_rule(rule)
    if device or compare is not None:
        verbose = options.pop("verbose")
        if compare is not None:
            _refuse("--compare compares devices", {"verbose": verbose})
        _refuse("--device runs a program", {**options, **of_scripts, **ignore})
        from xlaunch.cli.doctor_device import watch_program

        return watch_program(words, compared=compare, as_json=as_json, verbose=verbose)
    if words:
        _refuse("files are checked by their source", options)
        of_scripts["output_format"] = of_scripts["output_format"] or ("json" if as_json else "text")
        return _check_scripts(words, **of_scripts, **ignore)
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
    typed_options = [_SPELT.get(name, f"--{name}") for name, value in options.items() if value]
    if typed_options:
        raise UsageError(f"{what}; {typed_options[0]} does not go with that")


def _check_scripts(
    paths: tuple[str, ...],
    *,
    hints: bool,
    select: str | None,
    ignore: str | None,
    output_format: str,
) -> int:
    """Print the findings in files and directories; return 1 if there are any."""
    from xlaunch.doctor.lint.running import check_paths

    if output_format not in FORMATS:
        near = did_you_mean(output_format, FORMATS, count=1)
        raise UsageError(f"--output-format {output_format!r} is none of {', '.join(FORMATS)}{near}")
    chosen = {"select": _codes("--select", select), "ignore": _codes("--ignore", ignore)}
    result = check_paths(paths, hints=hints, **chosen)
    if output_format == "json":
        click.echo(json.dumps(_document(result), indent=2))
    else:
        for finding in result.findings:
            place = f"{finding.path}:{finding.line}:{finding.column}"
            line = f"{place}: {finding.code} {finding.message}"
            click.echo(_annotation(finding) if output_format == "github" else line)
    click.echo(_summary(result), err=True)
    return 1 if result.findings else 0


def _explain_rule(code: str) -> int:
    """Print what a rule finds, with a failing and a passing example."""
    from xlaunch.doctor.lint.rules import BY_CODE

    by_name = {rule.name: rule for rule in BY_CODE.values()}
    rule = BY_CODE.get(code.upper()) or by_name.get(code.lower())
    if rule is None:
        near = did_you_mean(code.upper(), BY_CODE) or f"; they are {', '.join(BY_CODE)}"
        raise UsageError(f"there is no rule {code!r}{near}")
    kind = "A hint: looked for with --hints." if rule.is_hint else "A fault."
    for line in (
        f"{rule.code} {rule.name}\n\n{rule.summary} {kind}\n\n{rule.reason}\n",
        f"Found:\n\n{_indented(rule.failing)}\nNot found:\n\n{_indented(rule.passing)}",
        f"Not on one line: '# noqa: {rule.code}' at its end. Nowhere: '--ignore {rule.code}', or in "
        f'pyproject.toml:\n\n    [tool.xlaunch.doctor]\n    ignore = ["{rule.code}"]',
    ):
        click.echo(line)
    return 0


def _codes(option: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    from xlaunch.doctor.lint.running import check_codes

    codes = tuple(code.strip().upper() for code in text.split(",") if code.strip())
    if not codes:
        raise UsageError(f"{option} {text!r} names no rule; write codes such as XL001,XL03")
    try:
        check_codes(codes)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    return codes


_MESSAGE = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})


def _annotation(finding: ScriptFinding) -> str:
    """A workflow command of GitHub Actions, escaped as its toolkit does."""
    values = {
        "file": finding.path.partition(":cell ")[0],
        "line": finding.line,
        "col": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
        "title": finding.code,
    }
    shown = ",".join(f"{key}={str(value).translate(_PROPERTY)}" for key, value in values.items())
    return f"::error {shown}::{finding.message.translate(_MESSAGE)}"


def _document(result: LintResult) -> dict[str, Any]:
    from xlaunch.doctor.lint.rules import BY_CODE

    rules = [BY_CODE.get(finding.code) for finding in result.findings]
    hints = sum(rule is not None and rule.is_hint for rule in rules)
    return {
        "schema_version": SCHEMA_VERSION,
        "findings": [
            {
                "path": finding.path,
                "line": finding.line,
                "column": finding.column,
                "end": {"line": finding.end_line, "column": finding.end_column},
                "code": finding.code,
                "name": None if rule is None else rule.name,
                "message": finding.message,
            }
            for finding, rule in zip(result.findings, rules, strict=True)
        ],
        "counts": {
            "files": result.files,
            "findings": len(result.findings),
            "hints": hints,
            "hints_not_shown": result.hidden_hints,
            "skipped": result.skipped,
        },
    }


def _summary(result: LintResult) -> str:
    """**Ex.:** ``3 findings in 12 files; 1 file skipped: larger than 1 MiB; 2 hints with --hints``."""
    parts = [f"{counted(len(result.findings), 'finding')} in {counted(result.files, 'file')}"]
    parts += [f"{counted(n, 'file')} skipped: {why}" for why, n in sorted(result.skipped.items())]
    if result.hidden_hints:
        parts.append(f"{counted(result.hidden_hints, 'hint')} with --hints")
    return "; ".join(parts)


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())
