# SPDX-License-Identifier: Apache-2.0
"""Evaluations: while Dropout and BatchNorm are in training mode (XL025), and with gradients (XL101)."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator

from xlaunch.doctor.lint.facts import Block, Call, FileFacts, Function, Problem, Scope, dotted
from xlaunch.doctor.lint.source import SkippedError, read_source

_LAYERS = re.compile(r"(Dropout|(Sync)?BatchNorm)([1-3]d)?$")
"""Layers of torch that compute something else while they train."""
_MODELS = re.compile(
    r"torchvision\.models\.(alexnet|densenet|efficientnet|googlenet|inception|mobilenet|resnet|"
    r"resnext|shufflenet|vgg|vit_|swin_|regnet|mnasnet|wide_resnet)|timm\.create_model$"
)
"""Functions that return models with such layers."""
_SETS_MODE = re.compile(r"((set|switch|to)_)*(eval|mode|train_mode|eval_mode|training)$")
_EVALUATION_DATA = re.compile(
    r"(?<![a-z])(val|valid|validation|test|eval|dev)(?![a-z])|loader", re.IGNORECASE
)
_COUNTS = re.compile(r"correct|acc|loss|argmax|topk|metric|score|pred|\.max\(", re.IGNORECASE)
_OWN_MODES = frozenset(
    ("pytorch_lightning", "lightning", "ignite", "fastai", "skorch", "tensorflow")
)
"""Frameworks that set the mode themselves."""
_DEPTH = 6


def check_evaluation(facts: FileFacts) -> Iterator[Problem]:
    """Loops that evaluate the model of this file's training, which no `eval()` or `no_grad` reaches."""
    if facts.modules() & _OWN_MODES or not (facts.called["backward"] and facts.called["step"]):
        return
    layer = _layer(facts)
    models = _trained(facts)
    seen = set()
    for call in facts.calls if models else ():
        loop = next((one for one in call.block.loops() if isinstance(one.node, ast.For)), None)
        name = dotted(call.node.func)
        if loop is None or id(loop) in seen or name is None or name.split(".")[-1] not in models:
            continue
        if not _evaluates(facts, loop):
            continue
        seen.add(id(loop))
        if layer is not None and not _is_reached(facts, call, _mode_is_set, _DEPTH):
            yield (
                call.node,
                "XL025",
                f"{name} is evaluated as in training: {layer} is active, and no eval() comes before "
                f"this loop; write {name}.eval() above it, and {name}.train() before training goes on",
            )
        if not _is_reached(facts, call, _gradients_are_off, _DEPTH):
            yield (
                call.node,
                "XL101",
                f"{name} is evaluated with gradients: what backward() would need stays in memory; put "
                f"the loop under with torch.no_grad()",
            )


def _layer(facts: FileFacts) -> str | None:
    """What in this file computes something else in training mode."""
    for call in facts.calls:
        full = facts.full(call.node.func, call.scope) or ""
        if _MODELS.match(full) or (full.startswith("torch.nn.") and _LAYERS.search(full)):
            return "Dropout or BatchNorm" if _MODELS.match(full) else call.name
    for name, node, block in facts.imports:
        at_top = isinstance(node, ast.ImportFrom) and block.scope is facts.module
        layer = _layer_beside(facts.directory, name) if at_top else None
        if layer is not None:
            return layer
    return None


def _layer_beside(directory: str, name: str) -> str | None:
    """What a class of a file beside this one has, or what a function there may build.

    **Ex.:** `name` is ``models.Net``, or ``models.build_net``.
    """
    module, _, wanted = name.rpartition(".")
    path = os.path.join(directory, *module.split(".")) + ".py"
    if not os.path.isfile(path):
        return None
    try:
        tree = read_source(path).tree
    except (SkippedError, SyntaxError):
        return None
    builds = any(isinstance(node, ast.FunctionDef) and node.name == wanted for node in tree.body)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (builds or node.name == wanted):
            names = [dotted(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)]
            last = [one.rpartition(".")[2] for one in names if one is not None]
            if found := next((one for one in last if _LAYERS.match(one)), None):
                return found
    return None


