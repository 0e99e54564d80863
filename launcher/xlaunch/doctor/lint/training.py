# SPDX-License-Identifier: Apache-2.0
"""XL02x: evaluation in training mode, and loaders that are built again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import (
    Block,
    Function,
    Problem,
    dotted,
    has_stars,
    keyword,
    looped_over,
)
from xlaunch.doctor.lint.names import Kind
from xlaunch.doctor.lint.work import ModuleCall, Work

_MODE_MATTERS = re.compile(r"(?i)drop|batch_?norm|instance_?norm|rrelu|transformer|\.bn|models\.")
_EVALUATION = re.compile(
    r"^(test|val)|(^|_)(test|val|valid|validate|validation|eval|evaluate|evaluation|dev)(_|$)"
)


def check_training(work: Work) -> Iterator[Problem]:
    """Evaluation in the right mode, and loaders that are built once."""
    if not work.is_managed:
        yield from _evaluations(work)
    yield from _rebuilt_loaders(work)


def _evaluations(work: Work) -> Iterator[Problem]:
    facts = work.facts
    switches = any("eval_mode" in word for word in facts.words) or any(
        (call.name == "eval" and not call.node.args)
        or (call.name == "train" and call.passed and facts.definition(call) is None)
        for call in facts.named("eval", "train")
    )
    if switches or not work.backwards or "step" not in facts.words:
        return
    for loop in facts.loops:
        called = _evaluated(work, loop)
        if called is not None and _mode_matters(work, called):
            yield (
                called.call.node,
                "XL020",
                f"{called.text} is evaluated in training mode: dropout and batch normalization act; "
                f"call {called.text}.eval() before, and train() after",
            )


def _evaluated(work: Work, loop: Block) -> ModuleCall | None:
    """The model that a loop evaluates: it goes over test data, or its function is named so."""
    node, function = loop.node, loop.scope.node
    if not isinstance(node, ast.For) or any(one.block.is_within(loop) for one in work.backwards):
        return None
    called = [
        one for one in work.module_calls if one.call.block.is_within(loop) and not one.is_loss
    ]
    if not called or called[0].call.block.loops()[0] is not loop:  # a loop of epochs
        return None
    source, _ = looped_over(node.iter)
    data = (dotted(source) or "").rpartition(".")[2].lower()
    name = function.name.lower() if isinstance(function, Function) else ""
    is_loader = "load" in data or data.endswith(("_dl", "_iter"))
    if not is_loader and not work.names.is_kind(source, loop.scope, Kind.LOADER):
        return None
    trains_here = any(call.scope is loop.scope for call in work.backwards)
    for_evaluation = _EVALUATION.search(name) and not trains_here
    return called[0] if _EVALUATION.search(data) or for_evaluation else None


def _mode_matters(work: Work, called: ModuleCall) -> bool:
    """Whether a model behaves differently in evaluation, as far as its code shows."""
    origin, definition = called.value.origin, called.value.definition
    if definition is not None:
        # Its parts may be other classes of this file.
        scope = work.facts.functions[definition]
        bases = [work.names.full(base, scope) or "" for base in definition.bases]
        inherits = not all(base.startswith("torch.nn.") for base in bases)
        return inherits or _MODE_MATTERS.search(" ".join(work.facts.words)) is not None
    if origin is not None and (called.value.name or "").startswith("torch.nn."):
        return bool(_MODE_MATTERS.search(ast.unparse(origin)))
    # Models from pretrained weights of transformers begin in evaluation mode.
    return not (called.value.name or "").startswith("transformers.")


def _rebuilt_loaders(work: Work) -> Iterator[Problem]:
    for call in work.names.calls_named("torch.utils.data.DataLoader"):
        workers = keyword(call.node, "num_workers")
        if workers is None or (isinstance(workers, ast.Constant) and not workers.value):
            continue
        places = [call]
        if isinstance(call.scope.node, Function) and not call.block.loops():
            places += work.facts.calls_of(call.scope.node)
        for place in () if has_stars(call.node) else places:
            loops = [one for one in place.block.loops() if _is_of_epochs(one)]
            if loops and not _names_in(place.node) & _bound_in(loops[0]):
                yield (
                    call.node,
                    "XL023",
                    "every epoch builds this DataLoader and starts its workers again; build it before "
                    "the loop, with persistent_workers=True",
                )
                break


def _is_of_epochs(loop: Block) -> bool:
    node = loop.node
    return (
        isinstance(node, ast.For)
        and "epoch" in (ast.unparse(node.target) + ast.unparse(node.iter)).lower()
    )


def _names_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _bound_in(loop: Block) -> set[str]:
    """The names that a loop binds."""
    return {
        name
        for name, bindings in loop.scope.bindings.items()
        if any(binding.block.is_within(loop) for binding in bindings)
    }
