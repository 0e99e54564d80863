# SPDX-License-Identifier: Apache-2.0
"""How often are the rules of `xlaunch doctor` right? Count findings, and draw some for judging.

    python -m benchmarks.doctor CORPUS/* --draw 130 40 --seed 4 --out drawn.csv
    python -m benchmarks.doctor --judged
    python -m benchmarks.doctor CORPUS/* --judged 3

Each directory holds the Python files of a package and is named NAME-VERSION, as the archive of its
source on PyPI unpacks. `--draw` prints findings with the lines around them, the same number of each rule as
far as there are that many, in the order of a seed, and `--out` writes them as a table with an empty
verdict. judged.csv holds such tables with verdicts: `right` where a maintainer of that code would agree
with the message, `false alarm` otherwise. Its draws 1 to 3 took 200 findings of one set of packages, and
after each of the first two the rules were made more precise. The draws `held out` (130 faults and 40 hints, seed 4) and
`held out 2` (100 faults, seed 5) are of the packages of held-out.txt, which no rule had been adapted to
when they were judged; so are `held out 3` (60 faults and 15 hints, seed 6) and `held out 4` (seed 7), of wheels,
after the rules were made fewer. The draws `scripts 1` (45 faults and 55 hints, seed 8), `scripts 2` (65 and 35, seed 9),
`scripts 3` (60 and 40, seed 10) and `scripts 4` (60 faults, seed 11) are of the repositories of held-out.txt, in directories
named OWNER+NAME-COMMIT; the rules were mended after each. `--judged` prints a table by rule of one draw, of the last one in the file unless
another is named; with directories, also how many of its findings the present rules report.
"""

from __future__ import annotations

import csv
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.measurement import command_parser
from xlaunch.doctor.lint.rules import BY_CODE
from xlaunch.doctor.lint.running import check_paths
from xlaunch.doctor.lint.source import ScriptFinding

LINES_AROUND = 6
"""Lines that are printed before a finding, and after it."""
JUDGED = Path(__file__).with_name("judged.csv")
COLUMNS = ("draw", "package", "version", "file", "line", "rule", "verdict", "reason")
VERDICTS = ("right", "false alarm")


class Findings(NamedTuple):
    by_rule: dict[str, list[ScriptFinding]]
    files: int
    seconds: float


def find(directories: Sequence[Path]) -> Findings:
    """Check all files of the directories, hints included."""
    start = time.perf_counter()
    result = check_paths(tuple(map(str, directories)), hints=True)
    by_rule = defaultdict(list)
    for finding in result.findings:
        by_rule[finding.code].append(finding)
    by_rule.pop("XL000", None)
    return Findings(by_rule, result.files, time.perf_counter() - start)


def of_kind(
    by_rule: dict[str, list[ScriptFinding]], is_hint: bool
) -> dict[str, list[ScriptFinding]]:
    return {
        code: findings for code, findings in by_rule.items() if BY_CODE[code].is_hint is is_hint
    }


def draw(by_rule: dict[str, list[ScriptFinding]], count: int, seed: int) -> list[ScriptFinding]:
    """Draw findings in rounds, one of each rule that has any left."""
    generator = random.Random(seed)
    waiting = {
        code: generator.sample(findings, len(findings))
        for code, findings in sorted(by_rule.items())
    }
    drawn: list[ScriptFinding] = []
    while len(drawn) < count and any(waiting.values()):
        drawn += [findings.pop() for findings in waiting.values() if findings]
    return sorted(drawn[:count], key=lambda finding: (finding.code, finding.path, finding.line))


def place(finding: ScriptFinding, directories: Sequence[Path]) -> tuple[str, str, str]:
    """Return the package, the version and the file of a finding."""
    top = next(
        directory for directory in directories if Path(finding.path).is_relative_to(directory)
    )
    package, _, version = top.name.rpartition("-")
    return package, version, str(Path(finding.path).relative_to(top))


def print_with_context(finding: ScriptFinding) -> None:
    path, _, cell = finding.path.partition(":cell ")
    text = Path(path).read_text(errors="replace")
    if cell:
        text = "".join(json.loads(text)["cells"][int(cell) - 1]["source"])
    lines = text.splitlines()
    print(f"\n=== {finding.path}:{finding.line}: {finding.code} {finding.message}")
    first = max(finding.line - LINES_AROUND, 1)
    for number in range(first, min(finding.line + LINES_AROUND, len(lines)) + 1):
        mark = ">" if finding.line <= number <= finding.end_line else " "
        print(f"{mark}{number:5d} {lines[number - 1][:140]}")


