# SPDX-License-Identifier: Apache-2.0
"""The export of a module, and the check of calls against the inputs that it was exported for.

An exported graph has fixed sizes and dtypes in it, so a call with others must be refused before it runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from xlaunch.text import counted, plural
from xruntime.compilation.inductor import first_line
from xruntime.compilation.samples import Sample
from xruntime.errors import QuantizationError


class Input(NamedTuple):
    """One input of an exported module.

    **Ex.:** ``Input("images", torch.float32, (None, 3, 224, 224))``: any number of images.
    """

    name: str
    dtype: torch.dtype | None
    """None for a value that is not a tensor."""

    shape: tuple[int | None, ...] = ()
    """None where the size may vary."""

    constant: object = None

    def problem(self, value: object) -> str | None:
        """Return what is wrong with `value` for this input; None if nothing is."""
        if self.dtype is None:
            if type(value) is type(self.constant) and value == self.constant:
                return None
            return f"{self.name} is {value!r:.80}, and {self.constant!r:.80} is part of the graph"
        if not isinstance(value, torch.Tensor):
            return f"{self.name} is a {type(value).__name__}, and a tensor is expected"
        if value.dtype != self.dtype:
            return f"{self.name} is {value.dtype}, and {self.dtype} is expected"
        if value.device.type != "cpu":
            return f"{self.name} is on {value.device}, and the CPU is expected"
        sizes = tuple(value.shape)
        if len(sizes) != len(self.shape) or any(
            fixed is not None and fixed != size
            for fixed, size in zip(self.shape, sizes, strict=True)
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in self.shape)
            problem = f"{self.name} has the shape {sizes}, and ({wanted}) is expected"
            if len(sizes) == len(self.shape):
                problem += (
                    "; for other sizes give dynamic_shapes='auto' to xruntime.quantization.prepare"
                )
            return problem
        return None


class Signature:
    """The inputs of an exported module."""

    def __init__(self, exported: ExportedProgram, name: str) -> None:
        self._name = name
        self._spec = exported.call_spec.in_spec
        kind = InputKind.USER_INPUT
        specs = exported.graph_signature.input_specs
        self.inputs = [_input(exported, spec.arg) for spec in specs if spec.kind is kind]
        args, kwargs = self._spec.unflatten(range(self._spec.num_leaves))
        self._keywords = list(kwargs)
        first = exported.module_call_graph[0].signature
        names = None if first is None else first.forward_arg_names
        self._positional = list(names or ())[: len(args)]
        """The names of the arguments that were exported by position."""
        # The usual call needs no pytree: tensors by position alone.
        are_tensors = all(isinstance(argument, int) for argument in args)
        self._takes_tensors_only = are_tensors and not kwargs

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sample:
        """Return the call in the form of the export; arguments may be given by name.

        Raises QuantizationError for a call that differs.
        """
        if self._takes_tensors_only and not kwargs and len(args) == len(self.inputs):
            flat = list(args)
        else:
            named = dict(kwargs)
            missing = self._positional[len(args) :]
            if set(named) == {*missing, *self._keywords}:
                args = (*args, *[named[name] for name in missing])
                kwargs = {name: named[name] for name in self._keywords}
            flat, spec = pytree.tree_flatten((args, kwargs))
            if spec != self._spec:
                expected = self._spec.unflatten([given.name for given in self.inputs])
                raise QuantizationError(
                    f"{self._name} is called with {_described(args, kwargs)}; it was exported for"
                    f" {_described(*expected)}"
                )
        for expected_input, value in zip(self.inputs, flat, strict=True):
            problem = expected_input.problem(value)
            if problem is not None:
                raise QuantizationError(f"{self._name}: {problem}")
        return Sample(args, kwargs)


def export(module: torch.nn.Module, call: Sample, dynamic_shapes: object = None) -> ExportedProgram:
    """Export a module for inference.

    dynamic_shapes
        As `torch.export.export` takes it. None: dimension 0 of every tensor may vary if the module
        allows it; in an example where it is 1, all tensors must allow it. "auto": so may every size.

    Raises QuantizationError.
    """
    every = dynamic_shapes == "auto"
    if dynamic_shapes is not None and not every:
        return _exported(module, call, dynamic_shapes)
    values = pytree.tree_leaves(tuple(call))
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.dim()]
    if all(tensor.shape[0] == 1 for tensor in tensors):
        # A size of 1 never varies in torch.export, so one item is exported as two.
        twice = Sample(*pytree.tree_map_only(torch.Tensor, _doubled, tuple(call)))
        try:
            exported = _exported(module, twice, _varying(module, twice, every=every))
        except QuantizationError:
            return _exported(module, call, None)
        inputs = Signature(exported, "").inputs
        if all(given.shape[0] is None for given in inputs if given.shape):
            return exported
        return _exported(module, call, None)
    return _exported(module, call, _varying(module, call, every=every))


def export_again(module: torch.nn.Module, exported: ExportedProgram) -> ExportedProgram:
    """Export `module`, which was made from `exported`, so that the same sizes may vary.

    Raises QuantizationError.
    """
    args, kwargs = exported.example_inputs
    call = Sample(tuple(args), dict(kwargs))
    shapes: Any = ShapesCollection()  # type: ignore[no-untyped-call] # of torch
    values = pytree.tree_leaves(tuple(call))
    for known_input, value in zip(Signature(exported, "").inputs, values, strict=True):
        varying = {dim: Dim.AUTO for dim, size in enumerate(known_input.shape) if size is None}
        if varying:
            shapes[value] = varying
    return _exported(module, call, shapes.dynamic_shapes(module, call.args, call.kwargs))


def _exported(module: torch.nn.Module, call: Sample, dynamic_shapes: Any) -> ExportedProgram:
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return torch.export.export(
                module, call.args, call.kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:
        raise QuantizationError(
            f"{type(module).__name__} cannot be exported by torch.export: {first_line(error)}"
        ) from error


def _doubled(value: torch.Tensor) -> torch.Tensor:
    return torch.cat([value, value]) if value.dim() else value


def _varying(module: torch.nn.Module, call: Sample, *, every: bool) -> Any:
    shapes: Any = ShapesCollection()  # type: ignore[no-untyped-call] # of torch
    for value in pytree.tree_leaves(tuple(call)):
        if isinstance(value, torch.Tensor) and value.dim():
            sizes = list(enumerate(value.shape))[: None if every else 1]
            # torch warns of sizes of 1, which it always fixes.
            shapes[value] = {dim: Dim.AUTO for dim, size in sizes if size != 1}
    return shapes.dynamic_shapes(module, call.args, call.kwargs)


def _input(exported: ExportedProgram, argument: Any) -> Input:
    if isinstance(argument, ConstantArgument):
        return Input(argument.name, None, constant=argument.value)
    value = next(
        node.meta["val"]
        for node in exported.graph.nodes
        if node.op == "placeholder" and node.name == argument.name
    )
    shape = tuple([size if isinstance(size, int) else None for size in value.shape])
    return Input(argument.name, value.dtype, shape)


def _described(args: Any, kwargs: dict[str, Any]) -> str:
    """**Ex.:** ``2 arguments and the keywords mask, ids``."""
    named = f" and the {plural(len(kwargs), 'keyword')} {', '.join(kwargs)}" if kwargs else ""
    return f"{counted(len(args), 'argument')}{named}"
