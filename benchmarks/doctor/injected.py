# SPDX-License-Identifier: Apache-2.0
"""How many faults does `xlaunch doctor` find? Put faults into training scripts, one at a time.

    python -m benchmarks.doctor.injected DIRECTORY --seed 1 --count 40

Each fault goes into a copy of a script of the directory: an `eval()` is removed (XL025), a loss is read
after `backward()` (XL030), the result of a `.to()` is dropped (XL010), or an option gets `type=bool`
(XL001). Places are drawn in the order of a seed, the same number of each kind as far as there are that
many, one a file and kind. An `eval()` is removed only from functions that measure a model, in files that
make Dropout or BatchNorm; a loss is read only in loops over steps, not epochs, of files that name cuda and
do not synchronize; modules and the batches of PyTorch Geometric, which move in place, keep their `.to()`: elsewhere
none of these is a fault. The untouched script is
the twin: a fault counts as found if its rule has a finding that the twin lacks.
"""

from __future__ import annotations

import ast
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.measurement import command_parser
from xlaunch.doctor.lint.running import Selection, check_file


class Injection(NamedTuple):
    path: Path
    rule: str
    line: int
    """Where the fault goes in, counted from 1."""
    text: str
    """The script with the fault."""


def injections(path: Path) -> Iterator[Injection]:
    """Every single fault that can be put into a script; none if it trains nothing or does not parse."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError):
        return
    if (
        ".backward()" not in source
        or "torch" not in source
        or re.search("pytest|unit_?test|/tests/", f"{path} {source}")
    ):
        return
    lines = source.splitlines()
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.While)
        or (isinstance(node, ast.For) and "epoch" not in ast.unparse(node.target))
    ]
    in_loops = {node for loop in loops for node in ast.walk(loop)}
    possible = {
        "XL025": re.search(r"nn\.(Dropout|BatchNorm)|models\.(resnet|vgg|dense)", source)
        is not None,
        "XL030": "cuda" in source and ".synchronize()" not in source,
        "XL010": "torch_geometric" not in source,
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr | ast.Assign) or node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]
        indent = line[: len(line) - len(line.lstrip())]
        for rule, replacement in _faults(node, line.strip()):
            if rule == "XL025" and not _counts(tree, node):
                continue
            if rule == "XL010" and _is_module(replacement.partition(".")[0], source):
                continue
            if not possible.get(rule, True) or (rule == "XL030" and node not in in_loops):
                continue
            changed = [*lines[: node.lineno - 1], indent + replacement, *lines[node.lineno :]]
            yield Injection(path, rule, node.lineno, "\n".join(changed).replace("\r", "") + "\n")


def _faults(node: ast.Expr | ast.Assign, line: str) -> Iterator[tuple[str, str]]:
    """Rules, and what replaces a statement so that they apply."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="eval"), args=[])):
            yield "XL025", "pass"
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="backward", value=ast.Name(id=name)))):
            yield "XL030", f"{line}; total = {name}.item()"
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="add_argument"))):
            if "action='store_true'" in line or 'action="store_true"' in line:
                yield "XL001", line.replace("'", '"').replace('action="store_true"', "type=bool")
        case ast.Assign(
            targets=[ast.Name(id=target)],
            value=ast.Call(
                func=ast.Attribute(attr="to" | "cuda", value=ast.Name(id=moved))
            ) as value,
        ) if target == moved and target not in ("model", "net", "criterion"):
            yield "XL010", ast.unparse(value)


def _counts(tree: ast.Module, node: ast.stmt) -> bool:
    """Whether the function around a statement measures a model and trains nothing."""
    functions = [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and one.lineno <= node.lineno <= (one.end_lineno or 0)
    ]
    text = ast.unparse(functions[-1]) if functions else ""
    return ".backward(" not in text and re.search("correct|acc|loss|metric", text) is not None


def _is_module(name: str, source: str) -> bool:
    """Whether a name is called, or used as a module: modules move in place."""
    if re.search("loss|crit", name):
        return True
    used = rf"\b{name}(\(|\.(parameters|state_dict|load_state_dict|train|eval)\b|: (torch\.)?nn\.)"
    return re.search(used, source) is not None


def count_of(path: Path, rule: str) -> int:
    """The number of findings of a rule in a file."""
    return sum(one.code == rule for one in check_file((str(path), Selection(), True))[0])


def is_found(injection: Injection) -> bool:
    """Whether the fault gives one more finding than its twin, or a longer one, has."""
    with tempfile.NamedTemporaryFile(
        "w", suffix=".py", dir=injection.path.parent, encoding="utf-8"
    ) as copy:
        copy.write(injection.text)
        copy.flush()
        return count_of(Path(copy.name), injection.rule) > count_of(injection.path, injection.rule)


def draw(injections: list[Injection], count: int, seed: int) -> list[Injection]:
    """Draw faults in rounds, one of each rule, one a file and rule."""
    generator = random.Random(seed)
    waiting = {
        rule: generator.sample(of_rule, len(of_rule))
        for rule in sorted({one.rule for one in injections})
        if (of_rule := [one for one in injections if one.rule == rule])
    }
    drawn: dict[tuple[Path, str], Injection] = {}
    while len(drawn) < count and any(waiting.values()):
        for rule, of_rule in waiting.items():
            while of_rule:
                one = of_rule.pop()
                # A twin with the fault already cannot show whether it is found.
                if (one.path, rule) not in drawn and not count_of(one.path, rule):
                    drawn[one.path, rule] = one
                    break
    return list(drawn.values())[:count]


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1, help="of the draw; default 1")
    parser.add_argument("--count", type=int, default=40, help="faults; default 40")
    options = parser.parse_args()
    scripts = sorted(options.directory.rglob("*.py"))
    drawn = draw(
        [injection for path in scripts for injection in injections(path)],
        options.count,
        options.seed,
    )
    total, seen = Counter[str](), Counter[str]()
    for injection in drawn:
        total[injection.rule] += 1
        if is_found(injection):
            seen[injection.rule] += 1
        else:
            print(f"missed: {injection.rule} {injection.path}:{injection.line}")
    for rule in sorted(total):
        print(f"{rule}: {seen[rule]} of {total[rule]} found")
    print(f"{sum(seen.values())} of {sum(total.values())} found in {len(scripts)} scripts")


if __name__ == "__main__":
    main()
