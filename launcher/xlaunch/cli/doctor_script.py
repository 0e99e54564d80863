# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor FILE_OR_DIRECTORY...`: the findings in scripts, and the explanation of a rule."""

from __future__ import annotations

import json
from typing import Any

import click

from xlaunch.doctor.lint.rules import BY_CODE
from xlaunch.doctor.lint.running import LintResult, check_codes, check_paths
from xlaunch.doctor.lint.source import ScriptFinding
from xlaunch.errors import UsageError
from xlaunch.text import counted, did_you_mean

SCHEMA_VERSION = 1
FORMATS = ("text", "json", "github")


def check_scripts(
    paths: tuple[str, ...],
    *,
    hints: bool,
    select: str | None,
    ignore: str | None,
    output_format: str,
) -> int:
    """Print the findings in files and directories; return 1 if there are any."""
    if output_format not in FORMATS:
        near = did_you_mean(output_format, FORMATS, count=1)
        raise UsageError(f"--output-format {output_format!r} is none of {', '.join(FORMATS)}{near}")
    chosen = {"select": _codes("--select", select), "ignore": _codes("--ignore", ignore)}
    result = check_paths(paths, hints=hints, **chosen)
    if output_format == "json":
        click.echo(json.dumps(_document(result), indent=2))
    else:
        line = _annotation if output_format == "github" else _line
        for finding in result.findings:
            click.echo(line(finding))
    click.echo(_summary(result), err=True)
    return 1 if result.findings else 0


def explain_rule(code: str) -> int:
    """Print what a rule finds, with a failing and a passing example."""
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
    codes = tuple(one.strip().upper() for one in text.split(",") if one.strip())
    if not codes:
        raise UsageError(f"{option} {text!r} names no rule; write codes such as XL001,XL03")
    try:
        check_codes(codes)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    return codes


def _line(finding: ScriptFinding) -> str:
    return f"{finding.path}:{finding.line}:{finding.column}: {finding.code} {finding.message}"


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
    hints = sum(one.code in BY_CODE and BY_CODE[one.code].is_hint for one in result.findings)
    return {
        "schema_version": SCHEMA_VERSION,
        "findings": [
            {
                "path": one.path,
                "line": one.line,
                "column": one.column,
                "end": {"line": one.end_line, "column": one.end_column},
                "code": one.code,
                "name": BY_CODE[one.code].name if one.code in BY_CODE else None,
                "message": one.message,
            }
            for one in result.findings
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
