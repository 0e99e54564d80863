# SPDX-License-Identifier: Apache-2.0
"""Registers native functions as torch operators: `torch.ops.xruntime.NAME`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from xruntime import native, operator_library
from xruntime.errors import OperatorError

TYPES = {
    torch.float32: native.FLOAT32,
    torch.bfloat16: native.BFLOAT16,
    torch.float16: native.FLOAT16,
}
"""The dtypes of values that the operators take, with their numbers in xkernels.h."""

LIBRARY = operator_library.loaded()
"""The part of libxoperators.so that is in use."""
_PROVIDED = operator_library.OPERATORS if LIBRARY.path else frozenset()

# Registrations last as long as this object.
_LIBRARY = torch.library.Library("xruntime", "DEF")  # type: ignore[no-untyped-call]


def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define an operator for the CPU.

    `schema` is as in torch.library, without a namespace. `run` computes; `fake` returns empty tensors of
    the result's shapes and dtypes, and checks what it can without reading data. Where libxoperators.so
    has the operator, it computes in place of `run`.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    if name not in _PROVIDED:
        _LIBRARY.impl(name, run, "CPU")  # type: ignore[no-untyped-call]

    # torch calls it for meta tensors too, even if only some are: the others' results would be made up.
    def fake_on_one_device(*arguments: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        devices = {str(tensor.device) for tensor in tensors}
        if len(devices) > 1:
            raise OperatorError(
                f"{name}: tensors on {' and '.join(sorted(devices))}; all must be on one device"
            )
        return fake(*arguments)

    torch.library.register_fake(f"xruntime::{name}", fake_on_one_device, lib=_LIBRARY)


def call(operator: Any, run: Callable[..., Any], *arguments: Any) -> Any:
    """Call an operator. If libxoperators.so refuses the arguments, `run` raises the full error.

    Raises OperatorError for a tensor with a derivative in forward mode, which torch would drop.
    """
    if torch.compiler.is_compiling():
        return operator(*arguments)
    if forward_ad._current_level >= 0:  # noqa: SLF001 - torch has no other way to ask
        unpack: Any = forward_ad.unpack_dual
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        if any(unpack(tensor).tangent is not None for tensor in tensors):
            raise OperatorError(
                f"{operator.__name__}: derivatives in forward mode (torch.func.jvp) are not defined, only"
                " those of backward"
            )
    try:
        return operator(*arguments)
    except RuntimeError as error:
        name = operator.__name__
        if name in _PROVIDED and str(error).startswith(f"{name}: "):
            run(*arguments)
        raise


MIN_VALUES: Final = 1 << 15
"""Elementwise operators leave fewer values to torch: calling them takes longer than computing."""


def is_native(value: torch.Tensor) -> bool:
    """Whether elementwise operators compute a tensor natively; no where torch.func transforms it.

    torch.compile traces with tensors of other classes, whose layout it knows.
    """
    return (
        value.dtype in TYPES
        and value.device.type == "cpu"
        and value.numel() >= MIN_VALUES
        and (
            torch.compiler.is_compiling()
            or (
                type(value) in (torch.Tensor, torch.nn.Parameter)
                and value.layout == torch.strided
                and forward_ad._current_level < 0  # noqa: SLF001 - torch has no other way to ask
                and torch._C._functorch.peek_interpreter_stack() is None  # noqa: SLF001
            )
        )
    )


def refusal_of_dtype(name: str, dtype: torch.dtype) -> OperatorError:
    """The error of an operator for a dtype that is not in `TYPES`."""
    return OperatorError(f"{name}: dtype {dtype}; allowed are {', '.join(map(str, TYPES))}")


def differentiate(
    name: str, backward: Callable[..., Any], setup_context: Callable[..., None]
) -> None:
    """Give a defined operator its autograd formula, as torch.library.register_autograd does."""
    torch.library.register_autograd(
        f"xruntime::{name}", backward, setup_context=setup_context, lib=_LIBRARY
    )


def refuse_second_derivative(name: str, of: str) -> None:
    """Let differentiating `name`, the first derivative of `of`, raise OperatorError."""

    def refuse(_ctx: Any, *_gradients: Any) -> NoReturn:
        raise OperatorError(f"{of}: its second derivative is not defined")

    differentiate(name, refuse, lambda ctx, inputs, output: None)
