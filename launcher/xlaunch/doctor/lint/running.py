# SPDX-License-Identifier: Apache-2.0
"""Checks files: selects the rules that apply to each, and uses several processes for many files."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from xlaunch.doctor.lint.arguments import check_arguments
from xlaunch.doctor.lint.devices import check_devices
from xlaunch.doctor.lint.facts import FileFacts
from xlaunch.doctor.lint.loaders import check_loaders
from xlaunch.doctor.lint.optimizers import check_optimizers
from xlaunch.doctor.lint.replaced import check_replaced
from xlaunch.doctor.lint.rules import BY_CODE, RULES
from xlaunch.doctor.lint.source import (
    ScriptFinding,
    SkippedError,
    find_files,
    read_source,
    syntax_finding,
    usable_cpus,
)
from xlaunch.doctor.lint.tensors import check_moves
from xlaunch.doctor.lint.threads import check_threads
from xlaunch.doctor.lint.training import check_evaluation
from xlaunch.doctor.lint.waits import check_waits
from xlaunch.errors import UsageError
from xlaunch.options.precedence import parse_project, project_files
from xlaunch.text import did_you_mean

CHECKS = (check_arguments, check_threads, check_replaced)
TORCH_CHECKS = (
    check_moves, check_waits, check_evaluation, check_optimizers, check_devices, check_loaders,
)  # fmt: skip

_SUBJECTS = re.compile(
    r"\b(torch|torchvision|timm|(config)?argparse|click|typer|absl|fire|add_argument|environ|getenv)\b|_pytorch"
)
"""Files without any of these words have nothing that a rule looks for."""

_IS_TEST = re.compile(r"(^|[/\\])(test_[^/\\]*|[^/\\]*_test|conftest)\.py$")
_TESTS = re.compile(r"(unittest|pytest|torch\.testing)\b(?!\.mock)")
"""Modules that only tests and their helpers import."""
_SPEED = ("XL1", "XL030", "XL041")
"""Rules about speed, which tests do not need."""

MAX_HINTS = 3
"""Hints of a kind that a file shows."""

_FEW_FILES = 48
"""Up to this many files are checked in this process: starting others would take longer."""


class Selection(NamedTuple):
    """Which rules apply, as codes or prefixes of codes; empty if nothing was selected."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def takes(self, code: str, *, hints: bool = False) -> bool:
        """Whether findings of a rule are wanted."""
        if any(code.startswith(prefix) for prefix in self.ignore):
            return False
        if self.select:
            return any(code.startswith(prefix) for prefix in self.select)
        rule = BY_CODE.get(code)
        return hints or rule is None or not rule.is_hint


class LintResult(NamedTuple):
    findings: tuple[ScriptFinding, ...]
    """In the order of files and lines."""
    files: int
    """Number of files that were checked, those that do not parse included."""
    skipped: dict[str, int]
    """Reasons with their counts."""
    hidden_hints: int
    """Hints that would have been found with ``hints``."""


