# SPDX-License-Identifier: Apache-2.0
"""Pairwise dot products of feature vectors, as DLRM has them (https://arxiv.org/abs/1906.00091)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

from xruntime import native
from xruntime.errors import OperatorError
from xruntime.nn.native_operators import (
    TYPES,
    call,
    define,
    differentiate,
    refusal_of_dtype,
    refuse_second_derivative,
)

MAX_FEATURES = 2**31 - 1

_ADDRESS, _INT64 = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_ADDRESS, _ADDRESS, *[_INT64] * 3, ctypes.c_int32, _ADDRESS)
native.declare("xk_interaction", arguments=_ARGUMENTS)
native.declare("xk_interaction_backward", arguments=(*_ARGUMENTS, _ADDRESS))


def interaction(*tensors: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the first tensor followed by the dot products of all pairs.

    `tensors` are N tensors of shape (B, D), or one sequence of them, in fp32, bf16 or fp16. The result
    has shape (B, D + N (N - 1) / 2) and their dtype: the values of the first tensor, then x_i . x_j for
    all i > j, ordered by i, then j. Sums are computed in fp32 and rounded once. Under autocast the
    tensors are converted to its dtype, as those of torch.bmm are. The first derivative is defined, in
    backward mode; the second is not. Raises OperatorError.
    """
    sequence: Sequence[Any] = tensors
    if len(tensors) == 1 and not isinstance(tensors[0], torch.Tensor):
        sequence = tensors[0]
    inputs = list(sequence)
    if not inputs:
        raise OperatorError("interaction: no tensors; it needs at least one of shape (B, D)")
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        inputs = [tensor.to(dtype) if tensor.dtype in TYPES else tensor for tensor in inputs]
    return call(torch.ops.xruntime.interaction, _run, inputs)  # type: ignore[no-any-return]


def _check_tensors(tensors: Sequence[torch.Tensor]) -> None:
    first = tensors[0]
    if first.dim() != 2 or first.shape[1] > MAX_FEATURES:
        raise OperatorError(
            f"interaction: tensor 0 has shape {tuple(first.shape)}; allowed is (B, D) with at most"
            f" {MAX_FEATURES} columns"
        )
    for index, tensor in enumerate(tensors):
        if tensor.shape != first.shape or tensor.dtype != first.dtype:
            raise OperatorError(
                f"interaction: tensor {index} has shape {tuple(tensor.shape)} and dtype {tensor.dtype},"
                f" tensor 0 has {tuple(first.shape)} and {first.dtype}; all must have the same"
            )


def _output_shape(tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
    batch, features = tensors[0].shape
    return batch, features + len(tensors) * (len(tensors) - 1) // 2


def _addresses(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def _arguments(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The arguments that both native functions begin with. They hold addresses of `tensors`."""
    batch, features = tensors[0].shape
    strides = (ctypes.c_int64 * len(tensors))(*[tensor.stride(0) for tensor in tensors])
    inputs = _addresses(tensors)
    # The library refuses a dtype of number -1.
    return inputs, strides, len(tensors), batch, features, TYPES.get(tensors[0].dtype, -1)


def _refusal(tensors: Sequence[torch.Tensor], problem: native.ArgumentProblem) -> OperatorError:
    if problem == problem.INVALID_TYPE:
        return refusal_of_dtype("interaction", tensors[0].dtype)
    return OperatorError(
        f"interaction: {len(tensors)} tensors of shape {tuple(tensors[0].shape)} are too many or too large"
    )


def _with_dense_rows(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor if tensor.stride(1) == 1 else tensor.contiguous() for tensor in tensors]


def _run(tensors: list[torch.Tensor]) -> torch.Tensor:
    output = _fake(tensors)
    tensors = _with_dense_rows(tensors)
    native.check(
        native.library().xk_interaction(*_arguments(tensors), output.data_ptr()),
        functools.partial(_refusal, tensors),
    )
    return output


def _fake(tensors: list[torch.Tensor]) -> torch.Tensor:
    _check_tensors(tensors)
    return tensors[0].new_empty(_output_shape(tensors))


def _run_backward(gradient: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    results = _fake_backward(gradient, tensors)
    tensors, gradient = _with_dense_rows(tensors), gradient.contiguous()
    native.check(
        native.library().xk_interaction_backward(
            *_arguments(tensors), gradient.data_ptr(), _addresses(results)
        ),
        functools.partial(_refusal, tensors),
    )
    return results


def _fake_backward(gradient: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    _check_tensors(tensors)
    wanted = _output_shape(tensors)
    if tuple(gradient.shape) != wanted or gradient.dtype != tensors[0].dtype:
        raise OperatorError(
            f"interaction_backward: the gradient has shape {tuple(gradient.shape)} and dtype"
            f" {gradient.dtype}; allowed are {wanted} and {tensors[0].dtype}, those of the output"
        )
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _backward(ctx: Any, gradient: torch.Tensor) -> list[torch.Tensor]:
    return torch.ops.xruntime.interaction_backward(  # type: ignore[no-any-return]
        gradient, list(ctx.saved_tensors)
    )


define("interaction(Tensor[] tensors) -> Tensor", _run, _fake)
define(
    "interaction_backward(Tensor gradient, Tensor[] tensors) -> Tensor[]",
    _run_backward,
    _fake_backward,
)
differentiate(
    "interaction", _backward, lambda ctx, inputs, output: ctx.save_for_backward(*inputs[0])
)
refuse_second_derivative("interaction_backward", "interaction")
