# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor`: the checks of the machine, grouped, the worst first."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import click

from xlaunch.cli.topology import show
from xlaunch.doctor.checks import FAMILIES, CheckResult, run_checks
from xlaunch.doctor.checks.findings import Facts, Severity
from xlaunch.environment.program import find_interpreter
from xlaunch.environment.python_environment import prefix_of
from xlaunch.errors import UsageError
from xlaunch.machine import machine_of
from xlaunch.machine.topology import Machine
from xlaunch.machine.tree import Tree
from xlaunch.planning.drawing import DIM, HEADING, WIDTH, Drawing, Line, Segment
from xlaunch.text import counted, did_you_mean

SCHEMA_VERSION = 1
"""Version of ``--json``; raised when a key changes its meaning or is removed."""
STYLES = {
    Severity.SERIOUS: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.ADVICE: "cyan",
    Severity.OK: "green",
}
INDENT = " " * 11
PYTHONS = re.compile("python|pypy|graalpy")
"""How the names of interpreters begin."""


def check_machine(
    *,
    sysroot: str | None,
    imports: tuple[str, ...],
    python: str | None,
    ignore: str | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Print the findings; return 1 if one of them is serious."""
    for name in imports:
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            raise UsageError(
                f"--import {name!r}: not a module's name; as in --import sklearn.cluster"
            )
    if imports and sysroot is not None:
        raise UsageError(
            "--import: modules are imported on this machine; leave --import or --sysroot out"
        )
    ignored = _checks(ignore)
    interpreter = None
    if sysroot is None or python is not None:
        interpreter, _ = find_interpreter(python, os.environ)
        names = [os.path.basename(path) for path in (interpreter, os.path.realpath(interpreter))]
        if python is not None and not any(map(PYTHONS.match, names)):
            raise UsageError(
                f"--python {python}: not a Python interpreter; name one, such as /opt/venv/bin/python"
            )
    with machine_of(sysroot, None) as machine:
        facts = facts_of(
            machine, os.environ, sysroot=sysroot, interpreter=interpreter, imports=imports
        )
        results, unavailable = run_checks(facts, ignored)
    if as_json:
        import json

        click.echo(json.dumps(_to_dict(facts, results, unavailable), indent=1))
    else:
        show(draw(results, unavailable, verbose=verbose), ())
    return int(any(result.finding.severity is Severity.SERIOUS for result in results))


def _checks(text: str | None) -> tuple[str, ...]:
    """The names of checks in `--ignore`. Raises `UsageError` for one that does not exist."""
    names = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    names_of_checks = [check.name for checks in FAMILIES.values() for check in checks]
    if text is not None and not names:
        raise UsageError(f"--ignore {text!r} names no check; write names such as swap,load")
    for name in names:
        if name not in names_of_checks:
            near = did_you_mean(name, names_of_checks) or f"; they are {', '.join(names_of_checks)}"
            raise UsageError(
                f"--ignore: without files the machine is checked, and it has no check {name!r}{near}"
            )
    return names


def facts_of(
    machine: Machine,
    environment: Mapping[str, str],
    *,
    sysroot: str | None,
    interpreter: str | None = None,
    imports: tuple[str, ...] = (),
) -> Facts:
    """What the checks of `machine` read; nothing of this process for a captured one (`sysroot`)."""
    live = sysroot is None and sys.platform == "linux"
    return Facts(
        machine=machine,
        tree=Tree(machine.root),
        live=live,
        environment=dict(environment) if sysroot is None or interpreter else {},
        interpreter=interpreter,
        prefix=None if interpreter is None else prefix_of(interpreter),
        imports=imports,
    )


def draw(results: Sequence[CheckResult], unavailable: Sequence[str], *, verbose: bool) -> Drawing:
    """The findings in lines of 80 columns; commands can be copied."""
    counts = {
        severity: [result.finding.severity for result in results].count(severity)
        for severity in Severity
    }
    words = [
        f"{counts[Severity.SERIOUS]} serious",
        counted(counts[Severity.WARNING], "warning"),
        f"{counts[Severity.ADVICE]} advice",
        f"{counts[Severity.OK]} in order",
    ]
    lines: list[Line] = []
    group = ""
    for result in results:
        finding = result.finding
        if finding.severity is Severity.OK and not verbose:
            continue
        if result.group != group:
            group = result.group
            lines += [(Segment(group, HEADING),)]
        first, *more = _lines(finding.found)
        word = Segment(f"  {finding.severity.value:<8} ", STYLES[finding.severity])
        lines += [(word, Segment(first)), *((Segment(INDENT + line),) for line in more)]
        for line in _lines(finding.why):
            lines.append((Segment(INDENT + line, DIM),))
        for command in filter(None, finding.advise.split("\n")):
            first, *more = _lines(command, WIDTH - len(INDENT) - 4)
            if more:  # lines that a shell reads as one
                first, more = f"{first} \\", [f"{line} \\" for line in more[:-1]] + more[-1:]
            lines += [(Segment(f"{INDENT}> {first}"),), *((Segment(INDENT + m),) for m in more)]
    hint = "" if verbose or not counts[Severity.OK] else " (-v shows them)"
    lines.append((Segment(", ".join(words) + hint),))
    if verbose and unavailable:
        text = f"not checked here: {', '.join(unavailable)}"
        lines += [(Segment(line, DIM),) for line in _lines(text, WIDTH)]
    return Drawing(tuple(lines))


def _lines(text: str, width: int = WIDTH - len(INDENT)) -> list[str]:
    """The text, wrapped to lines. Long paths are not broken, so that they can be copied."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def _to_dict(
    facts: Facts, results: Sequence[CheckResult], unavailable: Sequence[str]
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "interpreter": facts.interpreter,
        "findings": [
            {
                "group": result.group,
                "check": result.check,
                **result.finding._asdict(),
                "severity": result.finding.severity.value,
            }
            for result in results
        ],
        "not_available": list(unavailable),
    }
