# SPDX-License-Identifier: Apache-2.0
"""Calibration: a copy of the module that computes in float and observes what will be quantized."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from xruntime.compilation.inductor import eager_module, first_line
from xruntime.compilation.samples import sample_call
from xruntime.errors import QuantizationError, UnobservedError
from xruntime.quantization.operators import (
    name_operators,
    observers,
    operators,
    read_values,
    weight_observers,
)
from xruntime.quantization.recipe import Operator, QuantConf, Scale
from xruntime.quantization.signatures import Signature, export
from xruntime.quantization.torchao_package import import_torchao

_log = logging.getLogger("xruntime")


class Observed(nn.Module):
    """A prepared copy of a module. Call it with batches of typical data; it returns the float outputs.

    Made by `calibrate` or `prepare`. After `finish` the recipe has the scales, and `convert` takes it.
    """

    conf: QuantConf
    """The recipe, which `finish` fills in."""

    batches: int
    """The number of batches that it has seen."""

    finished: bool
    """Whether the calibration has ended: no more batches are taken."""

    def __init__(self, exported: ExportedProgram, conf: QuantConf, name: str) -> None:
        super().__init__()
        self.name = name
        self.conf = conf
        self.exported = exported
        self.signature = Signature(self.exported, self.name)
        self.operators = operators(self.observing(QuantConf(conf.mode)))
        """The operators that can be quantized, all in int8."""

        conf.check_operators(self.operators, self.name)
        self.batches = 0
        self.scales: dict[str, Scale] = {}
        """The scale of each observed tensor, after `finish`."""

        self.finished = False
        self._abandoned = False
        # Not a part of this module: it is replaced, and has no eval mode.
        self._prepared = [self.observing(conf)]
        self.training = False
        if not operators(self._prepared[0]):
            _log.warning("%s: nothing is quantized, so it stays float: %s", name, self._why_float())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Observe a batch; return the module's outputs. Raises QuantizationError for a wrong batch."""
        if self.finished or self._abandoned:
            raise QuantizationError(
                f"the calibration of {self.name} has ended: calibrate again for more batches"
            )
        args, kwargs = self.signature.check(args, kwargs)
        prepared = self._prepared[0]
        own = set(self.exported.graph_signature.buffers)
        buffers = [
            (name, buffer, buffer._version)  # noqa: SLF001 - nothing public tells
            for name, buffer in prepared.named_buffers()
            if name in own and not buffer.is_inference()
        ]
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            try:
                outputs = prepared(*args, **kwargs)
            except Exception as error:
                # torchao's observers of histograms fail for NaN.
                raise QuantizationError(
                    f"{self.name} cannot be calibrated with this batch: {first_line(error)}"
                ) from error
        for name, buffer, version in buffers:
            if buffer._version != version:  # noqa: SLF001
                raise QuantizationError(
                    f"a call of {self.name} changes its buffer {name}, and an INT8 module has no state: keep"
                    " that out of forward"
                )
        self.batches += 1
        return outputs

    def finish(self) -> None:
        """End the calibration and fill in the recipe: the operators, and the scales that were observed.

        Without a batch the scales are those of the recipe. Raises QuantizationError if it has none.
        """
        if self.finished:
            return
        if self._abandoned:
            raise QuantizationError(
                f"the calibration of {self.name} was ended by an error: calibrate again"
            )
        prepared = self._prepared[0]
        static = self.conf.mode == "static"
        if not static:
            scales: dict[str, Scale] = {}
        elif self.batches:
            scales = self._observed_scales(prepared)
        else:
            scales = self._recipe_scales(prepared)
        self.conf.operators = self._filled(self.conf, read_values(prepared), scales)
        from xruntime.quantization.quantizer import machine_range

        self.conf.model = self.name
        self.conf.activation_range = self.conf.activation_range or machine_range()
        self.scales = scales
        self._prepared = []
        self.finished = True

    def abandon(self) -> None:
        """End the calibration without a result; the recipe is not changed."""
        self._abandoned = not self.finished
        self._prepared = []

    def observing(self, conf: QuantConf) -> torch.fx.GraphModule:
        """Return a new copy of the module with observers of what `conf` quantizes.

        Its weights have been observed. Raises QuantizationError, RecipeError.
        """
        from xruntime.quantization.quantizer import check_range, observe

        check_range(conf)
        graph = self.exported.module(check_guards=False)
        copies: dict[int, torch.Tensor] = {}
        for name, buffer in list(graph.named_buffers(remove_duplicate=False)):
            # It is the model's own, and a call may change it.
            path, _, attribute = name.rpartition(".")
            copied = copies.setdefault(id(buffer), buffer.clone())
            setattr(graph.get_submodule(path), attribute, copied)
        name_operators(graph.graph)
        try:
            prepared = observe(graph, conf)
        except Exception as error:
            raise QuantizationError(
                f"torchao cannot prepare {self.name}: {first_line(error)}"
            ) from error
        for observer, weight in weight_observers(prepared):
            observer(weight)
        return prepared

    def with_scales(self, conf: QuantConf) -> tuple[torch.fx.GraphModule, QuantConf]:
        """Return a new copy of the module in which all scales are known, and its complete recipe.

        Scales are those of `conf`, else those that were observed. Raises UnobservedError for a tensor of
        which none is known, RecipeError.
        """
        from xruntime.quantization.quantizer import StoredScale

        prepared = self.observing(conf)
        complete = conf.copy()
        if conf.mode == "dynamic":
            return prepared, complete
        known_scales = self.scales | conf.scales()
        missing = self._missing(prepared, known_scales)
        if missing:
            raise UnobservedError(
                f"no scale is known for {missing[0]}, which the changed recipe quantizes: calibrate again"
                " with this recipe"
            )
        scales = _scales_of_all(prepared, known_scales)
        complete.operators = self._filled(conf, read_values(prepared), scales)
        for observer in observers(prepared):
            scale = scales[observer.values[0]]
            stored = StoredScale(prepared.get_submodule(observer.targets[0]), scale)
            for target in observer.targets:
                prepared.set_submodule(target, stored)
        return prepared, complete

    def again(self, conf: QuantConf) -> Observed:
        """Return a new copy of the same module for another calibration, with a copy of `conf`."""
        return Observed(self.exported, conf.copy(), self.name)

    def _why_float(self) -> str:
        if self.operators:
            kept = len(self.conf.names("float"))
            return f"the recipe keeps {kept} of its {len(self.operators)} operators float"
        if self.conf.mode == "dynamic":
            return "mode dynamic quantizes linear layers, and it calls none; see mode static"
        return "it calls no operator that can be quantized"

    def _missing(self, prepared: torch.fx.GraphModule, known: Mapping[str, Scale]) -> list[str]:
        """Name the tensors whose scale is not known, with the operators that read them."""
        reads = read_values(prepared)
        missing = []
        for observer in observers(prepared):
            if not known.keys() & set(observer.values):
                readers = [name for name, read in reads.items() if set(read) & set(observer.values)]
                missing.append(f"the input {observer.values[0]!r} of {' and '.join(readers)}")
        return missing

    def _observed_scales(self, prepared: torch.fx.GraphModule) -> dict[str, Scale]:
        from xruntime.quantization.quantizer import scale_of

        scales: dict[str, Scale] = {}
        for observer in observers(prepared):
            scale = scale_of(prepared.get_submodule(observer.targets[0]))
            if not math.isfinite(scale.scale):
                raise QuantizationError(
                    f"the tensor {observer.values[0]!r} of {self.name} was infinite or NaN in the"
                    " calibration: leave such batches out"
                )
            scales.update({value: scale._replace(value=value) for value in observer.values})
        return scales

    def _recipe_scales(self, prepared: torch.fx.GraphModule) -> dict[str, Scale]:
        known_scales = self.conf.scales()
        missing = self._missing(prepared, known_scales)
        if missing:
            have = "" if not known_scales else f", and the recipe has no scale for {missing[0]}"
            raise QuantizationError(
                f"{self.name} was calibrated without a single batch{have}: call the observed module with"
                " batches of typical data inside the with block"
            )
        return _scales_of_all(prepared, known_scales)

    def _filled(
        self, conf: QuantConf, reads: Mapping[str, Sequence[str]], scales: Mapping[str, Scale]
    ) -> dict[str, Operator]:
        """Return all operators with the precisions of `conf` and the scales of what they read.

        An operator also keeps those of tensors that it does not read as the recipe is now, because it, or
        one before it, is float: with them the recipe can be changed back without a calibration.
        """
        filled = {}
        for name, operator in self.operators.items():
            before = conf.operators.get(name, operator)
            kept = {scale.value: scale for scale in before.inputs if scale.value}
            known_scales = kept | dict(scales)
            values = dict.fromkeys((*reads.get(name, ()), *kept))
            inputs = tuple([known_scales[value] for value in values if value in known_scales])
            filled[name] = operator._replace(precision=before.precision, inputs=inputs)
        return filled


