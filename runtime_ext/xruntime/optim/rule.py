# SPDX-License-Identifier: Apache-2.0
"""What tells one optimizer from another: its native function, its state, and the ranges of its options."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch.optim import Optimizer

from xruntime.optim.step_call import Update
from xruntime.optim.steps import StateNames

Group = dict[str, Any]

_NUMBERS = (0.0, math.inf)
RANGES = {
    **dict.fromkeys(("lr", "momentum", "weight_decay", "lr_decay", "eps"), _NUMBERS),
    **dict.fromkeys(("initial_accumulator_value", "trust_coefficient"), _NUMBERS),
    "betas": (0.0, 1.0),
}
"""Numeric options: each at least the first number and less than the second."""
_FLAGS = ("nesterov", "decoupled_weight_decay", "adaptive")
"""Options that the kernels take as an integer."""


class OptimizerRule(NamedTuple):
    """What the kernels call an optimizer, and the names of its state, which are torch's."""

    function: str
    arguments: tuple[str, ...]
    """The options that the function takes after the tensors, in its order."""
    first: str
    """The name of the first state. A momentum exists only if the option is not 0, and its first
    step sets it."""
    second: str | None = None
    initial: str | None = None
    """The option with the first state's initial value. None: 0."""
    without_sparse: tuple[str, ...] | None = None
    """The options that must be 0 for sparse gradients. None: they are not supported."""
    delegate: type[Optimizer] | None = None
    """torch's optimizer, which updates parameters of other dtypes than bf16."""

    def names(self, group: Group) -> StateNames:
        """Return the state with a group's options."""
        if "momentum" in self.arguments:
            kept = group["momentum"] != 0
            return StateNames(self.first if kept else None, None, False, kept)
        initial = 0.0 if self.initial is None else float(group[self.initial])
        return StateNames(self.first, self.second, True, False, initial)

    def update(self, group: Group) -> Update:
        """Return the native call with a group's options."""
        values: list[float] = []
        for name in self.arguments:
            value = group[name]
            if name in _FLAGS:
                values.append(int(value))
            else:
                values += map(float, value if isinstance(value, tuple | list) else (value,))
        return lambda library, tensors: int(getattr(library, self.function)(tensors, *values))

    def sparse_obstacle(self, group: Group) -> str | None:
        """Return why a sparse gradient cannot be used with a group's options, if so."""
        if self.without_sparse is None:
            return "it does not support sparse gradients; use SGD or Adagrad, or sparse=False"
        for option in self.without_sparse:
            if group[option] != 0:
                return (
                    f"sparse gradients with {option}={group[option]} are not supported; use"
                    f" {option}=0 for parameters with sparse gradients, in a group of their own"
                )
        return None
