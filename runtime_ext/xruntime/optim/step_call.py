# SPDX-License-Identifier: Apache-2.0
"""One native call over many tensors: arrays of their addresses, and what the call returns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

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


class Formats(NamedTuple):
    """How the tensors of a call are stored."""

    weight_format: int
    gradient_dtype: torch.dtype
    state_dtype: torch.dtype


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


Update = Callable[[ctypes.CDLL, object], int]
"""Calls an optimizer's function of the library with a pointer to xk_tensors."""


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
