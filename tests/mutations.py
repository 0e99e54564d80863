# SPDX-License-Identifier: Apache-2.0
"""Change one expression of the product at a time, and count the changes that no test notices.

    python -m tests.mutations --count 60 runtime_ext/xruntime launcher/xlaunch/cache
    python -m tests.mutations --only launcher/xlaunch/cache/prune.py:103

A mutant swaps a comparison, `and` and `or`, or True and False, negates a condition, moves a number by one,
returns None, or leaves out a statement that is only a call. Mutants are drawn by --seed, evenly over the files. For each
one the tests of its directory run until one fails, the quick tier first; a mutant that survives both tiers
is printed with its line. Files are changed in place and restored: they must be committed before.

A survivor is a missing test, or a change that makes no difference (a reason's text, a cache, a shortcut).
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TESTS_OF = {
    "launcher/xlaunch": "tests/launcher",
    "tuner/xtune": "tests/tuner",
    "runtime_ext/xruntime": "tests/runtime_ext",
}
TIERS = ("not long and not full", "long")
TIMEOUT_S = 600.0
"""Seconds for the tests of one tier; a mutant that makes them hang is noticed."""

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


class Mutant(NamedTuple):
    """One change of a file: the text between two offsets, in bytes, is replaced."""

    path: Path
    line: int
    begin: int
    end: int
    replacement: str

    def __str__(self) -> str:
        source = self.path.read_bytes()
        before = source[self.begin : self.end].decode().split("\n")[0]
        place = f"{self.path.relative_to(ROOT)}:{self.line}"
        return f"{place}: {before}  ->  {self.replacement.splitlines()[0]}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of one file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def made(node: ast.expr | ast.stmt, replacement: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(path, node.lineno, begin, end, replacement)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield made(node, f"({left} {COMPARISONS[type(node.ops[0])]} {right})")
        elif isinstance(node, ast.BoolOp):
            other = " or " if isinstance(node.op, ast.And) else " and "
            yield made(node, f"({other.join(f'({ast.unparse(value)})' for value in node.values)})")
        elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield made(node.test, f"(not ({ast.unparse(node.test)}))")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield made(node, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield made(node, str(node.value + 1))
        elif isinstance(node, ast.Return) and node.value is not None:
            yield made(node, "return None")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield made(node, "pass")


def tests_of(path: Path) -> Path:
    """The directory of the tests of a file, or the nearest one above it that exists."""
    relative = path.relative_to(ROOT).as_posix()
    package = next(package for package in TESTS_OF if relative.startswith(f"{package}/"))
    inside = os.path.dirname(relative.removeprefix(f"{package}/"))
    directory = ROOT / TESTS_OF[package] / inside
    while not directory.is_dir():
        directory = directory.parent
    return directory


def is_noticed(mutant: Mutant, tiers: tuple[str, ...]) -> bool:
    """Whether a test of the directory fails with the mutant in place."""
    source = mutant.path.read_bytes()
    changed = source[: mutant.begin] + mutant.replacement.encode() + source[mutant.end :]
    mutant.path.write_bytes(changed)
    try:
        return any(
            _fails(tests_of(mutant.path), tier) for tier in ("not long and not full", "long")
        )
    finally:
        mutant.path.write_bytes(source)


def _fails(directory: Path, tier: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", tier]
    try:
        done = subprocess.run(
            [*command, str(directory)],
            cwd=ROOT,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)  # 5: no test is in this tier


def drawn(paths: list[Path], count: int, seed: int) -> list[Mutant]:
    """Mutants of files that are drawn at random, one of each before a second of any."""
    source = random.Random(seed)
    waiting = {path: list(mutants_of(path)) for path in sorted(paths)}
    found: list[Mutant] = []
    while len(found) < count and any(waiting.values()):
        order = [path for path, mutants in waiting.items() if mutants]
        source.shuffle(order)
        for path in order[: count - len(found)]:
            mutants = waiting[path]
            found.append(mutants.pop(source.randrange(len(mutants))))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="*", type=Path, help="files or directories of the product")
    parser.add_argument("--count", type=int, default=60, help="how many mutants; default 60")
    parser.add_argument("--seed", type=int, default=0, help="random seed; default 0")
    parser.add_argument("--quick", action="store_true", help="run the quick tier only")
    parser.add_argument("--only", metavar="FILE:LINE", help="all mutants of one line")
    options = parser.parse_args()
    if options.only is not None:
        name, _, line = options.only.rpartition(":")
        mutants = [one for one in mutants_of(ROOT / name) if str(one.line) == line]
    else:
        files = [
            file
            for place in options.places
            for file in ([ROOT / place] if place.is_file() else (ROOT / place).rglob("*.py"))
        ]
        mutants = drawn(files, options.count, options.seed)
    if not mutants:
        parser.error("there is nothing to mutate: name files, directories or --only FILE:LINE")
    touched = sorted({str(one.path) for one in mutants})
    unchanged = ["git", "diff", "--quiet", "HEAD", "--", *touched]
    if subprocess.run(unchanged, cwd=ROOT, check=False).returncode:
        parser.error("a file that would be changed has uncommitted changes: commit them first")
    survivors = 0
    for number, mutant in enumerate(mutants, 1):
        began, text = time.monotonic(), str(mutant)
        noticed = is_noticed(mutant, TIERS[:1] if options.quick else TIERS)
        survivors += not noticed
        verdict = "noticed " if noticed else "SURVIVES"
        print(f"{number:3} {verdict} {time.monotonic() - began:4.0f} s  {text}", flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants are noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
