# SPDX-License-Identifier: Apache-2.0
"""Layers that passes put in the place of a model's own: with weights in a lower precision, and joined.

Layers with weights in a lower precision take and return float32 wherever they are called. In calls of the
model autocast converts their inputs. But a model's other methods, such as generate() and encode(), and callers
of a part of it, run without autocast.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from xruntime import native
from xruntime.errors import KernelsUnavailableError
from xruntime.optimization.edits import Replaced
from xruntime.optimization.steps import SkipPassError
from xruntime.threads.torch_modes import current_autocast


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


class Lowered(Replaced):
    """A layer with its weight in a lower precision."""

    weight: torch.Tensor

    def forward(self, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: A002 - torch's name
        return with_low_weights(
            lambda value: self._layer.forward(self, value, *args, **kwargs),
            input,
            self.weight.dtype,
        )


class _Waiting(NamedTuple):
    """Outputs that the first linear computed for the others."""

    value: torch.Tensor
    state: tuple[Any, ...]
    copy: torch.Tensor | None
    """Of a tensor made in inference mode."""

    parts: dict[int, torch.Tensor]

    def is_right(self, value: torch.Tensor) -> bool:
        """Whether they are still the outputs for this tensor."""
        if self.value is not value or self.state != _state(value):
            return False
        return self.copy is None or torch.equal(self.copy, value)


def _state(value: torch.Tensor) -> tuple[Any, ...]:
    """Return what decides whether outputs for this tensor are still right.

    Changes of tensors made in inference mode are not counted by torch: `Joined` compares their values.
    """
    version = None if value.is_inference() else value._version  # noqa: SLF001 - no public one
    return version, torch.is_grad_enabled(), current_autocast()


class Joined(nn.Module):
    """The weights of several linears with one input.

    The first linear that is called computes the outputs of all, and the others take theirs, if they
    are called with the same tensor in the same thread. Otherwise each computes its own part, also where
    torch.compile traces it: Inductor may join them again.
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        self.sizes = [linear.out_features for linear in linears]
        self.weight = nn.Parameter(torch.cat([m.weight.detach() for m in linears]), False)
        self.bias: nn.Parameter | None = None
        given: list[torch.Tensor | None] = [linear.bias for linear in linears]
        if any(bias is not None for bias in given):
            biases = [
                self.weight.new_zeros(size) if bias is None else bias.detach()
                for bias, size in zip(given, self.sizes, strict=True)
            ]
            self.bias = nn.Parameter(torch.cat(biases), False)
        self._waiting = threading.local()

    def part(self, at: int, value: torch.Tensor) -> torch.Tensor:
        """Return the output of linear number `at`."""
        if torch.compiler.is_dynamo_compiling():
            return self._linear(value, *self.own(at))
        waiting: _Waiting | None = getattr(self._waiting, "call", None)
        if waiting is not None and waiting.value is value and at in waiting.parts:
            if waiting.is_right(value):
                output = waiting.parts.pop(at)
                if not waiting.parts:
                    self._waiting.call = None
                return output
            self._waiting.call = None
        mapped = torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001
        if at or (mapped and value.is_inference()):
            return self._linear(value, *self.own(at))
        whole = self._linear(value, self.weight, self.bias)
        # Autograd does not let a model change the results of torch.split in place; torch.vmap knows no other.
        split: Any = torch.split if mapped else torch.unsafe_split_with_sizes
        outputs: tuple[torch.Tensor, ...] = split(whole, self.sizes, -1)
        parts = dict(enumerate(outputs[1:], 1))
        copy = value.clone() if value.is_inference() else None
        self._waiting.call = _Waiting(value, _state(value), copy, parts)
        return outputs[0]

    def _linear(
        self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if weight.dtype not in (torch.bfloat16, torch.float16):
            return functional.linear(value, weight, bias)
        return with_low_weights(
            lambda value: functional.linear(value, weight, bias), value, weight.dtype
        )

    def own(self, at: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weight and bias of linear number `at`."""
        begin = sum(self.sizes[:at])
        rows = slice(begin, begin + self.sizes[at])
        return self.weight[rows], None if self.bias is None else self.bias[rows]


class JoinedLinear(nn.Module):
    """One of the linears of a `Joined`, with a linear's attributes."""

    def __init__(self, joined: Joined, at: int, linear: nn.Linear) -> None:
        super().__init__()
        self.joined = joined
        self.at = at
        self.in_features, self.out_features = linear.in_features, linear.out_features

    @property
    def weight(self) -> torch.Tensor:
        return self.joined.own(self.at)[0]

    @property
    def bias(self) -> torch.Tensor | None:
        return self.joined.own(self.at)[1]

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        return self.joined.part(self.at, input)
