# SPDX-License-Identifier: Apache-2.0
"""`prepare`: a copy of the model that observes, and reads and writes recipes. `convert`: an INT8 module of it."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils import _pytree as pytree

from xruntime import quantization
from xruntime.compat.ipex.int8_operator import is_traced, pack, unpack, untraced
from xruntime.compat.ipex.quantization.settings import new_recipe
from xruntime.compat.ipex.replacements import report
from xruntime.compilation.samples import Sample
from xruntime.errors import QuantizationError
from xruntime.quantization import QuantConf
from xruntime.quantization.quantized_module import QuantizedModule


class Prepared(nn.Module):
    """What `prepare` returns: called with batches of typical data, it returns the model's outputs."""

    def __init__(
        self, model: nn.Module, conf: QuantConf, example: Sample | None, dynamic_shapes: object
    ) -> None:
        super().__init__()
        # Not parts of this module, whose weights are those of the observed copy.
        self._model, self._recipe, self._shapes = [model], conf, dynamic_shapes
        self._example = example
        self._observed: list[quantization.Observed] = []
        """Empty until there is an example."""
        self.training = False
        if example is not None:
            observed = quantization.prepare(model, conf, example, dynamic_shapes=dynamic_shapes)
            self._observed = [observed]

    def __getitem__(self, index: object) -> NoReturn:
        """Raise a TypeError that names the original: this module has no layers of its own."""
        raise TypeError(f"what prepare returns has no layers: use prepared.model[{index!r}]")

    @property
    def model(self) -> nn.Module:
        return self._model[0]

    @property
    def waits(self) -> bool:
        """Whether it has no example inputs yet; its first call provides them."""
        return not self._observed

    @property
    def observed(self) -> quantization.Observed:
        """The calibration, for xruntime.quantization. Raises QuantizationError before the first call."""
        if self.waits:
            raise QuantizationError(
                "prepare was given no example inputs, so the model's operators are not known: call the"
                " prepared model once, or give example_inputs"
            )
        return self._observed[0]

    @property
    def recipe(self) -> QuantConf:
        """The recipe, which is incomplete before the calibration ends."""
        return self._recipe if self.waits else self.observed.conf

    def again(self, *, recipe: QuantConf | None = None, example: Sample | None = None) -> Prepared:
        """Prepare the same model with another recipe or example. Raises what `prepare` raises."""
        recipe, example = recipe or self.recipe.copy(), example or self._example
        return Prepared(self.model, recipe, example, self._shapes)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Observe a batch; return the model's outputs. Raises QuantizationError."""
        if self.waits:
            self._take_over(self.again(example=Sample(args, kwargs)))
        return self.observed(*args, **kwargs)

    def save_qconf_summary(self, qconf_summary: str | os.PathLike[str]) -> None:
        """End the calibration and write the recipe, as xruntime.quantization.QuantConf.save does.

        Raises QuantizationError without a single batch, RecipeError if the file cannot be written.
        """
        self.observed.finish()
        self.observed.conf.save(qconf_summary)

    def load_qconf_summary(self, qconf_summary: str | os.PathLike[str]) -> None:
        """Use a recipe that `save_qconf_summary` wrote. Then `convert` needs no calibration.

        Raises RecipeError if it cannot be read or is of another model, and QuantizationError; then it
        changes nothing.
        """
        conf = QuantConf.load(qconf_summary)
        if self.waits:
            self._recipe = conf
        elif self.observed.batches and conf.mode == self.observed.conf.mode:
            conf.check_operators(self.observed.operators, self.observed.name)
            # What was observed supplies scales that the recipe does not have.
            self.observed.finish()
            self.observed.conf = conf
        else:
            self._take_over(self.again(recipe=conf))

    def _take_over(self, other: Prepared) -> None:
        self._example, self._observed = other._example, other._observed


