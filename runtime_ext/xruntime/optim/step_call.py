# SPDX-License-Identifier: Apache-2.0
"""What tells one optimizer from another, and its native call over arrays of tensors' addresses."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from xruntime import native
from xruntime.errors import OptimizerError

TYPES = {torch.float32: native.FLOAT32, torch.bfloat16: native.BFLOAT16}
"""The dtypes that the kernels read, with their numbers in xkernels.h."""

WEIGHTS_FLOAT32, WEIGHTS_SPLIT, WEIGHTS_STOCHASTIC = 0, 1, 2
"""XK_WEIGHTS_... of xkernels/optimizer.h."""

FORMATS = {"split": WEIGHTS_SPLIT, "stochastic": WEIGHTS_STOCHASTIC}
"""Roundings of bf16 weights, with the numbers of their formats in xkernels.h."""


class CTensors(ctypes.Structure):
    """xk_tensors of xkernels/optimizer.h. Addresses are of arrays; types are numbers as FLOAT32."""

    _fields_ = native.fields(
        (ctypes.c_int64, "count"),
        (ctypes.c_void_p, "sizes weights remainders gradients first second steps fresh"),
        (ctypes.c_uint64, "seed"),
        (ctypes.c_int32, "weight_format gradient_type state_type maximize"),
    )


def _declare(name: str, numbers: int, *flags: Any) -> None:
    arguments = (ctypes.POINTER(CTensors), *[ctypes.c_double] * numbers, *flags)
    native.declare(name, arguments=arguments)


_declare("xk_sgd", 4, ctypes.c_int32)
_declare("xk_adagrad", 4)
_declare("xk_adam", 5, ctypes.c_int32)
_declare("xk_lamb", 5, ctypes.c_int32)
_declare("xk_lars", 4, ctypes.c_int32, ctypes.c_double, ctypes.c_double, ctypes.c_int32)


Group = dict[str, Any]
State = dict[str, Any]

_NUMBERS = (0.0, math.inf)
RANGES = {
    **dict.fromkeys(("lr", "momentum", "weight_decay", "lr_decay", "eps"), _NUMBERS),
    **dict.fromkeys(("initial_accumulator_value", "trust_coefficient"), _NUMBERS),
    "betas": (0.0, 1.0),
}
"""Numeric options: each at least the first number and less than the second."""
_FLAGS = ("nesterov", "decoupled_weight_decay", "adaptive")
"""Options that the kernels take as an integer."""

Update = Callable[[ctypes.CDLL, object], int]
"""Calls an optimizer's function of the library with a pointer to xk_tensors."""


class StateNames(NamedTuple):
    """The names of an optimizer's state, as torch.optim has them."""

    first: str | None
    second: str | None
    steps: bool
    fresh: bool
    """Whether a parameter's first step sets the first state instead of updating it."""
    initial: float = 0.0
    """Of the first state."""

    @property
    def moments(self) -> tuple[str, ...]:
        return tuple(name for name in (self.first, self.second) if name is not None)


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


class Formats(NamedTuple):
    """How the tensors of a call are stored."""

    weight_format: int
    gradient_dtype: torch.dtype
    state_dtype: torch.dtype


class StepKind(NamedTuple):
    """What the parameters of a native call have in common."""

    optimizer: str
    """Its class's name, for errors."""
    names: StateNames
    formats: Formats


class Arrays(NamedTuple):
    """Addresses of tensors, one element an entry (int64); None where the optimizer has none."""

    sizes: torch.Tensor
    """In elements."""
    weights: torch.Tensor
    gradients: torch.Tensor
    remainders: torch.Tensor | None
    first: torch.Tensor | None
    second: torch.Tensor | None
    steps: torch.Tensor | None
    fresh: torch.Tensor | None
    """int32, no addresses: 1 for an entry whose momentum is not set yet."""


class StepCall:
    """A call that can be repeated as long as the tensors stay where they are."""

    def __init__(self, arrays: Arrays, formats: Formats) -> None:
        self.arrays = arrays
        self._tensors = CTensors(
            count=arrays.sizes.numel(),
            weight_format=formats.weight_format,
            gradient_type=TYPES[formats.gradient_dtype],
            state_type=TYPES[formats.state_dtype],
            **{
                name: None if array is None else array.data_ptr()
                for name, array in arrays._asdict().items()
            },
        )
        self._pointer = ctypes.byref(self._tensors)

    def run(self, update: Update, *, maximize: bool, seed: int) -> None:
        """Run it. Raises KernelsUnavailableError, MemoryError, OptimizerError; nothing is changed then."""
        self._tensors.maximize = maximize
        self._tensors.seed = seed
        native.check(
            update(native.library(), self._pointer),
            lambda problem: OptimizerError(f"the native step refuses its tensors: {problem.name}"),
        )
