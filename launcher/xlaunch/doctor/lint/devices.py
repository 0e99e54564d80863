# SPDX-License-Identifier: Apache-2.0
"""XL01x: tensors and models that are not where they are thought to be."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import (
    Binding,
    Block,
    Problem,
    Scope,
    dotted,
    has_stars,
    keyword,
    looped_over,
)
from xlaunch.doctor.lint.names import FACTORIES, PARAMETER, Kind
from xlaunch.doctor.lint.work import Work

_CONVERSIONS = (
    "bfloat16", "contiguous", "cpu", "cuda", "double", "float", "half", "long", "to", "xpu",
)  # fmt: skip
_MOVED_BY_OTHERS = frozenset(
    (
        "DDP", "DataParallel", "DistributedDataParallel", "TensorDataset", "collate_fn",
        "set_default_device", "set_default_tensor_type",
    )
)  # fmt: skip
"""What may put inputs on the device out of sight."""


def check_devices(work: Work) -> Iterator[Problem]:
    """Moves that are lost or missing."""
    yield from _lost_results(work)
    if not work.is_managed and not work.facts.words & _MOVED_BY_OTHERS:
        yield from _mismatches(work)


def _lost_results(work: Work) -> Iterator[Problem]:
    for call in work.facts.named(*_CONVERSIONS):
        if not isinstance(call.parent, ast.Expr) or _expects_errors(call.block):
            continue
        text = dotted(call.receiver)
        if text is None or not work.names.is_kind(call.receiver, call.scope, Kind.TENSOR):
            continue
        arguments = ", ".join(ast.unparse(one) for one in call.node.args)
        module = _module_of_parameter(call.scope, text)
        target = module if module is not None else f"{text} = {text}"
        yield (
            call.node,
            "XL010",
            f"tensors are not moved or converted in place: the result of {text}.{call.name}() is "
            f"lost; write {target}.{call.name}({arguments})",
        )


def _module_of_parameter(scope: Scope, name: str) -> str | None:
    """**Ex.:** ``model`` of ``for name in model.parameters()``; modules move in place."""
    home = scope.find(name)
    for binding in home.bindings[name] if home is not None else ():
        if binding.how == "each" and isinstance(binding.node, ast.Call):
            func = binding.node.func
            if isinstance(func, ast.Attribute) and func.attr in ("parameters", "buffers"):
                return ast.unparse(func.value)
    return None


def _mismatches(work: Work) -> Iterator[Problem]:
    for one in work.module_calls:
        scope = one.call.scope
        if one.is_loss or _moves_inputs(one.value.definition) or not work.is_moved(one.text, scope):
            continue
        for given in one.call.node.args:
            if not isinstance(given, ast.Name):
                continue
            binding = scope.last_binding(given.id, one.call.position)
            if binding is not None and _is_of_cpu(work, binding):
                yield (
                    given,
                    "XL011",
                    f"{one.text} was moved to a device and {given.id} was not; move it to the same "
                    f"device, {given.id}.to(device)",
                )


def _is_of_cpu(work: Work, binding: Binding) -> bool:
    """Whether a tensor is made without a device, or comes from a `DataLoader` of this file."""
    node, scope = binding.node, binding.block.scope
    if binding.how == "is" and isinstance(node, ast.Call):
        made = work.names.call_name(node, scope)
        is_made = made.startswith("torch.") and made.removeprefix("torch.") in FACTORIES
        return is_made and keyword(node, "device") is None and not has_stars(node)
    if binding.how != "each item" or not isinstance(node, ast.expr):
        return False
    source, _ = looped_over(node)
    loader = work.names.value(source, scope)
    in_dataset = any(
        getattr(call.scope.node, "name", "") in ("__getitem__", "__iter__", "__next__", "collate")
        for call in work.facts.named("to", "cuda", "xpu")
    )
    # The loader of an unknown caller may give tensors of a device.
    named = loader is not None and loader.name != PARAMETER
    return named and not in_dataset and work.names.yields_tensors(source, scope)


def _moves_inputs(definition: ast.ClassDef | None) -> bool:
    return definition is not None and any(
        isinstance(one, ast.Attribute) and one.attr in ("to", "cuda", "device", "type_as")
        for one in ast.walk(definition)
    )


def _expects_errors(block: Block) -> bool:
    return any(
        isinstance(one.node, ast.Try)
        or (
            isinstance(one.node, ast.With)
            and any(
                "aises" in shown or "warns" in shown for shown in map(ast.unparse, one.node.items)
            )
        )
        for one in block.outwards()
    )
