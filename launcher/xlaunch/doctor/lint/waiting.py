# SPDX-License-Identifier: Apache-2.0
"""XL03x: what makes the device wait for the CPU; timing that does not wait."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Block, Call, Problem, Scope, dotted, operands
from xlaunch.doctor.lint.names import Kind
from xlaunch.doctor.lint.work import Work

_WAITING = frozenset(
    (
        "barrier", "block_until_ready", "cpu", "elapsed_time", "float", "item", "numpy",
        "print", "synchronize", "tolist", "wait",
    )
)  # fmt: skip
_CLOCKS = frozenset(
    f"time.{name}{unit}" for name in ("time", "perf_counter", "monotonic") for unit in ("", "_ns")
) | {"timeit.default_timer"}


def check_waiting(work: Work) -> Iterator[Problem]:
    """Reads in hot loops, and clocks around work that is queued."""
    if not work.uses_device:
        return
    lines = set()
    for step in work.steps:
        for call in work.within(step):
            if call.block.loops()[0] is not step or _is_conditional(call.block, step):
                continue
            if call.line not in lines and (problem := _read(work, call)) is not None:
                lines.add(call.line)
                yield problem
    yield from _timings(work)


def _read(work: Work, call: Call) -> Problem | None:
    if call.receiver is not None:
        # Outputs are copied because they are needed on the CPU; losses, to be shown.
        reads = call.name == "item" or (
            call.name in ("cpu", "tolist") and "loss" in ast.unparse(call.receiver).lower()
        )
        if reads and _is_computed(work, call.receiver, call.scope):
            return _wait(call.node, f"{dotted(call.receiver) or 'a tensor'}.{call.name}()")
    elif call.name in ("print", "float"):
        for given in call.node.args:
            parts: list[ast.expr] = [given]
            if isinstance(given, ast.JoinedStr):
                parts = [one.value for one in given.values if isinstance(one, ast.FormattedValue)]
            for part in parts:
                if not isinstance(part, ast.Call) and _is_computed(work, part, call.scope):
                    return _wait(call.node, f"{call.name}() of {dotted(part) or 'a tensor'}")
    return None


def _wait(node: ast.expr, shown: str) -> Problem:
    return (
        node,
        "XL030",
        f"{shown} at every step waits for the device; keep the tensor (detach()) and read it every "
        f"hundredth step or after the loop",
    )


def _is_computed(work: Work, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is made of what a model returned, or of a loss."""
    if isinstance(node, ast.Name):
        if work.names.is_kind(node, scope, Kind.TENSOR):
            home = scope.find(node.id)
            # A batch as the loader gives it is on the CPU already.
            return home is not None and any(one.how == "is" for one in home.bindings[node.id])
        return work.names.is_kind(node, scope, Kind.OUTPUT)
    inner: list[ast.expr] = []
    if isinstance(node, ast.Call):
        if work.facts.function(node.func, scope) is not None:
            return work.names.is_kind(node, scope, Kind.TENSOR, Kind.OUTPUT)
        if work.names.is_kind(node.func, scope, Kind.MODULE):
            return True
        inner = [*node.args]
        if isinstance(node.func, ast.Attribute):
            inner.append(node.func.value)
    elif isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and node.attr in ("shape", "device"):
            return False
        inner = [node.value]
    elif isinstance(node, ast.BinOp | ast.Compare):
        inner = operands(node)
    return any(_is_computed(work, one, scope) for one in inner)


def _is_conditional(block: Block, step: Block) -> bool:
    """Whether code in a loop runs in some rounds only."""
    for one in block.outwards():
        if one is step:
            return False
        if isinstance(one.node, ast.If | ast.IfExp | ast.Try):
            return True
    return False


def _timings(work: Work) -> Iterator[Problem]:
    for difference, block in work.facts.differences:
        position = (difference.lineno, difference.col_offset)
        start = _reading(work, difference.right, block, position)
        end = _reading(work, difference.left, block, position)
        if start is None or end is None:
            continue
        region = [
            call
            for call in work.facts.within[block.scope]
            if start < call.position
            and (call.node.end_lineno or 0, call.node.end_col_offset or 0) <= end
        ]
        called = next((one for one in work.module_calls if one.call in region), None)
        if called is None or not work.is_moved(called.text, called.call.scope):
            continue
        # Over the batches of a loader, what is still queued at the end hardly counts.
        over_loader = any(
            isinstance(loop.node, ast.For)
            and work.names.is_kind(loop.node.iter, loop.scope, Kind.LOADER)
            and start < (loop.node.lineno, 0)
            for loop in called.call.block.loops()
        )
        if not over_loader and not any(
            one.name in _WAITING or "sync" in one.name for one in region
        ):
            yield (
                difference,
                "XL031",
                f"this measures how long {called.text}() takes to be queued; call "
                f"torch.cuda.synchronize() before both clocks are read",
            )


def _reading(
    work: Work, node: ast.expr, block: Block, position: tuple[int, int]
) -> tuple[int, int] | None:
    """Where a clock was read for a value."""
    if work.names.call_name(node, block.scope) in _CLOCKS:
        return node.lineno, node.col_offset
    if isinstance(node, ast.Name):
        last = block.scope.last_binding(node.id, position)
        if (
            last is not None
            and last.how == "is"
            and isinstance(last.node, ast.expr)
            and work.names.call_name(last.node, block.scope) in _CLOCKS
        ):
            return last.position
    return None
