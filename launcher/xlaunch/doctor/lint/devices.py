# SPDX-License-Identifier: Apache-2.0
"""XL01x: tensors and models that are not where they are thought to be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import (
    Block,
    Call,
    Function,
    Problem,
    Scope,
    dotted,
    has_stars,
    keyword,
)
from xlaunch.doctor.lint.names import FACTORIES, Kind
from xlaunch.doctor.lint.work import Work

_CONVERSIONS = (
    "bfloat16", "contiguous", "cpu", "cuda", "double", "float", "half", "long", "to", "xpu",
)  # fmt: skip
_DEFAULTS = {"set_default_device", "set_default_tensor_type"}
_ABOUT_DEVICES = re.compile(r"cuda|gpu|device|xpu|mps|fp16|float16|half|trt", re.IGNORECASE)


def check_devices(work: Work) -> Iterator[Problem]:
    """Moves that are lost, missing, slow, or fixed."""
    yield from _lost_results(work)
    if not work.is_managed and not work.facts.words & _DEFAULTS:
        yield from _mismatches(work)
    yield from _created_in_loops(work)
    yield from _hard_coded(work)


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
    # Both move what they are called with.
    parallel = work.facts.words & {"DataParallel", "DistributedDataParallel", "DDP"}
    for one in work.module_calls:
        if parallel or work.is_loss(one) or _moves_inputs(one.value.definition):
            continue
        moved = work.is_moved(one.text, one.call.scope)
        for given in one.call.node.args:
            if moved is None or not work.names.is_kind(given, one.call.scope, Kind.TENSOR):
                continue
            there = work.is_on_device(given, one.call)
            shown = dotted(given) or "the input"
            if moved and there is False:
                yield (
                    given,
                    "XL011",
                    f"{one.text} was moved to a device and {shown} was not; move it to the same "
                    f"device, {shown}.to(device)",
                )
            elif not moved and there:
                yield (
                    given,
                    "XL011",
                    f"{shown} was moved to a device and {one.text} was not; write "
                    f"{one.text}.to(device) before",
                )
    yield from _loss_mismatches(work)


def _loss_mismatches(work: Work) -> Iterator[Problem]:
    losses = [one.call for one in work.module_calls if work.is_loss(one)]
    functions = ("cross_entropy", "mse_loss", "nll_loss", "l1_loss", "binary_cross_entropy")
    losses += work.facts.named(*functions)
    for call in losses:
        if len(call.node.args) < 2:
            continue
        first, second = call.node.args[:2]
        if not work.names.is_kind(second, call.scope, Kind.TENSOR):
            continue
        if work.is_on_device(first, call) and work.is_on_device(second, call) is False:
            shown = dotted(second) or "the target"
            yield (
                second,
                "XL011",
                f"the loss compares {dotted(first) or 'an output'}, which is on a device, with "
                f"{shown}, which was not moved; move it, {shown}.to(device)",
            )


def _created_in_loops(work: Work) -> Iterator[Problem]:
    made_there = {f"torch.{name}" for name in FACTORIES - {"tensor"}}  # which copies in any case
    for call in work.facts.named("to", "cuda"):
        made: ast.AST | None = call.receiver
        if not work.is_device_move(call.node, call.scope) or not _is_hot(work, call):
            continue
        if isinstance(made, ast.Name):
            binding = work.names.binding_before(made.id, call.scope, call.position, call.block)
            if (
                binding is None
                or binding.how != "is"
                or binding.block.loops()[:1] != call.block.loops()[:1]
                or _is_written(work, made.id, call.scope)
            ):
                continue
            made = binding.node
        if not isinstance(made, ast.Call) or has_stars(made):
            continue
        name = work.names.call_name(made, call.scope)
        if name in made_there and not (keyword(made, "device") or keyword(made, "generator")):
            yield (
                call.node,
                "XL012",
                f"{name}() creates a tensor on the CPU, and every step of the loop copies it; "
                f"create it on the device with device=",
            )


def _is_written(work: Work, name: str, scope: Scope) -> bool:
    """Whether a tensor is filled in place, element by element: that is cheaper on the CPU."""
    return any(
        isinstance(target, ast.Subscript) and dotted(target.value) == name
        for target, _, block in work.facts.assignments
        if block.scope is scope
    ) or any(
        dotted(one.receiver) == name and one.name.endswith("_") for one in work.facts.within[scope]
    )


def _is_hot(work: Work, call: Call) -> bool:
    """Whether a call stands in a loop whose own rounds call a model, or train; not in a test."""
    if getattr(call.scope.node, "name", "").lstrip("_").startswith("test"):
        return False
    models = [loop for one in work.module_calls for loop in one.call.block.loops()[:1]]
    return any(loop in work.steps or loop in models for loop in call.block.loops())


def _hard_coded(work: Work) -> Iterator[Problem]:
    chosen = _choice(work)
    if chosen is None or _requires_device(work):
        return
    for call in work.facts.calls:
        func = call.node.func
        device = None
        if isinstance(func, ast.Attribute) and func.attr == "cuda" and not call.node.args:
            kinds = (Kind.TENSOR, Kind.MODULE, Kind.OUTPUT)
            if work.names.is_kind(call.receiver, call.scope, *kinds):
                device = ".cuda()"
        else:
            full = work.names.full(func, call.scope) or ""
            target = keyword(call.node, "device") if full.startswith("torch.") else None
            if isinstance(func, ast.Attribute) and func.attr == "to":
                target = target or (call.node.args[0] if call.node.args else None)
            if (
                isinstance(target, ast.Constant)
                and isinstance(target.value, str)
                and target.value.startswith(("cuda", "xpu"))
            ):
                device = f'"{target.value}"'
        if device is not None and not _is_about_devices(call.block, call.scope):
            yield (
                call.node,
                "XL013",
                f"{device} is fixed here, and the script chooses its device in {chosen}; use that",
            )


def _choice(work: Work) -> str | None:
    """The name in which the script keeps the device that it chose."""
    branches: dict[tuple[int, str], set[str]] = {}
    for target, value, block in work.facts.assignments:
        text = dotted(target)
        if text is None:
            continue
        inner = value.args[0] if isinstance(value, ast.Call) and value.args else value
        if isinstance(inner, ast.IfExp):
            shown = ast.unparse(inner)
            if "is_available" in shown and "'cpu'" in shown:
                return text
        if isinstance(inner, ast.Constant) and isinstance(block.node, ast.If):
            kinds = branches.setdefault((id(block.node), text), set())
            kinds.add(str(inner.value).partition(":")[0])
            test = ast.unparse(block.node.test)
            if {"cuda", "cpu"} <= kinds and "is_available" in test:
                return text
    for call in work.facts.called.get("add_argument", ()):
        if any(isinstance(one, ast.Constant) and one.value == "--device" for one in call.node.args):
            return "--device"
    return None


def _requires_device(work: Work) -> bool:
    """Whether the script ends or skips without the device."""
    return any(
        isinstance(call.parent, ast.Assert)
        or (isinstance(call.parent, ast.UnaryOp) and isinstance(call.parent.op, ast.Not))
        for call in work.facts.called.get("is_available", ())
    )


def _is_about_devices(block: Block, scope: Scope) -> bool:
    """Whether code runs only for some devices: in a condition, or in a function named for one."""
    for around in block.ancestors():
        node = around.node
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            if _ABOUT_DEVICES.search(ast.unparse(node.test)):
                return True
        elif isinstance(node, ast.Try):
            return True
        elif isinstance(node, Function | ast.ClassDef):
            decorators = [ast.unparse(one) for one in node.decorator_list]
            # Those of a command line name options, too.
            shown = " ".join([node.name, *(one for one in decorators if "option" not in one)])
            if _ABOUT_DEVICES.search(shown):
                return True
    return False


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
                "aises" in ast.unparse(item) or "warns" in ast.unparse(item).lower()
                for item in one.node.items
            )
        )
        for one in block.outwards()
    )
