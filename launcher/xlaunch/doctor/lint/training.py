# SPDX-License-Identifier: Apache-2.0
"""Evaluations: while Dropout and BatchNorm are in training mode (XL025), and with gradients (XL111)."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Callable, Iterator

from xlaunch.doctor.lint.facts import (
    Block,
    Call,
    FileFacts,
    Function,
    Problem,
    Scope,
    dotted,
    keyword,
)
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
_EVALUATES = re.compile(
    r"(^|_)(val|valid(at\w+)?|test|eval|evaluat\w+|dev|infer\w*)(_|$)", re.IGNORECASE
)
"""Names of functions that evaluate a model."""
_OTHER_PURPOSES = re.compile(
    r"bn|calib|dropout|uncertain|train|stat|find|adv|attack", re.IGNORECASE
)
_MAX_FILES = 40
_RUNS = re.compile(r"(forward|module|infer\w*|predict\w*)$")
"""Methods of models that compute outputs."""
_COUNTS = re.compile(r"correct|acc|loss|argmax|topk|metric|score|pred|\.max\(", re.IGNORECASE)
_SCORES = re.compile(r"(argmax|topk|correct|\.max\()[\s\S]*==")
"""Without gradients, what compares outputs with labels is an evaluation, whatever it is called."""
_OWN_MODES = frozenset(
    ("pytorch_lightning", "lightning", "ignite", "fastai", "skorch", "tensorflow")
)
"""Frameworks that set the mode themselves."""
_MODES = ("train", "eval")
_GRADIENTS_OFF = {"set_grad_enabled", "detach_", "requires_grad_"}
_DEPTH = 6


def check_evaluation(facts: FileFacts) -> Iterator[Problem]:
    """Loops that evaluate the model of this file's training, which no `eval()` or `no_grad` reaches."""
    if facts.modules() & _OWN_MODES or not (facts.called["backward"] and facts.called["step"]):
        return
    models = trained_models(facts)
    seen = set()
    for call in facts.calls if models else ():
        name = _evaluated_model(facts, call, models)
        region = _region(facts, call) if name is not None else None
        if name is None or region is None or id(region) in seen:
            continue
        is_off = _gradients_are_off(facts, call, name) is True
        if not _evaluates(facts, region, is_off=is_off):
            continue
        seen.add(id(region))
        layer = None if _holds(facts, call, name, _mode_is_set) else _layer(facts)
        if layer is not None:
            yield (
                call.node,
                "XL025",
                f"{name} is evaluated as in training: {layer} is active, and no eval() comes before "
                f"this loop; write {name}.eval() above it, and {name}.train() before training goes on",
            )
        is_old = "volatile" in facts.words  # of torch before 0.4
        if not is_old and not _holds(facts, call, name, _gradients_are_off):
            yield (
                call.node,
                "XL111",
                f"{name} is evaluated with gradients: what backward() would need stays in memory; put "
                f"the loop under with torch.no_grad()",
            )


def _evaluated_model(facts: FileFacts, call: Call, models: set[str]) -> str | None:
    """The model that a call runs. **Ex.:** ``model`` for ``model(x)`` and ``model.module(x)``."""
    name = dotted(call.node.func) or ""
    owner, _, method = name.rpartition(".")
    if method in models:
        return name
    owner = owner.removesuffix(".module")
    if owner.rpartition(".")[2] not in models or not _RUNS.match(method):
        return None
    own = [scope for scope in facts.within if _name_of(scope) == method]
    sets_mode = any(_sets_mode(other) for scope in own for other in facts.within[scope])
    return owner if (own or method in ("forward", "module")) and not sets_mode else None


def _region(facts: FileFacts, call: Call) -> Block | None:
    """The loop that calls a model, or the function that evaluates it without a loop."""
    loops = [block for block in call.block.loops() if isinstance(block.node, ast.For)]
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
        if full.startswith("torch.nn.") and (match := _LAYERS.search(full)):
            return match[0]
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
    layers = (_layer_in(os.path.join(path, name), wanted, is_whole=True) for name in files)
    return next((layer for layer in layers if layer is not None), None)


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
        names = [dotted(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)]
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
        passed = [dotted(value) or "" for value in call.node.args]
        function = facts.definition(call) if models & set(passed) else None
        if isinstance(function, Function):
            named = [parameter.arg for parameter in function.args.args if parameter.arg != "self"]
            models |= {own for own, one in zip(named, passed, strict=False) if one in models}
    return models


def _evaluates(facts: FileFacts, region: Block, *, is_off: bool) -> bool:
    """Whether a loop or function measures a model and trains nothing; `is_off`: without gradients."""
    loop, name = region.node, _name_of(region.scope)
    source = ast.unparse(loop.iter) if isinstance(loop, ast.For) else ""
    is_named = _EVALUATES.search(name) is not None
    is_measure = is_off and _SCORES.search(ast.unparse(loop)) is not None
    if not (is_named or is_measure or _EVALUATION_DATA.search(source)) or "train" in source:
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
    training = {_name_of(call.scope) for call in facts.called["backward"]} - {""}
    return (
        not trains
        and not any(call.name in training for call in inside)
        and bool(_COUNTS.search("\n".join(map(ast.unparse, body))))
    )


