# SPDX-License-Identifier: Apache-2.0
"""How often are the rules of `xlaunch doctor` right? Count findings, and draw some for judging.

    python benchmarks/doctor CORPUS/* --draw 200 --seed 2 --out drawn.csv
    python benchmarks/doctor --judged
    python benchmarks/doctor CORPUS/* --judged

Each directory holds the Python files of a package and is named NAME-VERSION, as the archive of its
source on PyPI unpacks. `--draw` prints findings with the lines around them, the same number of each rule as
far as there are that many, in the order of a seed, and `--out` writes them as a table with an empty
verdict. judged.csv holds such tables with verdicts: `right` where a maintainer of that code would agree
with the message, `false alarm` otherwise. Its draw 1 was judged before the rules were made more precise,
and each later draw after that; `--judged` prints a table by rule of the last one.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from xlaunch.doctor.lint.rules import BY_CODE
from xlaunch.doctor.lint.running import check_paths
from xlaunch.doctor.lint.source import Finding

JUDGED = Path(__file__).with_name("judged.csv")
COLUMNS = ("draw", "package", "version", "file", "line", "rule", "verdict", "reason")
VERDICTS = ("right", "false alarm")


class Findings(NamedTuple):
    by_rule: dict[str, list[Finding]]
    files: int
    seconds: float


def find(directories: Sequence[Path]) -> Findings:
    """Check all files of the directories, hints included."""
    start = time.perf_counter()
    result = check_paths(tuple(map(str, directories)), hints=True)
    by_rule = defaultdict(list)
    for finding in result.findings:
        by_rule[finding.code].append(finding)
    del by_rule["XL000"]
    return Findings(by_rule, result.files, time.perf_counter() - start)


def draw(by_rule: dict[str, list[Finding]], count: int, seed: int) -> list[Finding]:
    """Draw findings in rounds, one of each rule that has any left."""
    generator = random.Random(seed)
    waiting = {code: generator.sample(found, len(found)) for code, found in sorted(by_rule.items())}
    drawn: list[Finding] = []
    while len(drawn) < count and any(waiting.values()):
        drawn += [found.pop() for found in waiting.values() if found]
    return sorted(drawn[:count], key=lambda finding: (finding.code, finding.path, finding.line))


def place(finding: Finding, directories: Sequence[Path]) -> tuple[str, str, str]:
    """Return the package, the version and the file of a finding."""
    top = next(one for one in directories if Path(finding.path).is_relative_to(one))
    package, _, version = top.name.rpartition("-")
    return package, version, str(Path(finding.path).relative_to(top))


def print_with_context(finding: Finding, lines_around: int) -> None:
    lines = Path(finding.path).read_text(errors="replace").splitlines()
    print(f"\n=== {finding.path}:{finding.line}: {finding.code} {finding.message}")
    first = max(finding.line - lines_around, 1)
    for number in range(first, min(finding.line + lines_around, len(lines)) + 1):
        mark = ">" if finding.line <= number <= finding.end_line else " "
        print(f"{mark}{number:5d} {lines[number - 1][:140]}")


def read_judged() -> list[dict[str, str]]:
    """Return the last draw of judged.csv; a verdict that is none ends the program."""
    with JUDGED.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        if row["verdict"] not in VERDICTS:
            raise SystemExit(f"{JUDGED}: {row['verdict']!r} is none of {', '.join(VERDICTS)}")
    last = max(row["draw"] for row in rows)
    return [row for row in rows if row["draw"] == last]


def write_table(
    path: Path, drawn: Sequence[Finding], directories: Sequence[Path], seed: int
) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for finding in drawn:
            where = place(finding, directories)
            writer.writerow((seed, *where, finding.line, finding.code, "", ""))


def print_judged(rows: Sequence[dict[str, str]], found: dict[str, list[Finding]] | None) -> None:
    """Print the Markdown table of docs/doctor-scripts.md, and the shares of false alarms."""
    verdicts = Counter((row["rule"], row["verdict"]) for row in rows)
    print("| rule | findings | judged | right | false alarms |\n|---|---|---|---|---|")
    for code in sorted({row["rule"] for row in rows} | set(found or ())):
        right, false = verdicts[code, "right"], verdicts[code, "false alarm"]
        count = "" if found is None else len(found.get(code, ()))
        print(f"| {code} {BY_CODE[code].name} | {count} | {right + false} | {right} | {false} |")
    for name, is_hint in (("faults", False), ("hints", True)):
        of_kind = [row for row in rows if BY_CODE[row["rule"]].is_hint is is_hint]
        false = sum(row["verdict"] == "false alarm" for row in of_kind)
        if of_kind:
            share = 100 * false / len(of_kind)
            print(f"\n{name}: {false} false alarms in {len(of_kind)} findings, {share:.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="*", type=Path, metavar="NAME-VERSION")
    parser.add_argument("--draw", type=int, metavar="COUNT", help="print COUNT findings")
    parser.add_argument(
        "--seed", type=int, default=1, help="number and seed of the draw; default 1"
    )
    parser.add_argument("--context", type=int, default=6, help="lines around; default 6")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the draw as a table")
    parser.add_argument("--judged", action="store_true", help="print the table of judged.csv")
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
        drawn = draw(findings.by_rule, options.draw, options.seed)
        for finding in drawn:
            print_with_context(finding, options.context)
        if options.out:
            write_table(options.out, drawn, options.directories, options.seed)
    if options.judged:
        print_judged(read_judged(), findings and findings.by_rule)


if __name__ == "__main__":
    sys.exit(main())