def read_judged(draw: str) -> list[dict[str, str]]:
    """Return one draw of judged.csv, "last" for the last, without rules that are gone."""
    with JUDGED.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        if row["verdict"] not in VERDICTS:
            raise SystemExit(f"{JUDGED}: {row['verdict']!r} is none of {', '.join(VERDICTS)}")
    draws = list(dict.fromkeys(row["draw"] for row in rows))
    if draw == "last":
        draw = draws[-1]
    if draw not in draws:
        raise SystemExit(f"{JUDGED}: no draw {draw!r}; there are {', '.join(draws)}")
    return [row for row in rows if row["draw"] == draw and row["rule"] in BY_CODE]


def write_table(
    path: Path, drawn: Sequence[ScriptFinding], directories: Sequence[Path], seed: int
) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for finding in drawn:
            where = place(finding, directories)
            writer.writerow((seed, *where, finding.line, finding.code, "", ""))


def print_judged(
    rows: Sequence[dict[str, str]], by_rule: dict[str, list[ScriptFinding]] | None
) -> None:
    """Print the Markdown table of docs/doctor-scripts.md, and the shares of false alarms."""
    verdicts = Counter((row["rule"], row["verdict"]) for row in rows)
    print("| rule | findings | judged | right | false alarms |\n|---|---|---|---|---|")
    for code in sorted({row["rule"] for row in rows} | set(by_rule or ())):
        right, false = verdicts[code, "right"], verdicts[code, "false alarm"]
        count = "" if by_rule is None else len(by_rule.get(code, ()))
        print(f"| {code} {BY_CODE[code].name} | {count} | {right + false} | {right} | {false} |")
    for name, is_hint in (("faults", False), ("hints", True)):
        verdicts_of_kind = [
            row["verdict"] for row in rows if BY_CODE[row["rule"]].is_hint is is_hint
        ]
        false = verdicts_of_kind.count("false alarm")
        if verdicts_of_kind:
            share = 100 * false / len(verdicts_of_kind)
            print(
                f"\n{name}: {false} false alarms in {len(verdicts_of_kind)} findings, {share:.1f} %"
            )


def print_still_found(
    rows: Sequence[dict[str, str]],
    found: dict[str, list[ScriptFinding]],
    directories: Sequence[Path],
) -> None:
    """Print how many of the judged findings the present rules report, by verdict."""
    now = {
        (*place(finding, directories), str(finding.line), finding.code)
        for findings in found.values()
        for finding in findings
    }
    columns = ("package", "version", "file", "line", "rule")
    for name, is_hint in (("faults", False), ("hints", True)):
        kind = [row for row in rows if BY_CODE[row["rule"]].is_hint is is_hint]
        for verdict in VERDICTS:
            judged = [
                tuple(row[column] for column in columns)
                for row in kind
                if row["verdict"] == verdict
            ]
            if judged:
                left = sum(row in now for row in judged)
                print(f"{name} judged {verdict!r}: {left} of {len(judged)} are still reported")


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("directories", nargs="*", type=Path, metavar="NAME-VERSION")
    parser.add_argument(
        "--draw", nargs=2, type=int, metavar=("FAULTS", "HINTS"), help="print so many findings"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="number and seed of the draw; default 1"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the draw as a table")
    parser.add_argument(
        "--judged", nargs="?", const="last", metavar="DRAW", help="print a table of judged.csv"
    )
    options = parser.parse_args()
    if not options.directories and not options.judged:
        parser.error("name directories, or --judged")
    findings = find(options.directories) if options.directories else None
    if findings is not None:
        per_1000 = 1000 * findings.seconds / max(findings.files, 1)
        print(f"{findings.files} files in {findings.seconds:.1f} s, {per_1000:.1f} s for 1,000")
        for code, found in sorted(findings.by_rule.items()):
            print(f"{len(found):6d} {code} {BY_CODE[code].name}")
    if findings is not None and options.draw:
        drawn = [
            finding
            for count, is_hint in zip(options.draw, (False, True), strict=True)
            for finding in draw(of_kind(findings.by_rule, is_hint), count, options.seed)
        ]
        for finding in drawn:
            print_with_context(finding)
        if options.out:
            write_table(options.out, drawn, options.directories, options.seed)
    if options.judged:
        rows = read_judged(options.judged)
        print_judged(rows, findings and findings.by_rule)
        if findings is not None:
            print_still_found(rows, findings.by_rule, options.directories)


if __name__ == "__main__":
    sys.exit(main())
