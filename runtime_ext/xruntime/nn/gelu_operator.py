# SPDX-License-Identifier: Apache-2.0
"""GELU and its derivative on native kernels: one pass each, with one exponential for a value.

torch's are slow in bf16 and with the approximation by tanh.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from xruntime import native
from xruntime.nn.native_operators import TYPES, define, differentiate, is_native, refusal_of_dtype

_ADDRESS, _INT32 = ctypes.c_void_p, ctypes.c_int32
native.declare("xk_gelu", arguments=(_ADDRESS, _ADDRESS, ctypes.c_int64, _INT32, _INT32, _ADDRESS))


def gelu(
    input: torch.Tensor,  # noqa: A002 - torch's name
    approximate: str = "none",
) -> torch.Tensor:
    """Return what torch.nn.functional.gelu returns, within rounding.

    Contiguous tensors of at least `MIN_VALUES` values in fp32, bf16 or fp16 are computed natively, in fp32 and
    rounded once; all others, and those that torch.func transforms or torch.compile traces, by torch.
    """
    if (
        approximate not in ("none", "tanh")
        or torch.compiler.is_compiling()
        or not (is_native(input) and input.is_contiguous())
    ):
        return torch.nn.functional.gelu(input, approximate=approximate)
    output: torch.Tensor = torch.ops.xruntime.gelu(input, approximate == "tanh")
    return output


def _run(value: torch.Tensor, gradient: torch.Tensor | None, by_tanh: bool) -> torch.Tensor:
    dense = value.contiguous()
    if gradient is not None:
        gradient = gradient.contiguous()
    output = torch.empty_like(dense)
    native.check(
        native.library().xk_gelu(
            *(dense.data_ptr(), None if gradient is None else gradient.data_ptr(), dense.numel()),
            *(TYPES.get(dense.dtype, -1), by_tanh, output.data_ptr()),
        ),
        lambda _: refusal_of_dtype("gelu", value.dtype),
    )
    return output


def _fake(value: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    value, ctx.by_tanh = inputs
    ctx.save_for_backward(value)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    (value,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # for a second derivative
        approximate = "tanh" if ctx.by_tanh else "none"
        backward = torch.ops.aten.gelu_backward(gradient, value, approximate=approximate)
    else:
        backward = torch.ops.xruntime.gelu_backward(value, gradient, ctx.by_tanh)
    return backward, None


define(
    "gelu(Tensor input, bool by_tanh) -> Tensor",
    lambda value, by_tanh: _run(value, None, by_tanh),
    _fake,
)
define("gelu_backward(Tensor input, Tensor gradient, bool by_tanh) -> Tensor", _run, _fake)
differentiate("gelu", _backward, _keep)
