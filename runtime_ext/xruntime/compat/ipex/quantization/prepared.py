# SPDX-License-Identifier: Apache-2.0
"""`prepare`: a copy of the model that observes, and writes and reads recipes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from xruntime import quantization
from xruntime.compat.ipex.quantization.settings import new_recipe
from xruntime.compat.ipex.reports import report
from xruntime.errors import QuantizationError
from xruntime.quantization import QuantConf


class Prepared(nn.Module):
    """What `prepare` returns: called with batches of typical data, it returns the model's outputs."""

    def __init__(self, model: nn.Module, conf: QuantConf, example: object) -> None:
        super().__init__()
        # Not parts of this module, whose weights are those of the observed copy.
        self._model, self._example = [model], example
        self._observed = [quantization.prepare(model, conf, example)]
        self.training = False

    @property
    def model(self) -> nn.Module:
        """The model that was prepared."""
        return self._model[0]

    @property
    def example(self) -> Any:
        """The example inputs: a tuple of arguments or a dict of keyword arguments."""
        return self._example

    @property
    def observed(self) -> quantization.Observed:
        """The calibration, for xruntime.quantization."""
        return self._observed[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Observe a batch; return the model's outputs. Raises QuantizationError."""
        return self.observed(*args, **kwargs)

    def save_qconf_summary(self, qconf_summary: str | os.PathLike[str]) -> None:
        """End the calibration and write the recipe, as xruntime.quantization.QuantConf.save does.

        Raises QuantizationError without a single batch, RecipeError if the file cannot be written.
        """
        self.observed.finish()
        self.observed.conf.save(qconf_summary)

    def load_qconf_summary(self, qconf_summary: str | os.PathLike[str]) -> None:
        """Take over a recipe that `save_qconf_summary` wrote; `convert` needs no calibration then.

        Raises RecipeError, and changes nothing, if it cannot be read or is of another model.
        """
        self.take(QuantConf.load(qconf_summary))

    def take(self, conf: QuantConf) -> None:
        """Take over a recipe. Raises RecipeError, QuantizationError; then nothing has changed."""
        observed = self.observed
        if observed.batches and conf.mode == observed.conf.mode:
            conf.check_operators(observed.operators, observed.name)
            # What was observed supplies scales that the recipe does not have.
            observed.finish()
            observed.conf = conf
        else:
            self._observed = [quantization.prepare(self.model, conf, self.example)]


def prepare(
    model: nn.Module,
    configure: object,
    example_inputs: Any = None,
    inplace: bool = False,
    bn_folding: bool = True,
    example_kwarg_inputs: Mapping[str, Any] | None = None,
) -> Prepared:
    """Return a copy of `model` that observes its tensors; the model is not changed.

    model
        An eager module in eval mode, on the CPU, in float32.
    configure
        `default_static_qconfig_mapping`, `default_dynamic_qconfig_mapping`, or torch's QConfigMapping or
        QConfig.
    example_inputs, example_kwarg_inputs
        The inputs of one call: a tensor or a tuple of arguments, or a dict of keyword arguments.
    inplace, bn_folding
        Accepted: the result is always a copy, with batch norms folded.

    Raises QuantizationError, SampleError; CompilationError for a model that is not eager or in training
    mode.
    """
    conf = new_recipe(configure)
    if inplace:
        report(
            "prepare(inplace=True): the model itself is never changed; use what prepare returns",
        )
    if not bn_folding:
        report("prepare(bn_folding=False): batch norms are folded nevertheless")
    return Prepared(model, conf, _example(example_inputs, example_kwarg_inputs))


def _example(inputs: Any, keywords: Mapping[str, Any] | None) -> tuple[Any, ...] | dict[str, Any]:
    given = [one for one in (inputs, keywords) if one is not None]
    if len(given) != 1:
        raise QuantizationError(
            f"{'both' if given else 'neither'} of example_inputs and example_kwarg_inputs"
            f" {'are' if given else 'is'} given: prepare needs the inputs of one call in one of them"
        )
    if keywords is not None:
        return dict(keywords)
    if isinstance(inputs, torch.Tensor | Mapping):
        # A dict here is the one positional argument.
        return (inputs,)
    return tuple(inputs)
