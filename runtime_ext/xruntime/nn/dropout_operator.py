# SPDX-License-Identifier: Apache-2.0
"""Dropout whose mask is computed from a seed in forward and again in backward, on native kernels.

torch's own draws masks with one thread and stores them for backward.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from xruntime import native
from xruntime.errors import OperatorError
from xruntime.nn.native_operators import TYPES, define, differentiate, is_native, refusal_of_dtype

_ADDRESS, _INT64 = ctypes.c_void_p, ctypes.c_int64
native.declare(
    "xk_dropout",
    arguments=(
        *(_ADDRESS, _INT64, ctypes.c_int32, ctypes.c_double),
        *(ctypes.c_uint64, ctypes.c_uint64, _ADDRESS),
    ),
)


def dropout(
    input: torch.Tensor,  # noqa: A002 - torch's name
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Return what torch.nn.functional.dropout returns, with another mask of the same distribution.

    The mask follows from two numbers that each call draws from torch's default generator of the CPU. It depends
    neither on the number of threads nor on the instruction set. Tensors of at least `MIN_VALUES` values in fp32,
    bf16 or fp16 are computed natively, in fp32 and rounded once; all others, and those that torch.func
    transforms, by torch.
    """
    if not (training and 0 < p < 1 and is_native(input)):
        return torch.nn.functional.dropout(input, p, training, inplace)
    seed = torch.randint(2**63 - 1, (2,))
    output: torch.Tensor = torch.ops.xruntime.dropout(input, p, seed, _order(input))
    return input.copy_(output) if inplace else output


def _order(value: torch.Tensor) -> list[int]:
    """The dimensions from the largest stride of a result of torch's to the smallest; none: row-major."""
    if value.is_contiguous():
        return []
    strides = torch.empty_like(value, device="meta").stride()
    return sorted(range(value.dim()), key=lambda dimension: -strides[dimension])


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _run(value: torch.Tensor, p: float, seed: torch.Tensor, order: list[int]) -> torch.Tensor:
    dense = (value.permute(order) if order else value).contiguous()
    output = torch.empty_like(dense)
    key, stream = seed.tolist()
    native.check(
        native.library().xk_dropout(
            *(dense.data_ptr(), dense.numel(), TYPES.get(dense.dtype, -1), p, key, stream),
            output.data_ptr(),
        ),
        functools.partial(_refusal, value, p),
    )
    return output.permute(_inverse(order)) if order else output


def _refusal(value: torch.Tensor, p: float, problem: native.ArgumentProblem) -> OperatorError:
    if problem == problem.INVALID_PROBABILITY:
        return OperatorError(f"dropout: a probability of {p}; allowed are 0 to 1")
    return refusal_of_dtype("dropout", value.dtype)


def _fake(value: torch.Tensor, _p: float, _seed: torch.Tensor, order: list[int]) -> torch.Tensor:
    if not order:
        return torch.empty_like(value, memory_format=torch.contiguous_format)
    dense = value.permute(order)
    return torch.empty_like(dense, memory_format=torch.contiguous_format).permute(_inverse(order))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.p, seed, ctx.order = inputs
    ctx.save_for_backward(seed)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
    (seed,) = ctx.saved_tensors
    return torch.ops.xruntime.dropout(gradient, ctx.p, seed, ctx.order), None, None, None


# The mask's values are those of the dimensions in `order`, so they do not depend on the strides of a gradient.
define("dropout(Tensor input, float p, Tensor seed, int[] order) -> Tensor", _run, _fake)
differentiate("dropout", _backward, _keep)


class _Thread(threading.local):
    """What surrounded the code of the thread when it last entered `reaching_dropouts`."""

    entered: tuple[Any, bool, bool] | None = None


_thread = _Thread()

_KEY_NAME: Final = "TESTING_ONLY_GenericMode"
"""A dispatch key that torch reserves for modes and uses in its own tests alone.

A thread that includes it calls what is registered under it before autograd and autocast see an operator, also
for calls within torch's C++, such as the dropout of an attention. The dispatcher skips it for all other
operators, so that they take no longer, and in all other threads.
"""


@functools.cache
def _key() -> Any:
    """Register dropout under the key, once, and return the key. Raises RuntimeError if it is taken."""
    key = torch._C._parse_dispatch_key(_KEY_NAME)  # noqa: SLF001
    if key is None:
        raise RuntimeError(f"torch has no dispatch key {_KEY_NAME}")
    everything: Any = torch.library.Library("_", "IMPL", _KEY_NAME)  # type: ignore[no-untyped-call]
    everything.fallback(torch.library.fallthrough_kernel, _KEY_NAME)
    operators: Any = torch.library.Library("aten", "IMPL", _KEY_NAME)  # type: ignore[no-untyped-call]
    operators.impl("dropout", functools.partial(_dispatched, inplace=False), _KEY_NAME)
    operators.impl("dropout_", functools.partial(_dispatched, inplace=True), _KEY_NAME)
    _registered.extend([everything, operators])
    return key


_registered: Final[list[Any]] = []
"""Registrations last as long as these objects."""


def is_reachable() -> bool:
    """Whether `reaching_dropouts` works with this torch."""
    try:
        _key()
    except (RuntimeError, AttributeError):
        return False
    return True


def reaching_dropouts(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function, in which calls of torch's dropout by this thread are computed by `dropout` above.

    Except in a checkpoint that begins within the call: backward computes it again outside. In code that
    torch.compile traces, calls of torch's dropout stay.
    """
    if torch.compiler.is_compiling():
        return function(*args, **kwargs)
    include: Any = torch._C._dispatch_tls_set_dispatch_key_included  # noqa: SLF001
    key, before = _key(), _thread.entered
    include(key, True)
    _thread.entered = _surroundings()
    try:
        return function(*args, **kwargs)
    finally:
        _thread.entered = before
        include(key, before is not None)


def _surroundings() -> tuple[Any, bool, bool]:
    """Return what differs within a checkpoint: hooks of saved tensors, gradients, or a backward pass."""
    native_code: Any = torch._C  # noqa: SLF001
    hooks = native_code._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001
    in_backward = native_code._current_autograd_node() is not None  # noqa: SLF001
    return hooks, torch.is_grad_enabled(), in_backward


def _dispatched(value: torch.Tensor, p: float, train: bool, *, inplace: bool) -> torch.Tensor:
    without = torch._C.DispatchKeySet(_key())  # noqa: SLF001
    with torch._C._ExcludeDispatchKeyGuard(without):  # noqa: SLF001
        if _thread.entered == _surroundings():
            return dropout(value, p, train, inplace)
        return torch.nn.functional.dropout(value, p, train, inplace)
