# SPDX-License-Identifier: Apache-2.0
"""Evaluations: while Dropout and BatchNorm are in training mode (XL025), and with gradients (XL111)."""

from __future__ import annotations

import ast
import functools
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
_EVALUATES = re.compile(r"(^|_)(val|valid(at\w+)?|test|eval|evaluat\w+|dev)(_|$)", re.IGNORECASE)
"""Names of functions that evaluate a model."""
_OTHER_PURPOSES = re.compile(
    r"bn|calib|dropout|uncertain|train|stat|find|adv|attack", re.IGNORECASE
)
_MAX_FILES = 40
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
    models = trained_models(facts)
    seen = set()
    for call in facts.calls if models else ():
        name = dotted(call.node.func)
        if name is None or name.split(".")[-1] not in models:
            continue
        region = _region(facts, call)
        if region is None or id(region) in seen or not _evaluates(facts, region):
            continue
        seen.add(id(region))
        unset = not _is_reached(facts, call, _mode_is_set, _DEPTH)
        layer = _layer(facts) if unset else None
        if layer is not None:
            yield (
                call.node,
                "XL025",
                f"{name} is evaluated as in training: {layer} is active, and no eval() comes before "
                f"this loop; write {name}.eval() above it, and {name}.train() before training goes on",
            )
        is_old = "volatile" in facts.words  # of torch before 0.4
        if not is_old and not _is_reached(facts, call, _gradients_are_off, _DEPTH):
            yield (
                call.node,
                "XL111",
                f"{name} is evaluated with gradients: what backward() would need stays in memory; put "
                f"the loop under with torch.no_grad()",
            )


def _region(facts: FileFacts, call: Call) -> Block | None:
    """The loop that calls a model, or the function that evaluates it without a loop."""
    loops = [one for one in call.block.loops() if isinstance(one.node, ast.For)]
    if loops:
        return loops[0]
    function = call.scope.node
    called = isinstance(function, Function) and bool(facts.calls_of(function))
    return call.scope.block if called and _EVALUATES.search(_name_of(call.scope)) else None


def _name_of(scope: Scope) -> str:
    return scope.node.name if isinstance(scope.node, Function) else ""


def _layer(facts: FileFacts) -> str | None:
    """What in this file computes something else in training mode."""
    for attribute, _, block in facts.attributes:
        full = facts.full(attribute, block.scope) or ""
        if full.startswith("torch.nn.") and (found := _LAYERS.search(full)):
            return found[0]
    for call in facts.calls:
        full = facts.full(call.node.func, call.scope) or ""
        if _MODELS.match(full) or (full.startswith("torch.nn.") and _LAYERS.search(full)):
            return "Dropout or BatchNorm" if _MODELS.match(full) else call.name
    for name, node, block in facts.imports:
        if block.scope is not facts.module:
            continue
        is_from = isinstance(node, ast.ImportFrom)
        module, wanted = (
            (name.rpartition(".")[0], name.rpartition(".")[2]) if is_from else (name, "")
        )
        for top in (facts.directory, os.path.dirname(facts.directory)):
            layer = _layer_beside(os.path.join(top, *module.split(".")), wanted)
            if layer is not None:
                return layer
    return None


def _layer_beside(path: str, wanted: str) -> str | None:
    """What a class of a module or package beside this file has, or what a function there may build.

    **Ex.:** `path` is ``models``, and `wanted` ``Net``, ``build_net``, ``*``, or empty for ``import``.
    """
    if os.path.isfile(f"{path}.py"):
        return _layer_in(f"{path}.py", wanted, is_whole=False)
    if not wanted or not os.path.isfile(os.path.join(path, "__init__.py")):
        return None
    files = sorted(name for name in os.listdir(path) if name.endswith(".py"))[:_MAX_FILES]
    found = (_layer_in(os.path.join(path, name), wanted, is_whole=True) for name in files)
    return next((one for one in found if one is not None), None)


@functools.lru_cache(maxsize=256)
def _layer_in(path: str, wanted: str, *, is_whole: bool) -> str | None:
    """What the class `wanted` of a file has, or any class where a function of that name is.

    With `is_whole`, nothing is found in files that do not define `wanted`.
    """
    try:
        tree = read_source(path).tree
    except (SkippedError, SyntaxError):
        return None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    named = [node for node in classes if node.name == wanted]
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if is_whole and wanted != "*" and not named and wanted not in functions:
        return None
    for node in named or classes:
        names = [dotted(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)]
        for name in names:
            if name is not None and _LAYERS.match(name.rpartition(".")[2]):
                return name.rpartition(".")[2]
    return None


def trained_models(facts: FileFacts) -> set[str]:
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


def _evaluates(facts: FileFacts, region: Block) -> bool:
    """Whether a loop or function measures a model and trains nothing."""
    loop, name = region.node, _name_of(region.scope)
    source = ast.unparse(loop.iter) if isinstance(loop, ast.For) else ""
    is_named = _EVALUATES.search(name) is not None
    if not (is_named or _EVALUATION_DATA.search(source)) or "train" in source:
        return False
    if _OTHER_PURPOSES.search(name):
        return False
    inside = [call for call in facts.within[region.scope] if call.block.is_within(region)]
    trains = any(
        call.name in ("backward", "step", "zero_grad")
        or ("train" in call.name and call.name != "train")
        for call in inside
    )
    measured = region.scope.node if is_named else loop
    body = measured.body if isinstance(measured, ast.For | Function) else []
    return (
        not trains
        and not _calls_training(facts, inside)
        and bool(_COUNTS.search("\n".join(map(ast.unparse, body))))
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
        return bool(given) and not re.search(r"load|data|epoch|args|\d|True", ast.unparse(given[0]))
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
