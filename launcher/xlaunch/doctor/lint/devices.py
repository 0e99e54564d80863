# SPDX-License-Identifier: Apache-2.0
"""Autocast (XL015, XL016), and what depends on the device: copies of constants, checkpoints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Call, FileFacts, Problem, argument, dotted, keyword
from xlaunch.doctor.lint.waits import steps

_DEVICE = re.compile(r"(cuda|xpu|mps|cpu)(:\d+)?$")
_AUTOCAST = frozenset(("torch.autocast", "torch.amp.autocast"))
_SCALERS = frozenset(("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.GradScaler"))
_MAKERS = frozenset(
    ("arange", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros")
)
_CHOICE = re.compile(r"is_available\(\).* else .*cpu")
"""**Ex.:** ``torch.device('cuda' if torch.cuda.is_available() else 'cpu')``."""
_CHECKPOINT = re.compile(
    r"check_?point|ckpt|weight|model|\bnet|resume|state|\.pth|\.pt\b", re.IGNORECASE
)


def check_devices(facts: FileFacts) -> Iterator[Problem]:
    """Faults of mixed precision, and hints about devices."""
    yield from _scaler_with_bf16(facts)
    yield from _other_device(facts)
    yield from _made_each_step(facts)
    yield from _loaded_unmapped(facts)
    for call in facts.named("set_detect_anomaly", "detect_anomaly"):
        full = facts.full(call.node.func, call.scope) or ""
        mode = argument(call.node, 0, "mode")
        on = mode is None or ast.unparse(mode) == "True"
        if full.startswith("torch.autograd.") and on and not _is_conditional(call):
            yield (
                call.node,
                "XL119",
                "anomaly mode checks every result of the backward pass; leave it out when the error is "
                "found, or turn it on by an option",
            )


def _autocasts(facts: FileFacts) -> list[Call]:
    full = _AUTOCAST | {f"torch.{device}.amp.autocast" for device in ("cuda", "cpu")}
    applied = []  # functools.partial(torch.autocast, "cuda", dtype=...)
    for call in facts.calls_named("functools.partial"):
        if call.node.args:
            func, *arguments = call.node.args
            inner_call = ast.copy_location(ast.Call(func, arguments, call.node.keywords), call.node)
            applied.append(call._replace(node=inner_call))
    return [
        call
        for call in (*facts.named("autocast"), *applied)
        if facts.full(call.node.func, call.scope) in full
    ]


def _scaler_with_bf16(facts: FileFacts) -> Iterator[Problem]:
    types = set()
    for autocast in _autocasts(facts):
        dtype = keyword(autocast.node, "dtype") or ast.Constant(0)
        bindings = autocast.scope.find_bindings(dotted(dtype) or "")
        if len(bindings) == 1 and isinstance(bindings[0].node, ast.Attribute):
            dtype = bindings[0].node  # dtype=amp_dtype, where amp_dtype = torch.bfloat16
        types.add(ast.unparse(dtype))
    if (
        not types
        or any(not name.endswith(".bfloat16") for name in types)
        or "scale" not in facts.called
    ):
        return
    for call in facts.named("GradScaler"):
        if facts.full(call.node.func, call.scope) in _SCALERS and not keyword(call.node, "enabled"):
            yield (
                call.node,
                "XL015",
                "bfloat16 has the range of float32, so gradients need no scaler, which checks them all "
                "for infinities and makes each step wait; leave it out, or pass enabled=False",
            )


def _other_device(facts: FileFacts) -> Iterator[Problem]:
    cast = {id(other.node) for other in _autocasts(facts)}
    used = {
        match[1]
        for call in facts.calls
        if id(call.node) not in cast and call.name in ("device", "to", "Accelerator")
        for value in [*call.node.args, *(option.value for option in call.node.keywords)]
        for part in ast.walk(value)
        if isinstance(part, ast.Constant) and (match := _DEVICE.match(str(part.value)))
    }
    used |= {name for name in ("cuda", "xpu", "mps") if name in facts.called}
    if not used or any("is_available" in name for name in facts.words):
        return
    for call in _autocasts(facts):
        first = argument(call.node, 0, "device_type")
        device = isinstance(first, ast.Constant) and _DEVICE.match(str(first.value))
        if device and device[1] not in used:
            others = " and ".join(sorted(used))
            yield (
                call.node,
                "XL016",
                f"autocast is for {device[1]}, and this file moves to {others}, where it has no effect; "
                f"pass device_type=device.type",
            )


def _made_each_step(facts: FileFacts) -> Iterator[Problem]:
    for step in steps(facts):
        for call in (call for block in step.regions for call in facts.within[block.scope]):
            tensor = call.receiver if call.name in ("to", "cuda") else None
            if not isinstance(tensor, ast.Call) or keyword(tensor, "device"):
                continue
            module, _, name = (facts.full(tensor.func, call.scope) or "").rpartition(".")
            is_loss = module == "torch.nn" and name.endswith("Loss")
            if not is_loss and not (module == "torch" and name in _MAKERS):
                continue
            if any(call.block.is_within(region) for region in step.regions):
                remedy = (
                    "make it once above the loop" if is_loss else "pass device= to make it there"
                )
                yield (
                    call.node,
                    "XL112",
                    f"{name} is made on the CPU and copied to the device at every step; {remedy}",
                )


def _loaded_unmapped(facts: FileFacts) -> Iterator[Problem]:
    """Checkpoints that only a GPU can read, in a file that can otherwise do without."""
    choices = [
        value for _, value, _ in facts.assignments if isinstance(value, ast.Call | ast.IfExp)
    ]
    if (
        "is_available" not in facts.words
        or any(name.startswith("save") for name in facts.called)
        or not any(_CHOICE.search(ast.unparse(choice)) for choice in choices)
    ):
        return
    for call in facts.calls_named("torch.load"):
        text = ast.unparse(call.parent if isinstance(call.parent, ast.Assign) else call.node)
        mapped = argument(call.node, 1, "map_location") is not None
        if not mapped and not _is_conditional(call) and _CHECKPOINT.search(text):
            yield (
                call.node,
                "XL118",
                "without map_location, a checkpoint of a GPU cannot be read where there is none, as "
                "this script allows; pass map_location=device",
            )


def _is_conditional(call: Call) -> bool:
    """Whether a condition, or an error that is caught, may keep a call from running."""
    return any(
        isinstance(block.node, ast.If | ast.IfExp | ast.Try) for block in call.block.outwards()
    )