def _callers(facts: FileFacts, scope: Scope) -> list[Call]:
    """The calls that may run a function: of a method through an object, of a function by its name."""
    is_method = scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef)
    return [
        call
        for call in facts.named(_name_of(scope))
        if call.scope is not scope
        and (call.receiver is not None) == is_method
        and not (call.name in _MODES and not call.node.args and _is_module(facts, call))
    ]


def _is_module(facts: FileFacts, call: Call) -> bool:
    """Whether what a method is called of has parameters. **Ex.:** ``model`` of ``model.train()``."""
    owner = dotted(call.receiver)
    used = facts.named("parameters", "named_parameters", "state_dict", "load_state_dict", "eval")
    return owner is not None and owner in [dotted(other.receiver) for other in used]


def _holds(
    facts: FileFacts,
    call: Call,
    model: str,
    decide: Callable[[FileFacts, Call, str], bool | None],
    depth: int = _DEPTH,
) -> bool:
    """Whether something may hold where a model is called, or else where that function may be called.

    `decide` returns None where it cannot tell from the function around the call.
    """
    decided = decide(facts, call, model)
    if decided is not None or not isinstance(call.scope.node, Function) or not depth:
        return decided is True
    callers = _callers(facts, call.scope)
    if not callers:
        return any(decide(facts, other, model) for other in facts.calls)
    return any(
        _holds(facts, other, _passed(other, call.scope, model), decide, depth - 1)
        for other in callers
    )


def _mode_is_set(facts: FileFacts, call: Call, model: str) -> bool | None:
    """Whether the last change of the mode before a call is an ``eval()``; None without one."""
    loops = set(call.block.loops())
    last = call.node.end_lineno or call.line
    around = facts.within[call.scope]
    before = [other for other in around if other.line <= last]
    # What follows in the same loop comes before the next round.
    before[:0] = [other for other in around if other.line > last and loops & {*other.block.loops()}]
    trains = [other for other in facts.called["train"] if not _sets_mode(other)]
    setters = {_name_of(other.scope) for other in facts.calls if _sets_mode(other)} - {""}
    trainers = {_name_of(other.scope) for other in trains} - {""}
    for other in reversed(before):  # a function that sets both modes is passed over
        if other.name in setters - trainers - {call.name} or (
            _sets_mode(other) and not _is_of_another(other, model)
        ):
            return True
        sets_training = other.name in trainers - setters
        sets_training |= other.name == "train" and _is_module(facts, other)
        if sets_training and other is not call and call.block.is_within(_around(other.block)):
            return False
    return None


def _around(block: Block) -> Block:
    """The block without the loops and ``with`` statements around it: what always runs, once or more."""
    while block.parent is not None and (
        block.part == "loop" or isinstance(block.node, ast.With | ast.AsyncWith)
    ):
        block = block.parent
    return block


def _is_of_another(call: Call, model: str) -> bool:
    """Whether a method is called of another model: another parameter, or one that is made there.

    **Ex.:** ``teacher.eval()``, ``teacher = Net().eval()``.
    """
    owner = dotted(call.receiver)
    bound = call.scope.bindings
    if owner is None:
        target = call.parent.targets[0] if isinstance(call.parent, ast.Assign) else None
        makers = [ast.unparse(maker.node) for maker in bound.get(model, ()) if maker.node]
        return isinstance(target, ast.Name) and not any(
            re.search(rf"\b{target.id}\b", text) for text in (model, *makers)
        )
    ways = [binding.how for name in (owner, model) for binding in bound.get(name, ())]
    return owner != model and ways == ["parameter", "parameter"]


def _passed(call: Call, scope: Scope, name: str) -> str:
    """What a call of a function passes as its parameter `name`; `name` for what is no parameter."""
    assert isinstance(scope.node, Function)
    own = [parameter.arg for parameter in scope.node.args.args if parameter.arg != "self"]
    argument_of = dict(zip(own, call.node.args, strict=False))
    return dotted(argument_of.get(name) or keyword(call.node, name)) or name


def _gradients_are_off(facts: FileFacts, call: Call, _: str) -> bool | None:
    """**Ex.:** in ``with torch.no_grad():``, in a function with that decorator; None elsewhere."""
    around = [
        item.context_expr
        for block in call.block.ancestors()
        if isinstance(block.node, ast.With)
        for item in block.node.items
    ]
    decorators = [
        decorator
        for region in call.block.ancestors()
        if isinstance(region.node, Function)
        for decorator in region.node.decorator_list
    ]
    text = " ".join(map(ast.unparse, (*around, *decorators)))
    calls = {other.name for other in facts.within[call.scope]}
    off = calls & _GRADIENTS_OFF or re.search(r"no_grad|inference_mode|grad_enabled", text)
    return True if off else None


def _sets_mode(call: Call) -> bool:
    """**Ex.:** ``model.eval()``, ``model.train(False)``, ``set_mode(model, "eval")``."""
    if call.name == "train" and call.receiver is not None:
        arguments = [*call.node.args, *(option.value for option in call.node.keywords)]
        return bool(arguments) and not re.search(
            r"load|data|epoch|args|\d|True", ast.unparse(arguments[0])
        )
    if call.name == "eval":
        return call.receiver is not None and not call.node.args
    return _SETS_MODE.match(call.name) is not None