def _scales_of_all(prepared: torch.fx.GraphModule, known: Mapping[str, Scale]) -> dict[str, Scale]:
    """Return the scale of each observed tensor, of which one that shares the observer is `known`."""
    scales: dict[str, Scale] = {}
    for observer in observers(prepared):
        scale = next(known[value] for value in observer.values if value in known)
        scales.update({value: scale._replace(value=value) for value in observer.values})
    return scales


def prepare(
    model: nn.Module, conf: QuantConf, example_inputs: object, *, dynamic_shapes: object = None
) -> Observed:
    """Return a copy of `model` that observes what the recipe quantizes; the model is not changed.

    model
        An eager module in eval mode, on the CPU, in float32.
    conf
        The recipe, or a part of it: operators that it does not list are quantized.
    example_inputs
        The inputs of one call: a tensor, a tuple of arguments, or a dict of keyword arguments.
    dynamic_shapes
        Which sizes may differ in later calls, as `torch.export.export` takes it. None: dimension 0 of
        every tensor, if the module allows it. "auto": every size that it allows.

    Raises QuantizationError, RecipeError, SampleError; CompilationError for a model that is not eager,
    or in training mode.
    """
    import_torchao()
    if not isinstance(conf, QuantConf):
        raise QuantizationError(
            f"conf is a {type(conf).__name__}: a QuantConf is expected, as of QuantConf.load(path)"
        )
    model = eager_module(model)
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if weight.is_floating_point() and weight.dtype != torch.float32:
            raise QuantizationError(
                f"{type(model).__name__} has weights in {weight.dtype} ({name}): INT8 is made from"
                " float32, so call .float() on it, or on a copy, first"
            )
    exported = export(model, sample_call(example_inputs), dynamic_shapes)
    return Observed(exported, conf, type(model).__name__)


@contextlib.contextmanager
def calibrate(
    model: nn.Module, conf: QuantConf, example_inputs: object, *, dynamic_shapes: object = None
) -> Iterator[Observed]:
    """Prepare as `prepare` does; at the end of the block, fill in the recipe.

        with calibrate(model, conf, example_inputs) as observed:
            for batch in data:
                observed(batch)

    Mode dynamic needs no batch, nor does a recipe that has all scales. If the block raises an error, the
    recipe is not changed. Raises what `prepare` raises, and QuantizationError without a single batch.
    """
    observed = prepare(model, conf, example_inputs, dynamic_shapes=dynamic_shapes)
    try:
        yield observed
        observed.finish()
    except BaseException:
        observed.abandon()
        raise
