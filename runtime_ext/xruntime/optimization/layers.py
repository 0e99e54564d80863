# SPDX-License-Identifier: Apache-2.0
"""Layers that passes put in the place of a model's own: with weights in a lower precision, and joined.

Layers with weights in a lower precision take and return float32 wherever they are called. In calls of the
model autocast converts their inputs. But a model's other methods, such as generate() and encode(), and callers
of a part of it, run without autocast.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from xruntime import native
from xruntime.errors import KernelsUnavailableError
from xruntime.optimization.edits import ReplacedModule
from xruntime.optimization.steps import SkipPassError
from xruntime.threads.torch_modes import current_autocast, transformed


def with_low_weights(
    function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, low: torch.dtype
) -> torch.Tensor:
    """Return `function(value)`, computed in `low` and returned in float32 where autocast is off.

    Under autocast, or for a value in `low`, the result is what `function` returns. Autocast would convert the
    value, too, but not within torch.vmap.
    """
    output = function(value.to(low) if value.dtype == torch.float32 else value)
    if value.dtype == low or torch.is_autocast_enabled("cpu"):
        return output
    return output.to(torch.float32) if output.dtype == low else output


def require_kernels() -> None:
    """Raise SkipPassError if there are no native kernels for this CPU."""
    try:
        native.library()
        native.isa_name()
    except KernelsUnavailableError as error:
        raise SkipPassError(str(error)) from error


class LowPrecisionLayer(ReplacedModule):
    """A layer with its weight in a lower precision."""

    weight: torch.Tensor

    def forward(self, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: A002 - torch's name
        forward = super().forward
        return with_low_weights(
            lambda value: forward(value, *args, **kwargs), input, self.weight.dtype
        )


class _WaitingOutputs(NamedTuple):
    """Outputs that the first linear computed for the others."""

    value: torch.Tensor
    state: tuple[Any, ...]
    earlier: torch.Tensor | None
    """A copy of a tensor made in inference mode, whose changes torch does not count."""

    outputs: dict[Any, torch.Tensor]


class JoinedWeights:
    """The weights of several linears with one input, side by side in one matrix.

    The first linear that is called computes the outputs of all, and the others take theirs, if they
    are called with the same tensor in the same thread. Otherwise each computes its own, also once one of them has other
    parameters or hooks, and where torch transforms calls or compiles them: Inductor may join them again.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._sizes = sizes = [linear.out_features for linear in linears]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        given: list[Any] = [linear.bias for linear in linears]
        bias = None
        if any(own is not None for own in given):
            zeros = map(weight.new_zeros, sizes)
            pairs = zip(given, zeros, strict=True)
            bias = torch.cat([zero if own is None else own.detach() for own, zero in pairs])
        split: Any = torch.split
        biases = given if bias is None else split(bias, sizes)
        self.rows: dict[Any, dict[str, Any]] = {
            linear: {"weight": rows, "bias": None if own is None else part}
            for linear, rows, own, part in zip(
                linears, split(weight, sizes), given, biases, strict=True
            )
        }
        """By linear: the memory of its parameters."""

        self._whole = copy.copy(linears[0])
        vars(self._whole)["_parameters"] = {"weight": weight, "bias": bias}
        self._tensors = [weight] if bias is None else [weight, bias]
        self._waiting = threading.local()

    def __reduce__(self) -> Any:
        """Copies of linears have parameters of their own, and no `JoinedWeights`."""
        return type(None), ()

    def output(self, linear: nn.Module, value: torch.Tensor) -> torch.Tensor | None:
        """Return the output of one of the linears; None where it has to compute that itself."""
        if transformed():
            return None
        waiting: _WaitingOutputs | None = getattr(self._waiting, "call", None)
        if waiting is not None and waiting.value is value and linear in waiting.outputs:
            output: torch.Tensor = waiting.outputs.pop(linear)
            same = waiting.state == self._state(value) and self._has_rows(linear)
            same = same and (waiting.earlier is None or torch.equal(waiting.earlier, value))
            if not same or not waiting.outputs:
                self._waiting.call = None
            return output if same else None
        if linear is not next(iter(self.rows)) or not all(map(self._has_rows, self.rows)):
            return None
        # Autograd does not let a model change the results of torch.split in place.
        split: Any = torch.unsafe_split_with_sizes
        outputs = dict(
            zip(self.rows, split(self._whole.forward(value), self._sizes, -1), strict=True)
        )
        output = outputs.pop(linear)
        earlier = value.clone() if value.is_inference() else None
        self._waiting.call = _WaitingOutputs(value, self._state(value), earlier, outputs)
        return output

    def _state(self, value: torch.Tensor) -> tuple[Any, ...]:
        """Return torch's counts of changes and its modes."""
        counted = self._tensors if value.is_inference() else [value, *self._tensors]
        versions = [tensor._version for tensor in counted]  # noqa: SLF001 - no public one
        return versions, torch.is_grad_enabled(), current_autocast()

    def _has_rows(self, linear: nn.Module) -> bool:
        """Whether a call of the linear multiplies by its rows, and does nothing else."""
        own = vars(linear)
        if own["_forward_pre_hooks"] or own["_forward_hooks"]:
            return False
        for name, rows in self.rows[linear].items():
            parameter = own["_parameters"].get(name)
            if rows is None or type(parameter) is not nn.Parameter:
                if rows is not parameter:
                    return False
            elif parameter.dtype != rows.dtype or not parameter.is_set_to(rows):
                return False
        gradients = torch.is_grad_enabled()
        return not (gradients and any(it.requires_grad for it in linear.parameters()))


class JoinedLinear(ReplacedModule):
    """One of the linears of a `JoinedWeights`."""

    _xruntime_joined: JoinedWeights | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        joined = None if torch.compiler.is_compiling() else self._xruntime_joined
        output = None if joined is None else joined.output(self, input)
        return super().forward(input) if output is None else output