def _trained(facts: FileFacts) -> set[str]:
    """The last parts of names of models whose parameters this file gives to an optimizer.

    **Ex.:** ``model`` for ``SGD(self.model.parameters())`` and for ``model.train()``.
    """
    names = {
        dotted(call.receiver) for call in facts.named("parameters", "named_parameters", "train")
    }
    models = {name.rpartition(".")[2] for name in names if name is not None} - {"self"}
    for call in facts.calls:  # a function may call its model otherwise
        passed = [dotted(one) or "" for one in call.node.args]
        function = facts.definition(call) if models & set(passed) else None
        if isinstance(function, Function):
            named = [one.arg for one in function.args.args if one.arg != "self"]
            models |= {own for own, one in zip(named, passed, strict=False) if one in models}
    return models


def _evaluates(facts: FileFacts, loop: Block) -> bool:
    """Whether a loop over evaluation data measures a model and trains nothing."""
    assert isinstance(loop.node, ast.For)
    source = ast.unparse(loop.node.iter)
    function = loop.scope.node.name if isinstance(loop.scope.node, Function) else ""
    takes_next = source.startswith("range(") and any(
        call.name == "next" for call in facts.within[loop.scope] if call.block.is_within(loop)
    )
    if (
        not _EVALUATION_DATA.search(function.replace("_", " ") if takes_next else source)
        or "train" in source
        or re.search(
            r"bn|calib|dropout|uncertain|train|stat|find|adv|attack", function, re.IGNORECASE
        )
    ):
        return False
    inside = [call for call in facts.within[loop.scope] if call.block.is_within(loop)]
    trains = any(
        call.name in ("backward", "step", "zero_grad") or "train" in call.name for call in inside
    )
    return (
        not trains
        and not _calls_training(facts, inside)
        and bool(_COUNTS.search("\n".join(map(ast.unparse, loop.node.body))))
    )


def _calls_training(facts: FileFacts, calls: list[Call]) -> bool:
    """Whether one of the calls runs a function of this file that calls ``backward()``."""
    training = {
        call.scope.node.name
        for call in facts.called["backward"]
        if isinstance(call.scope.node, Function)
    }
    return any(call.name in training for call in calls)


def _is_reached(
    facts: FileFacts, call: Call, sets: Callable[[FileFacts, Call], bool], depth: int
) -> bool:
    """Whether `sets` holds where a call is made, or where the function around it may be called."""
    scope = call.scope
    if sets(facts, call):
        return True
    if not isinstance(scope.node, Function) or not depth:
        return False
    callers = [one for one in facts.named(scope.node.name) if one.scope is not scope]
    if not callers:
        return any(sets(facts, one) for one in facts.calls)
    return any(_is_reached(facts, one, sets, depth - 1) for one in callers)


def _mode_is_set(facts: FileFacts, call: Call) -> bool:
    """Whether the function around a call sets the mode of a model."""
    return any(_sets_mode(one) for one in facts.within[call.scope]) or _calls_setter(
        facts, call.scope
    )


def _gradients_are_off(facts: FileFacts, call: Call) -> bool:
    """**Ex.:** in ``with torch.no_grad():``, in a function with that decorator."""
    around = [
        item.context_expr
        for one in call.block.ancestors()
        if isinstance(one.node, ast.With)
        for item in one.node.items
    ]
    decorators = [
        decorator
        for one in call.block.ancestors()
        if isinstance(one.node, Function)
        for decorator in one.node.decorator_list
    ]
    calls = [one.name for one in facts.within[call.scope]]
    return any(
        re.search(r"no_grad|inference_mode|grad_enabled", ast.unparse(one))
        for one in (*around, *decorators)
    ) or bool({"set_grad_enabled", "detach_", "requires_grad_"} & set(calls))


def _sets_mode(call: Call) -> bool:
    """**Ex.:** ``model.eval()``, ``model.train(False)``, ``set_mode(model, "eval")``."""
    if call.name == "train" and call.receiver is not None:
        given = [*call.node.args, *(one.value for one in call.node.keywords)]
        return bool(given) and not re.search(r"load|data|epoch|args|\d", ast.unparse(given[0]))
    named = _SETS_MODE.match(call.name) is not None
    return named and (call.receiver is not None or call.name != "eval")


def _calls_setter(facts: FileFacts, scope: Scope) -> bool:
    """Whether a function of this file that is called from here sets the mode."""
    setters = {
        call.scope.node.name
        for call in facts.calls
        if _sets_mode(call) and isinstance(call.scope.node, Function)
    }
    # A function that evaluates by itself ends with train() again.
    returns = {
        call.scope.node.name
        for call in facts.called["train"]
        if isinstance(call.scope.node, Function)
    }
    return any(call.name in setters - returns for call in facts.within[scope])
