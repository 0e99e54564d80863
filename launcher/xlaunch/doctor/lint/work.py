# SPDX-License-Identifier: Apache-2.0
"""Where a script trains and evaluates, and on which device its models and tensors are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from xlaunch.doctor.lint.facts import (
    Block,
    Call,
    Function,
    Scope,
    dotted,
    has_stars,
    keyword,
    looped_over,
)
from xlaunch.doctor.lint.names import (
    FACTORIES,
    LIGHTNING,
    PARAMETER,
    Kind,
    Names,
    Value,
    argument_for,
)

_MANAGERS = LIGHTNING | {"accelerate", "deepspeed", "fastai", "ignite", "composer", "keras", "ray"}
"""They move models and data, and switch modes, out of sight."""

_EVALUATION = re.compile(
    r"(^|_)(test|val|valid|validate|validation|eval|evaluate|evaluation|dev)(_|$)"
)
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


class Work:
    """What the code of one file does with models."""

    def __init__(self, names: Names) -> None:
        self.names = names
        facts = self.facts = names.facts
        self.is_managed = bool(facts.modules() & _MANAGERS)
        self.uses_device = bool(
            facts.words & {"cuda", "xpu", "mps"}
            or any(text.startswith(("cuda", "xpu", "mps")) for text in facts.texts)
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

    def is_loss(self, call: ModuleCall) -> bool:
        """Whether a module computes a loss and is no model."""
        return (call.value.name or "").endswith("Loss") or re.search(
            r"(?i)criterion|loss", call.text
        ) is not None

    def evaluations(self) -> Iterator[tuple[Block, ModuleCall]]:
        """Loops that evaluate a model, with the first call of it.

        A loop is one if it goes over test data, stands in a function named for evaluation, or
        comes after ``model.eval()``; and nothing in it trains.
        """
        for loop in self.facts.loops:
            node = loop.node
            if not isinstance(node, ast.For):
                continue
            if any(call.block.is_within(loop) for call in self.backwards):
                continue
            called = next(
                (
                    one
                    for one in self.module_calls
                    if one.call.block.is_within(loop) and not self.is_loss(one)
                ),
                None,
            )
            # The outermost such loop speaks for those in it; a loop of epochs has none.
            if called is None or called.call.block.loops()[0] is not loop:
                continue
            source, _ = looped_over(node.iter)
            function = loop.scope.node
            name = function.name.lower() if isinstance(function, Function) else ""
            data = (dotted(source) or "").rpartition(".")[2].lower()
            trains_here = any(call.scope is loop.scope for call in self.backwards)
            over_loader = self.names.is_kind(source, loop.scope, Kind.LOADER)
            if (
                (over_loader or "load" in data or data.endswith(("_dl", "_iter")))
                and (
                    _EVALUATION.search(data)
                    or data.startswith(("test", "val"))
                    or (_EVALUATION.search(name) and not trains_here)
                )
            ) or (over_loader and not trains_here and self._is_switched(called)):
                yield loop, called

    def is_moved(self, text: str, scope: Scope, depth: int = 0) -> bool | None:
        """Whether a model has been moved to a device; None if that is not sure."""
        home = self.names.owner(scope, text)
        if home is None or depth > _DEPTH:
            return None
        if isinstance(home.node, ast.ClassDef) and home.node.bases:
            return None  # a part of a module moves with the whole
        bindings = home.attributes[text[5:]] if text.startswith("self.") else home.bindings[text]
        if any(
            dotted(call.receiver) == text
            and self.names.owner(call.scope, text) is home
            and self.is_device_move(call.node, call.scope)
            for call in self.facts.named("to", "cuda", "xpu")
        ):
            return True
        for binding in bindings:
            node: ast.AST | None = binding.node
            while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if self.is_device_move(node, binding.block.scope):
                    return True
                node = node.func.value
        if len(bindings) == 1 and bindings[0].how == "parameter":
            function, argument = home.node, bindings[0].node
            if not isinstance(function, Function) or not isinstance(argument, ast.arg):
                return None
            answers = set()
            for call in self.facts.calls_of(function):
                passed = argument_for(function, argument.arg, call.node)
                if self.names.call_name(passed, call.scope) == "torch.compile":
                    assert isinstance(passed, ast.Call)
                    passed = passed.args[0] if passed.args else None
                given = dotted(passed)
                if given is not None:
                    answers.add(self.is_moved(given, call.scope, depth + 1))
                else:
                    moves = isinstance(passed, ast.Call) and self.is_device_move(passed, call.scope)
                    answers.add(True if moves else None)
            return answers.pop() if len(answers) == 1 else None
        value = (
            self.names.value(bindings[0].node, bindings[0].block.scope)
            if len(bindings) == 1
            else None
        )
        if value is None or value.origin is None or has_stars(value.origin):
            return None
        named = [one.arg or "" for one in value.origin.keywords]
        if any("device" in one for one in named) or self._places_itself(value):
            return None
        if any(dotted(assigned) == text for _, assigned, _ in self.facts.assignments):
            return None  # it is part of another model
        given_away = any(  # to somebody who may move it
            text in map(dotted, call.passed) and not self._keeps_place(call, text)
            for call in self.facts.calls
        )
        return None if given_away else False

    def is_on_device(self, node: ast.AST, call: Call, depth: int = 0) -> bool | None:
        """Whether a tensor at `call` has been moved to a device; None if that is not sure."""
        return self._placed(node, call.block, call.position, depth)

    def is_device_move(self, node: ast.Call, scope: Scope) -> bool:
        """Whether a call moves its receiver to a device other than the CPU, as far as is plain."""
        if not isinstance(node.func, ast.Attribute):
            return False
        if node.func.attr in ("cuda", "xpu"):
            return True
        if node.func.attr != "to":
            return False
        target = keyword(node, "device") or (node.args[0] if node.args else None)
        if isinstance(target, ast.Constant):
            return isinstance(target.value, int) or (
                isinstance(target.value, str) and not target.value.startswith(("cpu", "meta"))
            )
        if target is not None and self.names.is_kind(target, scope, Kind.DEVICE):
            return True
        text = dotted(target) or ""
        return bool(_DEVICE_NAME.search(text)) and not text.startswith("torch.")

    def _placed(
        self, node: ast.AST | None, block: Block, position: tuple[int, int], depth: int
    ) -> bool | None:
        if depth > _DEPTH or node is None:
            return None
        scope, names = block.scope, self.names
        if isinstance(node, ast.BinOp):
            sides = {
                self._placed(one, block, position, depth + 1)
                for one in (node.left, node.right)
                if not isinstance(one, ast.Constant)
            }
            return sides.pop() if len(sides) == 1 else None
        if isinstance(node, ast.Name):
            home = scope.find(node.id)
            if home is None:
                return None
            if home is scope:
                binding = names.binding_before(node.id, scope, position, block)
            else:
                bound = home.bindings[node.id]
                binding = bound[0] if len(bound) == 1 else None
            if binding is None or not isinstance(binding.node, ast.expr):
                return None
            if binding.how == "each item":
                source, _ = looped_over(binding.node)
                loader = names.value(source, binding.block.scope)
                # The loader of an unknown caller may give tensors of a device.
                plain = names.yields_tensors(source, binding.block.scope) and (
                    loader is not None and loader.name != PARAMETER
                )
                return False if plain and not self._dataset_moves() else None
            if binding.how != "is":
                return None
            start = (binding.node.lineno, binding.node.col_offset)
            return self._placed(binding.node, binding.block, start, depth + 1)
        if not isinstance(node, ast.Call):
            return None
        full = names.full(node.func, scope) or ""
        if full.startswith("torch.") and full.removeprefix("torch.") in FACTORIES:
            target = keyword(node, "device")
            if target is None:
                return None if has_stars(node) else False
            return not (isinstance(target, ast.Constant) and target.value == "cpu")
        if isinstance(node.func, ast.Attribute):
            if self.is_device_move(node, scope):
                return True
            if node.func.attr == "cpu":
                return False
            if node.func.attr == "type_as":  # which takes the device, too
                return None
            first = node.args[0] if node.args else None
            if node.func.attr == "to" and not (names.full(first, scope) or "").startswith("torch."):
                return None
            if names.is_kind(node, scope, Kind.TENSOR) and dotted(node.func.value) != "torch":
                return self._placed(node.func.value, block, position, depth + 1)
        text = dotted(node.func)
        if text is not None and names.is_kind(node.func, scope, Kind.MODULE):
            return True if self.is_moved(text, scope, depth + 1) else None
        return None

    def _dataset_moves(self) -> bool:
        """Whether a dataset of this file moves what it yields."""
        return bool(self.facts.words & {"TensorDataset", "collate_fn"}) or any(
            getattr(call.scope.node, "name", "")
            in ("__getitem__", "__iter__", "__next__", "collate")
            for call in self.facts.named("to", "cuda", "xpu")
        )

    def _places_itself(self, value: Value) -> bool:
        """Whether the class of a model moves its own parts."""
        if value.definition is None:
            return False
        return any(
            (owner := call.scope.enclosing_class) is not None and owner.node is value.definition
            for call in self.facts.named("to", "cuda", "xpu")
        ) or "device" in ast.unparse(value.definition)

    def _keeps_place(self, call: Call, text: str) -> bool:
        """Whether a call that is given the model `text` does not move it."""
        name = self.names.call_name(call.node, call.scope)
        if name in ("print", "torch.compile", "len", "isinstance"):
            return True
        function = self.facts.definition(call)
        if function is None:
            return False
        names = [
            argument.arg
            for argument in (*function.args.args, *function.args.kwonlyargs)
            if dotted(argument_for(function, argument.arg, call.node)) == text
        ]
        # Passed on, it may be moved elsewhere.
        return bool(names) and not any(
            (dotted(inner.receiver) in names and inner.name in ("to", "cuda", "xpu"))
            or any(dotted(one) in names for one in inner.node.args)
            for inner in self.facts.within[self.facts.functions[function]]
        )

    def _is_switched(self, called: ModuleCall) -> bool:
        """Whether ``eval()`` comes before a call of a model, in the same function."""
        switches = [
            (call.line, call.name)
            for call in self.facts.named("eval", "train")
            if call.scope is called.call.scope
            and dotted(call.receiver) == called.text
            and call.line < called.call.line
        ]
        return bool(switches) and max(switches)[1] == "eval"

    def _steps(self, call: Call, depth: int = 0) -> Iterator[Block]:
        loops = [one for one in call.block.loops() if not isinstance(one.node, ast.comprehension)]
        if loops:
            yield loops[0]
        elif isinstance(call.scope.node, Function) and depth < _DEPTH:
            for caller in self.facts.calls_of(call.scope.node):
                yield from self._steps(caller, depth + 1)


def names_in(node: ast.AST) -> set[str]:
    """The names that an expression reads."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def bound_in(loop: Block, but: ast.AST | None = None) -> set[str]:
    """The names that a loop binds, by anything other than `but`."""
    return {
        name
        for name, bindings in loop.scope.bindings.items()
        for binding in bindings
        if binding.node is not but and binding.block.is_within(loop)
    }