def check_paths(
    words: Sequence[str],
    *,
    hints: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> LintResult:
    """Check files and directories.

    `select` and `ignore`, codes or their beginnings, replace those of pyproject.toml. Raises
    `UsageError` for paths, codes and configurations that cannot be used.
    """
    for codes in (select, ignore):
        check_codes(codes)
    files = find_files(words)
    skipped = dict(files.skipped)
    selections: dict[str, Selection] = {}
    tasks = []
    for path in files.paths:
        directory = os.path.dirname(os.path.abspath(path))
        if directory not in selections:
            configured = _configured(directory)
            selections[directory] = Selection(
                tuple(select) or configured.select, tuple(ignore) or configured.ignore
            )
        tasks.append((path, selections[directory], hints))
    findings: list[ScriptFinding] = []
    hidden = 0
    for of_file, more_hints, problem in _run(tasks):
        findings += of_file
        hidden += more_hints
        if problem:
            skipped[problem] = skipped.get(problem, 0) + 1
    unread = sum(skipped.values()) - sum(files.skipped.values())
    return LintResult(tuple(findings), len(tasks) - unread, skipped, hidden)


def findings_in(paths: Sequence[str]) -> list[ScriptFinding]:
    """The faults and hints in files, as their projects select them; none where that cannot be read."""
    findings: list[ScriptFinding] = []
    for path in paths:
        with contextlib.suppress(UsageError):
            selection = _configured(os.path.dirname(os.path.abspath(path)))
            findings += check_file((path, selection, True))[0]
    return findings


def check_codes(codes: Sequence[str]) -> None:
    """Raise `UsageError` for a code that is neither a rule's nor the beginning of one."""
    for code in codes:
        known_codes = [rule.code for rule in RULES]
        if not code or not any(name.startswith(code) for name in known_codes):
            hint = (
                did_you_mean(code.upper(), known_codes, count=2)
                or f"; they are {', '.join(known_codes)}"
            )
            raise UsageError(f"there is no rule {code!r}{hint}")


Outcome = tuple[list[ScriptFinding], int, str]
"""The findings, the number of hints left out, and why the file was skipped."""


def check_file(task: tuple[str, Selection, bool]) -> Outcome:
    path, selection, hints = task
    try:
        source = read_source(path)
    except SkippedError as error:
        return [], 0, str(error)
    except SyntaxError as error:
        syntax_problem = syntax_finding(path, error)
        return [syntax_problem] if selection.takes(syntax_problem.code) else [], 0, ""
    text = "\n".join(source.lines)
    if not _SUBJECTS.search(text):
        return [], 0, ""
    facts = FileFacts(source.tree, os.path.dirname(path))
    has_torch = facts.words & {"torch", "torchvision"} or facts.modules() & {"torch", "timm"}
    checks = CHECKS + TORCH_CHECKS if has_torch else CHECKS
    problems = [problem for check in checks for problem in check(facts)]
    if _IS_TEST.search(path) or any(_TESTS.match(name) for name, _, _ in facts.imports):
        problems = [problem for problem in problems if not problem[1].startswith(_SPEED)]
    findings = {source.finding(*problem) for problem in problems}
    # A notebook shows the last value of a cell.
    findings = {
        finding
        for finding in findings
        if finding.code != "XL010" or not source.ends_cell(finding.line)
    }
    loud = [finding for finding in sorted(findings) if not source.is_silenced(finding)]
    loud = _fold(loud)
    wanted = [source.placed(own) for own in loud if selection.takes(own.code, hints=hints)]
    hidden = 0
    if not hints and not selection.select:
        hidden = sum(selection.takes(finding.code, hints=True) for finding in loud) - len(wanted)
    return wanted, hidden, ""


def _fold(findings: list[ScriptFinding]) -> list[ScriptFinding]:
    """The findings with at most three hints of a kind; the third one names the lines of the others."""
    of_kind: dict[str, list[ScriptFinding]] = {}
    for finding in findings:
        of_kind.setdefault(finding.code, []).append(finding)
    for code, same in of_kind.items():
        if code.startswith("XL1") and len(same) > MAX_HINTS:
            last, more = same[MAX_HINTS - 1], same[MAX_HINTS:]
            lines = ", ".join(str(finding.line) for finding in more)
            same[MAX_HINTS - 1 :] = [
                last._replace(message=f"{last.message} (and {len(more)} more: line {lines})")
            ]
    return sorted(finding for same in of_kind.values() for finding in same)


def _run(tasks: list[tuple[str, Selection, bool]]) -> Iterator[Outcome]:
    """The outcomes in the order of `tasks`."""
    workers = min(usable_cpus(), len(tasks) // (_FEW_FILES // 2))
    if len(tasks) <= _FEW_FILES or workers < 2:
        yield from map(check_file, tasks)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(check_file, tasks, chunksize=8)


def _configured(directory: str) -> Selection:
    """The table [tool.xlaunch.doctor] of the nearest pyproject.toml that has one."""
    for path, data in project_files(directory):
        table = (parse_project(data, path) or {}).get("doctor")
        if isinstance(table, dict):
            return _read_table(table, path)
        if table is not None:
            raise UsageError(f"{path}: tool.xlaunch.doctor must be a table: [tool.xlaunch.doctor]")
    return Selection()


def _read_table(table: dict[str, Any], path: str) -> Selection:
    place = f"{path}, [tool.xlaunch.doctor]"
    values: dict[str, tuple[str, ...]] = {}
    for key, value in table.items():
        if key not in Selection._fields:
            raise UsageError(f"{place}: there is no option {key!r}; there are select and ignore")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f'{place}: {key} must be a list of codes such as ["XL030"]')
        try:
            check_codes(value)
        except UsageError as error:
            raise UsageError(f"{place}: {key}: {error}") from None
        values[key] = tuple(value)
    return Selection(**values)
