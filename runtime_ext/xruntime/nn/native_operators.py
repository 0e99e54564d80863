# SPDX-License-Identifier: Apache-2.0
"""Registers native functions as torch operators: `torch.ops.xruntime.NAME`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xruntime import native, operator_library

TYPES = {
    torch.float32: native.FLOAT32,
    torch.bfloat16: native.BFLOAT16,
    torch.float16: native.FLOAT16,
}
"""The dtypes of values that the operators take, with their numbers in xkernels.h."""

LIBRARY = operator_library.load()
"""What of libxoperators.so is in use."""
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
    torch.library.register_fake(f"xruntime::{name}", fake, lib=_LIBRARY)


def call(operator: Callable[..., Any], run: Callable[..., Any], *arguments: Any) -> Any:
    """Call an operator. If libxoperators.so refuses the arguments, `run` raises the full error."""
    if torch.compiler.is_compiling():
        return operator(*arguments)
    try:
        return operator(*arguments)
    except RuntimeError:
        run(*arguments)
        raise


def differentiate(
    name: str, backward: Callable[..., Any], setup_context: Callable[..., None]
) -> None:
    """Give a defined operator its autograd formula, as torch.library.register_autograd does."""
    torch.library.register_autograd(
        f"xruntime::{name}", backward, setup_context=setup_context, lib=_LIBRARY
    )


def check(result: int) -> None:
    """Raise what a native function's return value says. Raises MemoryError, RuntimeError."""
    if result == 0:
        return
    if result == native.NO_ISA:
        native.isa_name()  # raises
    if result == native.REFUSED:
        raise MemoryError("no memory for a native operator")
    raise RuntimeError(f"a native operator refuses its arguments ({result})")
