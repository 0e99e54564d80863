# SPDX-License-Identifier: Apache-2.0
"""Where a script trains, which models it calls, and which of them it moves to a device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from xlaunch.doctor.lint.facts import Block, Call, Function, Scope, dotted, keyword
from xlaunch.doctor.lint.names import LIGHTNING, Kind, Names, Value, argument_for

_MANAGERS = LIGHTNING | {"accelerate", "deepspeed", "fastai", "ignite", "composer", "keras", "ray"}
"""They move models and data, and switch modes, out of sight."""

_DEVICE_NAME = re.compile(
    r"(^|[._])(device|dev|gpu|cuda|rank|local_rank)s?\d*($|_id|_type)", re.IGNORECASE
)
_DEPTH = 12


class ModuleCall(NamedTuple):
    """A model that is called."""

    call: Call
    value: Value
    text: str
    """**Ex.:** ``self.model``."""

    @property
    def is_loss(self) -> bool:
        """Whether the module computes a loss and is no model."""
        named = f"{self.text} {self.value.name or ''}".lower()
        return "loss" in named or "criterion" in named


class Work:
    """What the code of one file does with models."""

    def __init__(self, names: Names) -> None:
        self.names = names
        facts = self.facts = names.facts
        self.is_managed = bool(facts.modules() & _MANAGERS)
        self.uses_device = bool(facts.words & {"cuda", "xpu", "mps"}) or any(
            text.startswith(("cuda", "xpu", "mps")) for text in facts.texts
        )
        self.module_calls: list[ModuleCall] = []
        for call in facts.calls:
            text = dotted(call.node.func)
            if text is None or (text.count(".") and not text.startswith("self.")):
                continue
            value = names.value(call.node.func, call.scope)
            if value is not None and value.kind is Kind.MODULE:
                self.module_calls.append(ModuleCall(call, value, text))
        self.backwards = [
            call
            for call in facts.called.get("backward", ())
            if call.receiver is not None and dotted(call.receiver) not in ("super", "ctx", "self")
        ]
        self.steps = list({id(b): b for c in self.backwards for b in self._steps(c)}.values())
        """The bodies of the innermost loops that call ``backward()``, or a function that does."""

    def within(self, block: Block) -> Iterator[Call]:
        """The calls in a block, in the order of the source."""
        return (c for c in self.facts.within[block.scope] if c.block.is_within(block))

    def is_moved(self, text: str | None, scope: Scope, depth: int = 0) -> bool:
        """Whether this file plainly moves a model to a device."""
        home = self.names.owner(scope, text) if text is not None else None
        if home is None or text is None or depth > _DEPTH:
            return False
        if any(
            dotted(call.receiver) == text and self.names.owner(call.scope, text) is home
            for call in self.facts.named("to", "cuda", "xpu")
            if is_device_move(call.node)
        ):
            return True
        bindings = home.attributes[text[5:]] if text.startswith("self.") else home.bindings[text]
        for binding in bindings:
            node: ast.AST | None = binding.node
            while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if is_device_move(node):
                    return True
                node = node.func.value
        function, argument = home.node, bindings[0].node if len(bindings) == 1 else None
        if not isinstance(function, Function) or not isinstance(argument, ast.arg):
            return False
        moved = []
        for call in self.facts.calls_of(function):
            given = argument_for(function, text, call.node)
            if isinstance(given, ast.Call) and given.args:  # torch.compile(model)
                given = given.args[0]
            moved.append(self.is_moved(dotted(given), call.scope, depth + 1))
        return bool(moved) and all(moved)

    def _steps(self, call: Call, depth: int = 0) -> Iterator[Block]:
        loops = [one for one in call.block.loops() if not isinstance(one.node, ast.comprehension)]
        if loops:
            yield loops[0]
        elif isinstance(call.scope.node, Function) and depth < _DEPTH:
            for caller in self.facts.calls_of(call.scope.node):
                yield from self._steps(caller, depth + 1)


def is_device_move(node: ast.Call) -> bool:
    """Whether a call moves its receiver to a device other than the CPU, as far as is plain."""
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr != "to":
        return node.func.attr in ("cuda", "xpu")
    target = keyword(node, "device") or (node.args[0] if node.args else None)
    if isinstance(target, ast.Constant):
        return isinstance(target.value, int) or (
            isinstance(target.value, str) and not target.value.startswith(("cpu", "meta"))
        )
    text = dotted(target) or ""
    return bool(_DEVICE_NAME.search(text)) and not text.startswith("torch.")
