# SPDX-License-Identifier: Apache-2.0
"""Linear layers for 1 to 3 rows of activations: what a language model computes for each token.

`few_rows` computes a layer's output where that is right and faster; everywhere else the layer is torch's.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import types
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from xruntime import native
from xruntime.errors import KernelsUnavailableError, OperatorError
from xruntime.generation.linear_blocks import has_bf16_products, linear_by_blocks
from xruntime.generation.linear_layers import input_count, matrix
from xruntime.generation.packed_weights import PackedWeight
from xruntime.threads.torch_modes import transformed

MAX_ROWS: Final = 3
"""From four rows on, torch's linear is as fast: it packs the weights."""

MIN_WEIGHTS: Final = 1 << 14
"""Layers with fewer weights are torch's: the call takes longer than reading them."""

_TYPES: Final = {torch.float32: native.FLOAT32, torch.bfloat16: native.BFLOAT16}


def c_weights(weight: torch.Tensor | PackedWeight) -> native.CWeights:
    """Return the description of weights for native code. They must live as long as it is used.

    weight
        (outputs, inputs), dense, packed or columns of a matrix that is stored as (inputs, outputs).
    """
    if isinstance(weight, PackedWeight):
        return weight.c_weights()
    stride = 0 if weight.is_contiguous() else weight.stride(1)
    return native.CWeights(weight.data_ptr(), None, _TYPES.get(weight.dtype, -1), stride)


_ADDRESS, _INT32, _INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
native.declare(
    "xk_linear_rows",
    arguments=(
        *(_ADDRESS, _INT64, _INT64, _INT32, ctypes.POINTER(native.CWeights)),
        *(_ADDRESS, _INT32),
        *(_INT64, _INT64, _ADDRESS),
    ),
)


class _Thread(threading.local):
    torch_only = False


_thread: Final = _Thread()


@contextlib.contextmanager
def linears_of_torch() -> Iterator[None]:
    """Let torch compute all linears that this thread calls."""
    _thread.torch_only = True
    try:
        yield
    finally:
        _thread.torch_only = False


def only_torch() -> bool:
    """Whether the calling thread is within `linears_of_torch`."""
    return _thread.torch_only


def available() -> bool:
    """Whether the native library is there, with an instruction set for this CPU."""
    try:
        native.isa_name()
    except KernelsUnavailableError:
        return False
    return True


def linear_rows(
    value: torch.Tensor, weight: torch.Tensor | PackedWeight, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return torch.nn.functional.linear of a dense `value`, in its dtype, without a derivative.

    Values, bias and weights that are not packed are float32 or bfloat16, on the CPU. Sums are computed in
    float32 and rounded once. Raises OperatorError.
    """
    outputs, inputs = weight.shape
    output = value.new_empty((*value.shape[:-1], outputs))
    native.check(
        native.library().xk_linear_rows(
            value.data_ptr(),
            value.numel() // inputs if inputs else output.numel() // max(1, outputs),
            inputs,
            _TYPES.get(value.dtype, -1),
            ctypes.byref(c_weights(weight)),
            None if bias is None else bias.data_ptr(),
            native.FLOAT32 if bias is None else _TYPES.get(bias.dtype, -1),
            inputs,
            outputs,
            output.data_ptr(),
        ),
        lambda problem: OperatorError(
            f"linear_rows: {value.dtype} of shape {tuple(value.shape)} and weights in {weight.dtype} of shape"
            f" {tuple(weight.shape)} are refused ({problem.name}); allowed are float32 and bfloat16"
        ),
    )
    return output


def few_rows(linear: Any, value: Any, *, widens: bool = False) -> torch.Tensor | None:
    """Return the output of a layer of `linear_kinds`, or None where torch is to compute it.

    That is so while torch traces or transforms the call, where gradients are needed, and for whatever `linear_rows`
    does not take; and for more rows, but for those of weights in bf16 on CPUs without instructions for bf16, which
    are multiplied in float32. `widens`: the layer takes and returns float32 with weights in bfloat16, too, as
    those of `lowered_class` do.
    """
    if type(value) is not torch.Tensor or torch._C._is_tracing():  # noqa: SLF001 - sizes are no numbers then
        return None
    count = value.numel()
    inputs = input_count(linear)
    many = count > MAX_ROWS * inputs
    if _thread.torch_only or (many and has_bf16_products()):  # a prompt's, without a delay
        return None
    weight, bias = linear.weight, linear.bias
    if type(weight) is not nn.Parameter:
        return None
    if count == 0 or value.dim() < 1 or value.shape[-1] != inputs or weight.dim() != 2:
        return None
    if transformed():
        return None
    dtype = weight.dtype
    if dtype not in _TYPES or (many and dtype is not torch.bfloat16):
        return None
    if weight.numel() < MIN_WEIGHTS:
        return None
    if value.dtype is not dtype and not (widens and value.dtype is torch.float32):
        return None
    if bias is not None and (type(bias) is not nn.Parameter or bias.dtype is not dtype):
        return None
    in_memory = value.is_cpu and weight.is_cpu and weight.is_contiguous()
    if value.layout is not torch.strided or not in_memory:
        return None
    if torch.is_grad_enabled() and (
        value.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return None
    if torch.is_autocast_enabled("cpu"):
        # It would convert other values, and return what it has converted to.
        if dtype is not torch.bfloat16 or torch.get_autocast_dtype("cpu") is not dtype:
            return None
        value = value.to(dtype)
    if many:
        return linear_by_blocks(value, matrix(linear), bias, dtype, value.dtype)
    return linear_rows(value.contiguous(), matrix(linear), bias)


class RowLinear(nn.Module):
    """A linear that `few_rows` computes. Its class is also a subclass of the layer's class, of the same name."""

    _original_class: type[nn.Module]
    _widens: bool

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        if not torch.compiler.is_compiling():
            output = few_rows(self, input, widens=self._widens)
            if output is not None:
                return output
        original: Any = self._original_class
        return original.forward(self, input)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are layers of the class before."""
        made: Any = super().__reduce_ex__(protocol)
        return (_new, (self._original_class,), *made[2:])


def _new(kind: type[nn.Module]) -> nn.Module:
    return kind.__new__(kind)


def row_class(kind: type[nn.Module], *, widens: bool) -> type[nn.Module]:
    """Return the class for layers of class `kind`."""
    space = {"__module__": kind.__module__, "__doc__": kind.__doc__, "_original_class": kind}
    return types.new_class(
        kind.__name__, (RowLinear, kind), {}, lambda made: made.update(space, _widens=widens)
    )
