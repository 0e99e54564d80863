# SPDX-License-Identifier: Apache-2.0
"""XL010: moves and conversions of tensors whose result is lost."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import (
    Binding,
    Call,
    FileFacts,
    Problem,
    Scope,
    dotted,
    looped_over,
    operands,
)
from xlaunch.doctor.lint.training import trained_models

_CONVERSIONS = (
    "bfloat16", "contiguous", "cpu", "cuda", "double", "float", "half", "long", "to", "xpu",
)  # fmt: skip
_MAKERS = frozenset(
    (
        "arange", "as_tensor", "cat", "empty", "empty_like", "eye", "from_numpy", "full",
        "full_like", "linspace", "ones", "ones_like", "rand", "rand_like", "randint", "randn",
        "randn_like", "randperm", "stack", "tensor", "zeros", "zeros_like",
    )
)  # fmt: skip
"""Functions of torch that return a tensor."""
_NOT_TENSORS = frozenset(
    ("backward", "data_ptr", "dim", "item", "nelement", "numel", "numpy", "size", "tolist")
)
"""Methods of tensors that return something else."""
_OTHER_BATCHES = frozenset(
    (
        "torch_geometric", "dgl", "transformers", "torchtext", "monai", "datasets", "accelerate",
        "detectron2", "nvidia", "ffcv",
    )
)  # fmt: skip
"""Libraries whose loaders give batches that are not tensors."""
_OF_TENSORS = frozenset(
    ("shape", "size", "dim", "unsqueeze", "squeeze", "view", "permute", "max", "min", "argmax",
     "mean", "sum", "reshape", "expand", "numel", "transpose", "detach")
)  # fmt: skip
_OF_MODULES = frozenset(
    ("parameters", "state_dict", "load_state_dict", "train", "eval", "forward", "modules", "apply",
     "named_parameters", "module", "add_module", "cleanup")
)  # fmt: skip
_DATA = re.compile(
    r"(loader|_dl|_iter|batches|prefetcher|(train|val|valid|test|eval)_?(data|set|ds))$"
)
"""Names of what gives batches."""
_BATCH = re.compile(r"(^|_)(batch|inputs?|samples?|targets?|encod\w*|features|tokens)$")
"""Names of what a loader gives: a list or a dictionary of tensors."""
_DEPTH = 30
"""Expressions that are nested deeper are not understood."""


def check_moves(facts: FileFacts) -> Iterator[Problem]:
    """Results of moves and conversions that are lost."""
    for call in facts.named(*_CONVERSIONS):
        text = dotted(call.receiver) or _entry_of_batch(facts, call)
        if text is None or not isinstance(call.parent, ast.Expr) or _is_trial(facts, call, text):
            continue
        remedy = _remedy_in_batch(call, text)
        if remedy is None:
            if (
                dotted(call.receiver)
                and not _is_tensor(facts, call.receiver, call.scope)
                and not _is_used_as_tensor(facts, call, text)
            ):
                continue
            target = _module_of_parameter(call.scope, text) or f"{text} = {text}"
            remedy = f"{target}.{_method(call)}"
        yield (
            call.node,
            "XL010",
            f"tensors are not moved or converted in place: the result of {text}.{call.name}() is "
            f"lost; write {remedy}",
        )


def _entry_of_batch(facts: FileFacts, call: Call) -> str | None:
    """The entry of a batch that is moved, if the results of moving other entries are kept; None for anything else.

    **Ex.:** ``batch["labels"]`` in a loop over batches that has ``ids = batch["ids"].to(device)``.
    """
    batch = _batch_of(call)
    kept = batch is not None and any(
        _batch_of(other) == batch
        and other.scope is call.scope
        and not isinstance(other.parent, ast.Expr)
        for other in facts.named(call.name)
    )
    return ast.unparse(call.receiver) if kept and call.receiver is not None else None


def _batch_of(call: Call) -> str | None:
    """The name, bound by a loop, of which a constant entry is moved."""
    entry = call.receiver
    if not isinstance(entry, ast.Subscript) or not isinstance(entry.slice, ast.Constant):
        return None
    name = dotted(entry.value)
    bindings = call.scope.find_bindings(name) if name else []
    return name if bindings and all(binding.how == "each" for binding in bindings) else None


def _method(call: Call) -> str:
    """**Ex.:** ``to(device)``."""
    arguments = [*map(ast.unparse, call.node.args), *map(ast.unparse, call.node.keywords)]
    return f"{call.name}({', '.join(arguments)})"


def _remedy_in_batch(call: Call, name: str) -> str | None:
    """What to write for a value of a batch; None if the name is not one of a loop over a batch.

    **Ex.:** ``batch[key] = value.to(device)`` in ``for key, value in batch.items()``.
    """
    bindings = call.scope.find_bindings(name)
    loop = bindings[0].block.node if len(bindings) == 1 else None
    if not isinstance(loop, ast.For):
        return None
    is_dictionary = isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Attribute)
    batch = dotted(loop.iter.func.value if is_dictionary else loop.iter)  # type: ignore[attr-defined]
    if batch is None or not _BATCH.search(batch):
        return None
    if is_dictionary and ast.unparse(loop.iter).endswith(".items()"):
        if isinstance(loop.target, ast.Tuple) and dotted(loop.target.elts[-1]) == name:
            return f"{batch}[{ast.unparse(loop.target.elts[0])}] = {name}.{_method(call)}"
    elif is_dictionary and ast.unparse(loop.iter).endswith(".values()"):
        return f"{batch} = {{key: {name}.{_method(call)} for key, {name} in {batch}.items()}}"
    elif dotted(loop.iter) == batch and dotted(loop.target) == name:
        return f"{batch} = [{name}.{_method(call)} for {name} in {batch}]"
    return None


def _module_of_parameter(scope: Scope, name: str) -> str | None:
    """**Ex.:** ``model`` of ``for name in model.parameters()``; modules move in place."""
    for binding in scope.find_bindings(name):
        if _is_parameter(binding):
            assert isinstance(binding.node, ast.Call)
            assert isinstance(binding.node.func, ast.Attribute)
            return ast.unparse(binding.node.func.value)
    return None


def _is_parameter(binding: Binding) -> bool:
    """Whether a loop over the parameters of a module binds a name."""
    func = binding.node.func if isinstance(binding.node, ast.Call) else None
    return (
        binding.how == "each"
        and isinstance(func, ast.Attribute)
        and func.attr in ("parameters", "buffers")
    )


def _is_trial(facts: FileFacts, call: Call, name: str) -> bool:
    """Whether a call is made to see if it fails: in ``with raises(...)``, or tried and not used."""
    for block in call.block.outwards():
        if isinstance(block.node, ast.Try):
            return facts.last_read.get((call.scope, name), 0) <= call.line
        if isinstance(block.node, ast.With) and re.search(
            "aises|warns", ast.unparse(block.node.items[0])
        ):
            return True
    return False


def _is_kept_beside(facts: FileFacts, call: Call, name: str) -> bool:
    """Whether a value that came with this one is moved beside it, and its result is kept.

    **Ex.:** ``x = x.cuda()`` for ``y.cuda()`` where ``x, y = load()``, or where both are items of a batch.
    """
    own = _sources(call.scope, name)
    return bool(own) and any(
        isinstance(other.parent, ast.Assign)
        and other.block is call.block
        and (beside := dotted(other.receiver)) is not None
        and beside != name
        and own == _sources(call.scope, beside)
        for other in facts.named(call.name)
    )


def _sources(scope: Scope, name: str) -> set[object]:
    """What a name is unpacked from, or what it is an item of; empty if it may be anything else."""
    bindings = [binding for binding in scope.find_bindings(name) if not _keeps(binding, name)]
    sources: set[object] = set()
    for bound in bindings:
        if bound.how in ("item", "each item"):
            sources.add(bound.node)
        elif (
            bound.how == "is" and isinstance(bound.node, ast.Subscript) and dotted(bound.node.value)
        ):
            sources.add(dotted(bound.node.value))
        else:
            return set()
    return sources


def _is_used_as_tensor(facts: FileFacts, call: Call, name: str) -> bool:
    """Whether a function uses a name as tensors are used, and never as a module."""
    scope = call.scope
    attributes = {
        attribute.attr
        for attribute, _, block in facts.attributes
        if block.scope is scope and dotted(attribute.value) == name
    }
    home = scope.find(name)
    calls = [call for call in facts.calls if call.scope.find(name) is home]
    is_called = any(dotted(call.node.func) == name for call in calls)
    if is_called or attributes & _OF_MODULES:
        return False
    if (scope, name) in facts.computed or _is_kept_beside(facts, call, name):
        return True
    if attributes & _OF_TENSORS or facts.modules() & _OTHER_BATCHES:
        return bool(attributes & _OF_TENSORS)
    models = trained_models(facts)
    if any(
        (dotted(call.node.func) or "").rpartition(".")[2] in models
        and name in map(dotted, call.node.args)
        for call in calls
    ):
        return True
    for binding in scope.find_bindings(name):
        if binding.how == "each item" and isinstance(binding.node, ast.expr):
            source = dotted(looped_over(binding.node)[0]) or ""
            if _DATA.search(source):
                return True
    return False


def _is_tensor(facts: FileFacts, node: ast.AST | None, scope: Scope, depth: int = 0) -> bool:
    """Whether an expression plainly holds a tensor: all bindings of its names agree."""
    if depth > _DEPTH:
        return False
    depth += 1
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare):
        return any(_is_tensor(facts, part, scope, depth) for part in operands(node))
    if isinstance(node, ast.Subscript):
        return _is_tensor(facts, node.value, scope, depth)
    if isinstance(node, ast.Call):
        module, _, function = (facts.full(node.func, scope) or "").rpartition(".")
        if module == "torch.nn.functional" or (module == "torch" and function in _MAKERS):
            return True
        if module == "torch" and function.endswith("Tensor"):
            return True
        if function == "Variable" and module == "torch.autograd":
            return True
        if not isinstance(node.func, ast.Attribute) or node.func.attr in _NOT_TENSORS:
            return False
        return node.func.attr in ("detach", "unsqueeze") or _is_tensor(
            facts, node.func.value, scope, depth
        )
    text = dotted(node)
    if text is None:
        return False
    bindings = [
        binding
        for binding in scope.find_bindings(text)
        if not _keeps(binding, text)
        and not (isinstance(binding.node, ast.Constant) and not binding.node.value)
    ]
    return bool(bindings) and all(_binds_tensor(facts, bound, depth) for bound in bindings)


def _keeps(binding: Binding, name: str) -> bool:
    """Whether a binding keeps what the name holds. **Ex.:** ``x = x.to(device)``."""
    node = binding.node
    while True:
        if binding.how == "is" and dotted(node) == name:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.BinOp):
            node = node.left
        else:
            return False


def _binds_tensor(facts: FileFacts, binding: Binding, depth: int) -> bool:
    node, scope = binding.node, binding.block.scope
    if binding.how == "is":
        return _is_tensor(facts, node, scope, depth)
    if isinstance(node, ast.arg):
        return facts.full(node.annotation, scope) == "torch.Tensor"
    return _is_parameter(binding) or (
        binding.how == "each item" and isinstance(node, ast.expr) and _is_loader(facts, node, scope)
    )


def _is_loader(facts: FileFacts, node: ast.expr, scope: Scope) -> bool:
    """Whether a loop unpacks the usual batches of a `DataLoader`: tensors on the CPU."""
    source, _ = looped_over(node)
    values = [source]
    if (text := dotted(source)) is not None:
        values = [
            binding.node
            for binding in scope.find_bindings(text)
            if isinstance(binding.node, ast.expr)
        ]
        if not values:  # a parameter
            return text.endswith("loader") and not facts.modules() & _OTHER_BATCHES
    return all(
        isinstance(value, ast.Call) and _returns_loader(facts, value, scope) for value in values
    )


def _returns_loader(facts: FileFacts, node: ast.Call, scope: Scope) -> bool:
    """Whether a call is of `DataLoader`, or of a function that is named after it."""
    full = facts.full(node.func, scope)
    if full == "torch.utils.data.DataLoader":
        return not any(option.arg in ("collate_fn", None) for option in node.keywords)
    named = re.search(r"(^|_)(data_?)?loader$", (dotted(node.func) or "").rpartition(".")[2])
    return named is not None and not facts.modules() & _OTHER_BATCHES
