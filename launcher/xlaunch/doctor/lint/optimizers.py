# SPDX-License-Identifier: Apache-2.0
"""Optimizers: of a model that is replaced afterwards (XL014), and not fused (XL106)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Call, FileFacts, Problem, argument, dotted, has_stars, keyword

_FUSED = frozenset(f"torch.optim.{name}" for name in ("Adam", "AdamW", "SGD", "Adagrad"))
_LAYERS = frozenset(
    ("Linear", "Sequential", "Conv1d", "Conv2d", "Conv3d", "Embedding", "LSTM", "GRU", "Parameter",
     "BatchNorm1d", "BatchNorm2d", "ModuleList", "LazyLinear", "ConvTranspose2d")
)  # fmt: skip
"""Classes of torch.nn with parameters."""


def check_optimizers(facts: FileFacts) -> Iterator[Problem]:
    """Faults and hints about the optimizers of torch."""
    hinted = False
    for call in facts.calls:
        full = facts.full(call.node.func, call.scope) or ""
        if not full.startswith("torch.optim.") or full.count(".") != 2:
            continue
        if (replaced := _replacement(facts, call)) is not None:
            target, line = replaced
            yield (
                call.node,
                "XL014",
                f"the optimizer has the parameters of {target} as it is here, and line {line} replaces "
                f"them: the new ones are never trained; build the optimizer below that line",
            )
        chosen = (
            keyword(call.node, "fused") or keyword(call.node, "foreach") or has_stars(call.node)
        )
        few = bool(call.node.args) and isinstance(call.node.args[0], ast.List)
        # Fused updates refuse sparse gradients.
        may_be_fused = full in _FUSED and not chosen and not few and "sparse" not in facts.words
        if may_be_fused and not hinted:
            hinted = True  # once a file
            yield (
                call.node,
                "XL106",
                "fused=True updates all parameters in one pass over memory, on cpu, cuda, xpu and mps",
            )


def _replacement(facts: FileFacts, call: Call) -> tuple[str, int] | None:
    """What is replaced after an optimizer took its parameters and before it is used, and where."""
    first = argument(call.node, 0, "params")
    if not isinstance(first, ast.Call) or not isinstance(first.func, ast.Attribute):
        return None
    model = dotted(first.func.value) if first.func.attr == "parameters" else None
    targets = call.parent.targets if isinstance(call.parent, ast.Assign) else []
    optimizer = dotted(targets[0]) if len(targets) == 1 else None
    if model is None or optimizer is None or "." in optimizer.removeprefix("self."):
        return None
    used = facts.last_read.get((call.scope, optimizer), 0)
    if optimizer.startswith("self."):  # other methods use it
        used = sys.maxsize
    bindings = call.scope.find_bindings(optimizer)
    again = max((getattr(binding.node, "lineno", 0) for binding in bindings), default=0)
    for target, value, block in facts.assignments:
        after = block.scope is call.scope and call.line < target.lineno < used
        if after and again <= call.line and _replaces(facts, target, value, model, call):
            return ast.unparse(target), target.lineno
    return None


def _replaces(facts: FileFacts, target: ast.expr, value: ast.expr, model: str, call: Call) -> bool:
    """Whether an assignment puts new parameters into a model, or another model in its place."""
    if not isinstance(value, ast.Call):
        return False
    module, _, name = (facts.full(value.func, call.scope) or "").rpartition(".")
    owner: ast.expr = target
    while isinstance(owner, ast.Attribute | ast.Subscript) and dotted(owner) != model:
        owner = owner.value
    if dotted(owner) != model:
        return False
    if owner is not target:
        return module == "torch.nn" and name in _LAYERS
    names = {dotted(part) for part in ast.walk(value) if isinstance(part, ast.Name | ast.Attribute)}
    if model in names or facts.full(value.func, call.scope) in ("torch.load", "copy.deepcopy"):
        return model not in names
    makers = [
        _maker(binding.node)
        for binding in call.scope.find_bindings(model)
        if binding.node is not value
    ]
    return _maker(value) in makers


def _maker(node: ast.AST | None) -> str | None:
    """**Ex.:** ``Net`` for ``Net().to(device)``."""
    while isinstance(node, ast.Call):
        if dotted(node.func) is not None:
            return dotted(node.func)
        node = node.func.value if isinstance(node.func, ast.Attribute) else None
    return None
