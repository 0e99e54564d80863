# SPDX-License-Identifier: Apache-2.0
"""What `optimize` did and why: its passes by name, what became of each, and the report."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from xruntime.compilation.judge import Difference
from xruntime.errors import OptimizationError

if TYPE_CHECKING:
    from xruntime.optimization.optimized_code import OptimizedCode


class SkipPassError(Exception):
    """Raised by a pass that has nothing to do or cannot do it. The text is the reason."""


class PassOutcome(enum.Enum):
    """What became of a pass."""

    APPLIED = "applied"
    SKIPPED = "skipped"
    UNDONE = "undone"
    """It was applied, and then the outputs differed or the model failed on the sample."""


class Step(NamedTuple):
    """One pass.

    **Ex.:** ``Step("conv_bn", PassOutcome.APPLIED, "folded 2 batch norms into the convolutions
    before")``
    """

    name: str
    outcome: PassOutcome
    reason: str


INFERENCE: Final[Mapping[str, str]] = {
    "no_grad": "calls record nothing for backward, which saves time and memory",
    "dropout": "a dropout does nothing in eval mode, and its call is saved",
    "conv_bn": "a batch norm that follows a convolution becomes part of its weights",
    "linear_bn": "a batch norm that follows a linear becomes part of its weights",
    "channels_last": "convolutions are faster when the channels of a pixel are neighbours in memory",
    "weight_bits": "linears of models with generate() have weights of `weight_bits`, fewer bytes for each token",
    "precision": "matrix multiplications and convolutions run in `dtype`, by autocast",
    "weights": "weights that autocast would convert in each call are stored in `dtype`",
    "join_linears": "linears with the same input become one, such as queries, keys and values",
    "linear_rows": "linears of models with generate() read their weights as fast as memory allows",
    "decode_step": "generate() computes each token by one native call, in Llama, Qwen, Gemma, Phi and others",
}
"""The passes for inference in their order, and what each is for."""

TRAINING: Final[Mapping[str, str]] = {
    "channels_last": INFERENCE["channels_last"],
    "precision": INFERENCE["precision"],
    "dropout_training": "masks are drawn by all threads, and made again in backward in place of stored",
    "gelu_training": "GELU and its derivative are one pass each, with one exponential for a value",
    "fused_optimizer": "a step is one pass over weights, gradients and states",
    "split_bf16": "weights are bf16, and the optimizer keeps the 16 bits that fp32 has more",
}
"""The passes for training in their order, and what each is for."""


class Timing(NamedTuple):
    """The time of one call of a candidate.

    **Ex.:** ``Timing("input", 0.0132, True)``
    """

    candidate: str
    median_s: float
    kept: bool


class Explanation(NamedTuple):
    """What `optimize` did to one model."""

    model: str
    level: str
    steps: tuple[Step, ...]
    bytes_before: int
    """Parameters and buffers of the input."""

    bytes_after: int
    """Parameters and buffers of the result, without what compiled code keeps."""

    bytes_kept: int
    """Weights that only `state_dict` needs. They are the input's tensors, not copies."""

    difference: Difference | None
    """The largest difference from the input's outputs on the sample; None without a sample."""

    timings: tuple[Timing, ...] = ()

    def step(self, name: str) -> Step:
        """Return the step of that name. Raises KeyError."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    def __str__(self) -> str:
        lines = [f"{self.model}, optimized at level {self.level}"]
        lines += [f"  {step.name}: {step.outcome.value}: {step.reason}" for step in self.steps]
        lines.append(
            f"  memory of weights: {_mib(self.bytes_before)} before, {_mib(self.bytes_after)} after"
            + (f", and {_mib(self.bytes_kept)} kept for state_dict()" if self.bytes_kept else "")
        )
        if self.difference is not None:
            lines.append(f"  compared with the model on the sample: {self.difference}")
        else:
            lines.append("  not compared with the model: there was no sample_input")
        lines += [
            f"  {timing.candidate}: {timing.median_s * 1e3:.3g} ms a call{' (kept)' if timing.kept else ''}"
            for timing in self.timings
        ]
        return "\n".join(lines)


_explanations: WeakKeyDictionary[nn.Module, Explanation] = WeakKeyDictionary()

_CODE: Final = "_xruntime_code"
"""Where a model's code is: it refers to the model, so that the table would keep every model."""


def explain(model: nn.Module) -> Explanation:
    """Return what `optimize` did to the model that it returned; printing it shows all.

    Raises OptimizationError for another module.
    """
    explanation, code = _explanations.get(model), vars(model).get(_CODE)
    if explanation is None:
        raise OptimizationError(
            f"this {type(model).__name__} was not returned by xruntime.optimize: explain() the module that"
            " optimize() returned"
        )
    native = getattr(vars(model).get("_xruntime_optimized"), "step", None)
    if native is not None and native.speed.line is not None:
        step = explanation.step("decode_step")
        measured = step._replace(reason=f"{step.reason}; {native.speed.line}")
        steps = [measured if other is step else other for other in explanation.steps]
        return explanation._replace(steps=tuple(steps))
    if code is None:
        return explanation
    outcome = PassOutcome.APPLIED if code.refusal is None else PassOutcome.SKIPPED
    return explanation._replace(steps=(*explanation.steps, Step("graph", outcome, code.describe())))


def is_explained(model: nn.Module) -> bool:
    """Whether `optimize` returned this module."""
    return model in _explanations


def is_for_training(model: nn.Module) -> bool:
    """Whether `optimize` returned this module together with an optimizer."""
    steps = _explanations[model].steps if is_explained(model) else ()
    return any(step.name == "fused_optimizer" for step in steps)


def remember(model: nn.Module, explanation: Explanation, code: OptimizedCode | None = None) -> None:
    _explanations[model] = explanation
    if code is not None:
        vars(model)[_CODE] = code


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