def prepare(
    model: nn.Module,
    configure: object,
    example_inputs: Any = None,
    inplace: bool = False,
    bn_folding: bool = True,
    example_kwarg_inputs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: object = None,
) -> Prepared:
    """Return a copy of `model` that observes its tensors; the model is not changed.

    model
        An eager module on the CPU, in float32. Of a module in training mode, a copy in eval mode with the
        same weights is prepared.
    configure
        `default_static_qconfig_mapping`, `default_dynamic_qconfig_mapping`, or torch's QConfigMapping or
        QConfig.
    example_inputs, example_kwarg_inputs
        The inputs of one call: a tensor or a tuple of arguments, or a dict of keyword arguments. Dynamic
        quantization needs none: the first call is the example then.
    inplace, bn_folding
        Accepted: the result is always a copy, with batch norms folded.
    dynamic_shapes
        As for `xruntime.quantization.prepare`. None: dimension 0 of every tensor may vary; for dynamic
        quantization every size that the model allows.

    Raises QuantizationError, SampleError; CompilationError for a model that is not eager.
    """
    conf = new_recipe(configure)
    if inplace:
        report("prepare(inplace=True): the model itself is never changed; use what prepare returns")
    if not bn_folding:
        report("prepare(bn_folding=False): batch norms are folded nevertheless")
    model = eval_form(model)
    example = _example(example_inputs, example_kwarg_inputs)
    dynamic = conf.mode == "dynamic"
    if example is None and not dynamic:
        raise QuantizationError(
            "neither of example_inputs and example_kwarg_inputs is given: static quantization needs the"
            " inputs of one call in one of them"
        )
    if dynamic_shapes is None and dynamic:
        dynamic_shapes = "auto"
    return Prepared(model, conf, example, dynamic_shapes)


def eval_form(model: Any) -> Any:
    """Return the module. If it is in training mode: a copy in eval mode, with the same weights."""
    if not isinstance(model, nn.Module) or not any(module.training for module in model.modules()):
        return model
    report(
        f"this {type(model).__name__} is in training mode: a copy in eval mode, with the same weights, is"
        " quantized",
        stacklevel=3,
    )
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared).eval()


def _example(inputs: Any, keywords: Mapping[str, Any] | None) -> Sample | None:
    if inputs is not None and keywords is not None:
        raise QuantizationError(
            "both of example_inputs and example_kwarg_inputs are given: prepare needs the inputs of one call"
            " in one of them"
        )
    if keywords is not None:
        return Sample((), dict(keywords))
    if inputs is None:
        return None
    # A dict here is the one positional argument.
    alone = isinstance(inputs, torch.Tensor | Mapping)
    return Sample((inputs,) if alone else tuple(inputs), {})


class Converted(QuantizedModule):
    """An `xruntime.quantization.QuantizedModule` that can also be traced, pickled and copied.

    In a trace it is the operator `xruntime::int8_module`, so `xruntime.compat.ipex` has to be imported
    where a saved trace is loaded, as the extension had to be.
    """

    _archive: torch.Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, computed in INT8."""
        if not is_traced():
            return super().forward(*args, **kwargs)
        with untraced():
            # The structure is a part of the trace, like all values that are not tensors.
            leaves, structure = pytree.tree_flatten(super().forward(*args, **kwargs))
        values = pytree.tree_leaves((args, kwargs))
        inputs = [value for value in values if isinstance(value, torch.Tensor)]
        traced = iter(torch.ops.xruntime.int8_module(self._packed(), inputs))
        leaves = [next(traced) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, structure)

    def __reduce__(self) -> Any:
        return _unpacked, (self._packed(),)

    def _packed(self) -> torch.Tensor:
        if self._archive is None:
            with untraced():
                self._archive = pack(self)
        return self._archive


class ConvertedLater(nn.Module):
    """An INT8 module that is made when it is first called, for a model prepared without an example."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__()
        # Neither is a part of this module, as torch.jit.trace sees it.
        self._prepared, self._converted = [prepared], list[Converted]()
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, computed in INT8. Raises QuantizationError."""
        with _lock:
            if not self._converted:
                with untraced():
                    prepared = self._prepared[0].again(example=Sample(args, kwargs))
                    self._converted.append(_traceable(quantization.convert(prepared.observed)))
        return self._converted[0](*args, **kwargs)


_lock = threading.RLock()


def convert(model: Prepared, inplace: bool = False) -> nn.Module:
    """Return the INT8 module that the recipe of a prepared model describes.

    Without example inputs, its first call is the example. `inplace` is accepted: the prepared model is
    never changed. Raises QuantizationError, for example without a single batch of calibration, and
    RecipeError; the prepared model is as before then.
    """
    if not isinstance(model, Prepared):
        raise QuantizationError(
            f"convert takes what ipex.quantization.prepare returned, and this is a {type(model).__name__}"
        )
    if inplace:
        report(
            "convert(inplace=True): the prepared model is never changed; use what convert returns"
        )
    if model.waits:
        return ConvertedLater(model)
    return _traceable(quantization.convert(model.observed))


def _traceable(module: QuantizedModule) -> Converted:
    return Converted(module.exported, module.conf, module.name)


def _unpacked(archive: torch.Tensor) -> Converted:
    return _traceable(unpack(archive))
