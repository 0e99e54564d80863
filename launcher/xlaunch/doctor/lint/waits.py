# SPDX-License-Identifier: Apache-2.0
"""XL030: reads in the step of a training that make it wait for the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from xlaunch.doctor.lint.facts import Block, Call, FileFacts, Function, Problem, Scope, dotted

_DEVICES = frozenset(("cuda", "xpu", "mps"))
_LAUNCHED = frozenset(("accelerator", "fabric", "model_engine"))
"""Objects of accelerate, Lightning and DeepSpeed that choose the device."""
_LIGHTNING = frozenset(("lightning", "pytorch_lightning"))
_SHOWS = frozenset(
    ("print", "float", "format", "set_description", "set_postfix", "write", "info", "debug")
)
"""Calls that turn a tensor into text or a number."""
_CLOCKS = frozenset(("perf_counter", "time", "monotonic", "elapsed_time"))
_DEPTH = 9


class Step(NamedTuple):
    """The code that one step of a training runs: the body of a loop, and functions called from it."""

    scope: Scope
    regions: tuple[Block, ...]


def check_waits(facts: FileFacts) -> Iterator[Problem]:
    """One finding a step, at the first read, that names the lines of the others."""
    seen: set[int] = set()
    for step in steps(facts):
        if _runs_on_device(facts, step):
            for node, code, message in _waits(facts, step):
                if node.lineno not in seen:
                    seen.add(node.lineno)
                    yield node, code, message


def steps(facts: FileFacts) -> list[Step]:
    """The innermost loops that call ``backward()``, or a function that does."""
    paths: dict[int, set[Block]] = {}
    loops_found: dict[int, Block] = {}

    def look(call: Call, path: set[Block], depth: int) -> None:
        loops = [
            block for block in call.block.loops() if not isinstance(block.node, ast.comprehension)
        ]
        if loops:
            loops_found[id(loops[0])] = loops[0]
            paths.setdefault(id(loops[0]), set()).update(path)
        elif isinstance(call.scope.node, Function) and depth:
            for caller in facts.calls_of(call.scope.node):
                look(caller, {*path, call.scope.block}, depth - 1)

    for call in facts.named("backward"):
        if call.receiver is not None and dotted(call.receiver) not in ("super", "ctx", "self"):
            look(call, set(), _DEPTH)
    # A round may be an epoch, of one step: what it prints is wanted.
    listed = [
        Step(block.scope, (block, *paths[key]))
        for key, block in loops_found.items()
        if not isinstance(block.node, ast.For) or "epoch" not in ast.unparse(block.node.target)
    ]
    if facts.modules() & _LIGHTNING:
        methods = {scope for scope in facts.within if _is_training_step(scope)}
        listed += [Step(scope, (scope.block,)) for scope in methods]
    return listed


def _is_training_step(scope: Scope) -> bool:
    return isinstance(scope.node, Function) and scope.node.name == "training_step"


def _runs_on_device(facts: FileFacts, step: Step) -> bool:
    """Whether a training may run on a GPU: the file names one, or its caller chooses the device."""
    if facts.words & (_DEVICES | _LAUNCHED) or _is_training_step(step.scope):
        return True
    if any(text.startswith(tuple(_DEVICES)) for text in facts.texts):
        return True
    return any(
        binding.how == "parameter"
        for block in step.regions
        for binding in block.scope.bindings["device"]
    )


def _waits(facts: FileFacts, step: Step) -> Iterator[Problem]:
    reads: dict[int, tuple[Call, str]] = {}
    calls = [
        call
        for block in step.regions
        for call in facts.within[block.scope]
        if call.block.is_within(block)
    ]
    explicit = [call for call in calls if _synchronizes(facts, call)]
    if explicit and any(call.name in _CLOCKS for call in calls):
        return  # a benchmark waits on purpose
    for call in calls:
        if call.line not in reads and (shown := _shown_read(facts, call, step.regions)):
            reads[call.line] = (call, shown)
    trains = {id(call.block) for call in calls if call.name == "backward"}
    covered = _run_each_time(step.regions, [call.block for call, _ in reads.values()], trains)
    reads = {line: one for line, one in reads.items() if one[0].block in covered}
    if not reads:
        return
    first = min(reads, key=lambda line: (not _synchronizes(facts, reads[line][0]), line))
    call, shown = reads.pop(first)
    lines = ", ".join(map(str, sorted(reads)))
    also = f" (and so does line {lines})" if len(reads) == 1 else f" (and so do lines {lines})"
    remedy = (
        "leave it out"
        if _synchronizes(facts, call)
        else "keep the tensor (detach()) and read it every hundredth step or after the loop"
    )
    yield (
        call.node,
        "XL030",
        f"{shown} at every step waits for the device{also if reads else ''}; {remedy}",
    )


def _run_each_time(regions: tuple[Block, ...], blocks: list[Block], trains: set[int]) -> set[Block]:
    """The blocks of which one runs in each step: both branches of a condition are two."""
    ends = set(regions)
    climbed: dict[tuple[int, str], set[Block]] = {}
    """By a statement and its part: the blocks of reads that run whenever that part does."""
    covered: set[Block] = set()
    pending: list[tuple[Block, set[Block]]] = [(block, {block}) for block in blocks]
    while pending:
        block, of = pending.pop()
        if block in ends:
            covered |= of
        elif block.parent is None or block.part in ("loop", "handlers"):
            continue
        elif isinstance(block.node, ast.If | ast.IfExp) and id(block) not in trains:
            other = "orelse" if block.part == "body" else "body"
            climbed.setdefault((id(block.node), block.part), set()).update(of)
            if beside := climbed.get((id(block.node), other)):
                pending.append((block.parent, of | beside))
        elif block.parent.scope is block.scope:
            pending.append((block.parent, of))
    return covered


def _synchronizes(facts: FileFacts, call: Call) -> bool:
    """**Ex.:** ``torch.cuda.synchronize()``."""
    full = facts.full(call.node.func, call.scope) if call.name == "synchronize" else None
    return full in ("torch.cuda.synchronize", "torch.xpu.synchronize", "torch.mps.synchronize")


def _shown_read(facts: FileFacts, call: Call, regions: tuple[Block, ...]) -> str | None:
    """What a call reads, if it reads what a model or a loss computed in this step."""
    if _synchronizes(facts, call):
        return f"{dotted(call.node.func)}()"
    if call.name in _SHOWS:
        arguments = [*call.node.args, *(option.value for option in call.node.keywords)]
        parts = [part for value in arguments for part in _formatted(value)]
        for part in parts:
            if (
                not isinstance(part, ast.Call)
                and _is_loss(part)
                and _is_computed(part, call, regions)
            ):
                return f"{call.name}() of {dotted(part) or 'a tensor'}"
    if call.receiver is None or _is_needed(facts, call):
        return None
    reads = (call.name == "item" and _is_computed(call.receiver, call, regions)) or (
        # Outputs are copied because they are needed on the CPU; losses, to be shown.
        call.name in ("cpu", "tolist") and _is_loss(call.receiver)
    )
    return f"{dotted(call.receiver) or 'a tensor'}.{call.name}()" if reads else None


def _formatted(node: ast.expr) -> list[ast.expr]:
    """What a text shows. **Ex.:** ``loss`` of ``f"{loss:.3f}"`` and of ``"%.3f" % loss``."""
    if isinstance(node, ast.JoinedStr):
        return [value.value for value in node.values if isinstance(value, ast.FormattedValue)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return list(node.right.elts) if isinstance(node.right, ast.Tuple) else [node.right]
    return [node]


def _is_needed(facts: FileFacts, call: Call) -> bool:
    """Whether the step decides by the value. **Ex.:** a check for NaN, an action of an environment."""
    if isinstance(call.parent, ast.Compare):
        return True
    if isinstance(call.parent, ast.Call):
        name = (dotted(call.parent.func) or "").rpartition(".")[2]
        return name in ("step", "isnan", "isfinite", "isinf")
    if not isinstance(call.parent, ast.Assign):
        return False
    names = {target.id for target in call.parent.targets if isinstance(target, ast.Name)}
    return any(
        isinstance(part, ast.Name) and part.id in names
        for test, block in facts.tests
        if block.scope is call.scope
        for part in ast.walk(test)
    )


def _is_loss(node: ast.expr) -> bool:
    return "loss" in ast.unparse(node).lower()


def _is_computed(node: ast.expr, call: Call, regions: tuple[Block, ...]) -> bool:
    """Whether a step computes an expression; a batch as the loader gives it is on the CPU."""
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return any(
        binding.how in ("is", "item")
        and any(binding.block.is_within(block) for block in regions)
        and not _is_number(binding.node)
        for name in names
        for binding in call.scope.bindings.get(name, ())
    ) or (isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute))


def _is_number(value: ast.AST | None) -> bool:
    """Whether a value is a number already. **Ex.:** ``shown = loss.item()``."""
    func = value.func if isinstance(value, ast.Call) else value
    name = (dotted(func) or "").rpartition(".")[2]
    return isinstance(func, ast.Constant) or name in ("item", "numpy", "tolist", "float", "int")
