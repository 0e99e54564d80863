# SPDX-License-Identifier: Apache-2.0
"""The search for the operators that have to stay float so that a model stays accurate enough.

1. Everything is quantized, and the accuracy evaluated.
2. Where it drops by more than allowed, the harm of each operator is measured: the squared error of the
   model's outputs, relative to the float outputs, when this operator alone is quantized. Poolings and the
   like are quantized only between others: for them it is the error that remains without them.
3. Operators are turned back to float, the most harmful first, until the drop is allowed.
4. Each of them is tried in INT8 again, the least harmful first, until none can be put back: an operator
   that was turned back only because it came before others in the order is quantized after all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from xruntime.compilation.samples import Sample, sample_call
from xruntime.errors import QuantizationError, UnobservedError
from xruntime.quantization.calibration import Observed, prepare
from xruntime.quantization.conversion import converted, converted_graph
from xruntime.quantization.operators import FOLLOWERS
from xruntime.quantization.quantized_module import QuantizedModule
from xruntime.quantization.recipe import QuantConf

_log = logging.getLogger("xruntime")

Evaluate = Callable[[nn.Module], float]

HARM_BATCHES: Final = 4
"""Batches of the calibration data on which the harm of an operator is measured."""


class TuningStep(NamedTuple):
    """One evaluated recipe. **Ex.:** ``TuningStep("float", "fc", 0.971, ("fc",), True)``"""

    action: str
    """start: all in INT8; float: an operator was turned back to float; int8: one was tried in INT8 again;
    compiled: the result, compiled."""

    operator: str
    accuracy: float
    floats: tuple[str, ...]
    """The operators that were float in this step."""

    allowed: bool
    """Whether the drop of accuracy was allowed."""

    def __str__(self) -> str:
        verdict = "allowed" if self.allowed else "too low"
        subject = f"{self.action} {self.operator}".rstrip()
        return f"{subject}: accuracy {self.accuracy:.5g} ({verdict}), {len(self.floats)} in float"


class Autotuned(NamedTuple):
    """The result of `autotune`."""

    module: QuantizedModule
    conf: QuantConf
    float_accuracy: float
    accuracy: float
    """Of `module`, compiled."""

    steps: tuple[TuningStep, ...]

    def __str__(self) -> str:
        lines = [f"float: accuracy {self.float_accuracy:.5g}", *map(str, self.steps)]
        return "\n".join(lines)


def autotune(
    model: nn.Module,
    calibration: Iterable[object],
    evaluate: Evaluate,
    max_drop: float = 0.01,
    *,
    conf: QuantConf | None = None,
    relative: bool = False,
    dynamic_shapes: object = None,
) -> Autotuned:
    """Quantize `model` as far as its accuracy allows; report each step.

    calibration
        The batches to calibrate with, each a tensor, a tuple of arguments or a dict of keyword arguments.
        It is read several times, so an iterator is an error. The first batch is the example.
    evaluate
        Returns the accuracy of the module that it is given, where larger is better.
    max_drop
        The largest allowed difference between the accuracy of the float module and of the INT8 one;
        `relative`: as a share of the float module's.
    conf
        The recipe to start from; operators that are float in it stay float. It is not changed.
    dynamic_shapes
        As for `prepare`.

    Steps are evaluated operator by operator, and the result once more, compiled; should that drop
    further, operators are turned back until it is allowed. The logger `xruntime` reports each step at
    level INFO. Raises what `prepare` and `convert` raise; QuantizationError if even the float graph, in
    which nothing is quantized, drops too far, for example because `evaluate` is random.
    """
    if isinstance(calibration, Iterator):
        raise QuantizationError(
            "calibration is an iterator, which can be read once only: give a list, or a DataLoader"
        )
    if not max_drop >= 0:
        raise QuantizationError(f"max_drop is {max_drop!r}: a number of at least 0 is expected")
    first = next(iter(calibration), None)
    if first is None:
        raise QuantizationError("calibration has not a single batch: give some typical data")
    recipe = QuantConf() if conf is None else conf.copy()
    observed = prepare(model, recipe, first, dynamic_shapes=dynamic_shapes)
    accuracy = _accuracy(evaluate, model)
    least = accuracy - (max_drop * abs(accuracy) if relative else max_drop)
    return _Search(observed, calibration, evaluate, accuracy, least).run()


class _Search:
    def __init__(
        self,
        observed: Observed,
        calibration: Iterable[object],
        evaluate: Evaluate,
        float_accuracy: float,
        least: float,
    ) -> None:
        self.calibration = calibration
        self.evaluate = evaluate
        self.observed = observed
        self.float_accuracy, self.least = float_accuracy, least
        self._calibrate(self.observed)
        self.conf = self.observed.conf
        self.steps: list[TuningStep] = []

    def run(self) -> Autotuned:
        fixed = frozenset(self.conf.names("float"))
        if self._try("start", "", []):
            order: list[str] = []
        else:
            order = self._most_harmful_first(fixed)
            self._turn_back(order)
            self._put_back(order)
        while True:
            module = converted(self.observed, self.conf)
            accuracy = _accuracy(self.evaluate, module)
            floats = [name for name in self.conf.names("float") if name not in fixed]
            step = self._report("compiled", "", accuracy, floats)
            if step.allowed:
                steps = tuple(self.steps)
                return Autotuned(module, module.conf, self.float_accuracy, accuracy, steps)
            order = order or self._most_harmful_first(fixed)
            quantized = self.conf.names("int8")
            name = next((name for name in order if name in quantized), None)
            if name is None:
                raise self._impossible()
            self.conf.keep_float(name)

    def _turn_back(self, order: Sequence[str]) -> None:
        """Turn operators back to float, in this order, until the accuracy is allowed."""
        for at, name in enumerate(order):
            self.conf.keep_float(name)
            if self._try("float", name, order[: at + 1]):
                return
        raise self._impossible()

    def _put_back(self, order: Sequence[str]) -> None:
        """Quantize the least harmful operator that is allowed, until there is none."""
        changed = True
        while changed:
            changed = False
            for name in reversed(self._floats(order)):
                self.conf.use_int8(name)
                if self._try("int8", name, self._floats(order)):
                    changed = True
                else:
                    self.conf.keep_float(name)

    def _floats(self, order: Sequence[str]) -> list[str]:
        """Return the operators that are float now."""
        floats = self.conf.names("float")
        return [name for name in order if name in floats]

    def _most_harmful_first(self, fixed: frozenset[str]) -> list[str]:
        """Order the operators that may be turned back by the error that each alone causes."""
        names = [name for name in self.conf.operators if name not in fixed]
        batches = [sample_call(batch) for batch in islice(self.calibration, HARM_BATCHES)]
        everything_int8 = self.conf.copy().use_int8(*names)
        everything_float = self.conf.copy().keep_float(*names)
        expected = self._outputs(everything_float, batches)
        most = _relative_error(expected, self._outputs(everything_int8, batches))
        harm = {}
        for name in names:
            if self.conf.operators[name].kind in FOLLOWERS:
                without = everything_int8.copy().keep_float(name)
                harm[name] = most - _relative_error(expected, self._outputs(without, batches))
            else:
                alone = everything_float.copy().use_int8(name)
                harm[name] = _relative_error(expected, self._outputs(alone, batches))
            _log.info("autotune: %s: relative squared error %.3g", name, harm[name])
        return sorted(names, key=lambda name: -harm[name])

    def _outputs(self, conf: QuantConf, batches: Sequence[Sample]) -> list[list[torch.Tensor]]:
        graph = self._graph(conf)
        return [_outputs(graph, call) for call in batches]

    def _try(self, action: str, name: str, floats: Sequence[str]) -> bool:
        accuracy = _accuracy(self.evaluate, self._graph(self.conf))
        return self._report(action, name, accuracy, floats).allowed

    def _report(self, action: str, name: str, accuracy: float, floats: Sequence[str]) -> TuningStep:
        step = TuningStep(action, name, accuracy, tuple(floats), accuracy >= self.least)
        self.steps.append(step)
        _log.info("autotune: %s", step)
        return step

    def _graph(self, conf: QuantConf) -> torch.fx.GraphModule:
        """Return the graph that computes in float what the INT8 kernels would compute."""
        try:
            return converted_graph(self.observed, conf)[0]
        except UnobservedError:
            # Another fusion reads a tensor that was not observed before.
            again = self.observed.again(conf)
            self._calibrate(again)
            self.observed.scales = again.scales | self.observed.scales
            return converted_graph(self.observed, conf)[0]

    def _calibrate(self, observed: Observed) -> None:
        for batch in self.calibration:
            call = sample_call(batch)
            observed(*call.args, **call.kwargs)
        observed.finish()

    def _impossible(self) -> QuantizationError:
        return QuantizationError(
            f"no operator is left to turn back to float, and the accuracy is"
            f" {self.steps[-1].accuracy:.5g}; allowed is {self.least:.5g} (float: "
            f"{self.float_accuracy:.5g}). Is evaluate() random?"
        )


def _accuracy(evaluate: Evaluate, module: nn.Module) -> float:
    accuracy = float(evaluate(module))
    if math.isnan(accuracy):
        raise QuantizationError("evaluate returned NaN: a number is expected")
    return accuracy


def _outputs(graph: torch.fx.GraphModule, call: Sample) -> list[torch.Tensor]:
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        outputs = graph(*call.args, **call.kwargs)
    return [
        leaf.double()
        for leaf in pytree.tree_leaves(outputs)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]


def _relative_error(expected: list[list[torch.Tensor]], seen: list[list[torch.Tensor]]) -> float:
    """Return the squared error of all outputs, each relative to its own squares."""
    error = 0.0
    for call_expected, call_seen in zip(expected, seen, strict=True):
        for left, right in zip(call_expected, call_seen, strict=True):
            squares = left.square().sum().item()
            error += (left - right).square().sum().item() / (squares or 1.0)
    return error
