# SPDX-License-Identifier: Apache-2.0
"""Loaders of data: built again in each epoch (XL033), not pinned (XL113), too many workers (XL104)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Call, FileFacts, Function, Problem, has_stars, keyword
from xlaunch.doctor.lint.source import usable_cpus
from xlaunch.doctor.lint.waits import steps

_LOADER = "torch.utils.data.DataLoader"
_DEPTH = 4


def check_loaders(facts: FileFacts) -> Iterator[Problem]:
    """Faults and hints about ``DataLoader``."""
    trains = steps(facts)
    copies = any(
        call.name in ("cuda", "to") and any(call.block.is_within(region) for region in step.regions)
        for step in trains
        for region in step.regions
        for call in facts.within[region.scope]
    )
    other_memory = "cuda" not in facts.words or facts.modules() & {"dgl", "torch_geometric"}
    cpus = usable_cpus()
    for call in facts.calls_named(_LOADER):
        workers = keyword(call.node, "num_workers")
        count = workers.value if isinstance(workers, ast.Constant) else None
        if trains and workers is not None and count != 0 and (loop := _epoch_of(facts, call)):
            yield (
                call.node,
                "XL033",
                f"the loop of line {loop.lineno} builds the same loader again and again, and its "
                f"workers start each time; build it once above, with persistent_workers=True",
            )
        pinned = keyword(call.node, "pin_memory")
        if copies and pinned is None and not other_memory and not has_stars(call.node):
            yield (
                call.node,
                "XL113",
                "batches are copied to a GPU from memory that is not pinned; pass pin_memory=True, "
                "and non_blocking=True to the copies",
            )
        if isinstance(count, int) and count > cpus:
            yield (
                call.node,
                "XL104",
                f"num_workers={count} is more than the {cpus} CPUs of this process; take "
                f"len(os.sched_getaffinity(0))",
            )


def _epoch_of(facts: FileFacts, call: Call, depth: int = _DEPTH) -> ast.For | None:
    """The loop over epochs that makes the same loader in each round."""
    loops = [around for around in call.block.loops() if isinstance(around.node, ast.For)]
    if loops:
        loop = loops[-1]
        assert isinstance(loop.node, ast.For)
        head = f"{ast.unparse(loop.node.target)} {ast.unparse(loop.node.iter)}"
        is_epoch = re.search(r"epoch|iter", head, re.IGNORECASE) is not None
        arguments = [*call.node.args, *(option.value for option in call.node.keywords)]
        parts = [part for value in arguments for part in ast.walk(value)]
        # An argument may have another value in each round.
        changes = any(
            binding.block.is_within(loop)
            for name in {part.id for part in parts if isinstance(part, ast.Name)}
            for binding in call.scope.bindings.get(name, ())
        )
        return loop.node if is_epoch and not changes else None
    if not isinstance(call.scope.node, Function) or not depth:
        return None
    callers = [
        other
        for other in facts.calls_of(call.scope.node)
        if not any(isinstance(block.node, ast.If) for block in other.block.outwards())
    ]
    epochs = [_epoch_of(facts, caller, depth - 1) for caller in callers]
    return next((epoch for epoch in epochs if epoch is not None), None)
