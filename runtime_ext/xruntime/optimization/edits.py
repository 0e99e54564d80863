# SPDX-License-Identifier: Apache-2.0
"""Changes of a model's modules and weights, which can be undone in reverse order."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from xruntime.errors import OptimizationError


def subclass(base: type[nn.Module], kind: type[nn.Module], **attributes: Any) -> type[Any]:
    """Return a class that is `base` for modules of class `kind`, with the name of `kind`.

    Other code saves the name, or looks it up: a configuration's `architectures`, tables by class name. Raises
    what `kind` raises for subclasses.
    """
    space = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        **attributes,
    }
    return types.new_class(kind.__name__, (base, kind), {}, lambda body: body.update(space))


class ReplacedModule(nn.Module):
    """A module whose class a pass replaced by a subclass of both, of the same name."""

    _layer: type[nn.Module]
    """The class that it had."""


class NeedlessLayer(ReplacedModule):
    """A layer that returns its input in eval mode, because a pass made it needless."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        if self.training:
            raise OptimizationError(
                f"a {self._layer.__name__} was put into training mode after optimize(), which made it needless: train"
                " the original module"
            )
        return input


class Edits:
    """Makes changes and remembers how to undo them.

    The values of existing tensors are never written: a changed weight is a new Parameter. So a tensor
    that is still in the model has the value that it had before.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.same_values: dict[int, int] = {}
        """By id of a new Parameter that differs in its place or layout only: the id of the one that it replaced."""

        self._undo: list[Callable[[], object]] = []
        self._subclasses: dict[tuple[type, type], type[nn.Module]] = {}

    def mark(self) -> int:
        """Return a position for `undo`."""
        return len(self._undo)

    def add_undo(self, action: Callable[[], object]) -> None:
        """Remember how to undo a change that the caller has made."""
        self._undo.append(action)

    def undo(self, mark: int = 0) -> None:
        """Undo all changes since `mark`."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def replace_modules(self, replacements: Mapping[nn.Module, nn.Module]) -> None:
        """Put new modules, in the old ones' modes, wherever the old ones are parts of another module."""
        for old, new in replacements.items():
            new.train(old.training)
        for parent in list(self.model.modules()):
            for name, old in list(parent.__dict__["_modules"].items()):
                if old in replacements:
                    setattr(parent, name, replacements[old])
                    self._undo.append(functools.partial(setattr, parent, name, old))

    def set_class(self, module: nn.Module, kind: type[nn.Module]) -> None:
        """Give a module another class, with the same attributes."""
        self._undo.append(functools.partial(setattr, module, "__class__", type(module)))
        module.__class__ = kind

    def replace_class(self, module: nn.Module, base: type[ReplacedModule]) -> None:
        """Give a module a class that is `base` for modules of its class. Raises what its class raises for subclasses."""
        kind = type(module)
        if (base, kind) not in self._subclasses:
            self._subclasses[base, kind] = subclass(base, kind, _layer=kind)
        self.set_class(module, self._subclasses[base, kind])

    def set_attribute(self, module: nn.Module, name: str, value: object) -> None:
        """Give a module an attribute that it has not."""
        setattr(module, name, value)
        self._undo.append(functools.partial(delattr, module, name))

    def replace_parameter(self, old: nn.Parameter, value: torch.Tensor) -> nn.Parameter:
        """Put a new Parameter of this value wherever `old` is, so that tied weights stay tied."""
        new = nn.Parameter(value, requires_grad=old.requires_grad)
        for module in list(self.model.modules()):
            for name, parameter in list(
                module.named_parameters(recurse=False, remove_duplicate=False)
            ):
                if parameter is old:
                    self.set_parameter(module, name, new)
        return new

    def set_parameter(self, module: nn.Module, name: str, new: nn.Parameter | None) -> None:
        """Set one parameter of one module; None registers none."""
        old = getattr(module, name)
        setattr(module, name, new)
        self._undo.append(functools.partial(setattr, module, name, old))

    def move_parameter(self, module: nn.Module, name: str, memory: torch.Tensor | None) -> None:
        """Put one parameter of one module on other memory with the same values; None: it has none."""
        old = getattr(module, name)
        if memory is not None:
            new = nn.Parameter(memory, requires_grad=old.requires_grad)
            self.set_parameter(module, name, new)
            self._note_same(new, old)

    def replace_layout(self, old: nn.Parameter, layout: torch.memory_format) -> None:
        """Put a Parameter with the same values in another memory format wherever `old` is."""
        self._note_same(
            self.replace_parameter(old, old.detach().contiguous(memory_format=layout)), old
        )

    def _note_same(self, new: nn.Parameter, old: nn.Parameter) -> None:
        self.same_values[id(new)] = self.same_values.get(id(old), id(old))

    def set_layout(self, parameter: nn.Parameter, layout: torch.memory_format) -> None:
        """Store a Parameter in another memory format; an optimizer may hold it."""
        before = parameter.data
        parameter.data = before.contiguous(memory_format=layout)
        self._undo.append(functools.partial(setattr, parameter, "data", before))
