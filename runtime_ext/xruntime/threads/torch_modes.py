# SPDX-License-Identifier: Apache-2.0
"""torch's thread-local modes, copied to the thread that does the work.

grad mode, inference mode and autocast belong to the calling thread; a new Python thread starts with
the defaults. at::launch copies them to torch's own threads; this module copies them to ours.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, NamedTuple

import torch
from torch import is_autocast_enabled, is_grad_enabled, is_inference_mode_enabled, nn
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext


class Autocast(NamedTuple):
    """**Ex.:** ``Autocast(torch.bfloat16, cache=True)`` under ``torch.autocast("cpu")``."""

    dtype: torch.dtype
    cache: bool


_has_global_hooks: Final[Any] = nn.modules.module._has_any_global_hook  # noqa: SLF001
_NOTHING: Final = contextlib.nullcontext()


def current_autocast() -> Autocast | None:
    """Return the calling thread's autocast; None if it is off for the CPU."""
    if not is_autocast_enabled("cpu"):
        return None
    return Autocast(torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled())


def under_autocast(wanted: Autocast | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context with that autocast, or with none. torch.compile can trace it."""
    if wanted is not None:
        # Entered even if it is on: only the outermost block clears its cache of cast weights.
        return torch.autocast("cpu", dtype=wanted.dtype, cache_enabled=wanted.cache)
    return torch.autocast("cpu", enabled=False) if is_autocast_enabled("cpu") else _NOTHING


_READABLE: Final = (
    torch.is_inference_mode_enabled,
    torch.are_deterministic_algorithms_enabled,
    torch.get_float32_matmul_precision,
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
    torch.backends.mha.get_fastpath_enabled,
    # The public ones are slower by far.
    torch._C._get_mkldnn_enabled,  # noqa: SLF001
    torch._C._get_cudnn_enabled,  # noqa: SLF001
    torch._C._get_cudnn_benchmark,  # noqa: SLF001
    torch._C._get_cudnn_deterministic,  # noqa: SLF001
)


def readable_settings() -> tuple[Any, ...]:
    """Return modes and settings of torch that a forward may read, besides autocast, default dtype and device."""
    return tuple([read() for read in _READABLE])


def transformed() -> bool:
    """Whether torch traces or transforms the call, or calls hooks of all modules: what is done within it is seen."""
    return (
        torch._C._is_tracing()  # noqa: SLF001 - nothing public tells
        or torch._C._len_torch_dispatch_stack() > 0  # noqa: SLF001
        or (torch._C._len_torch_function_stack() > 0 and _has_function_modes())  # noqa: SLF001
        or torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001
        or forward_ad._current_level >= 0  # noqa: SLF001
        or _has_global_hooks()
    )


def _has_function_modes() -> bool:
    """Whether something sees the calls of torch's functions, besides torch.set_default_device("cpu")."""
    count = torch._C._len_torch_function_stack()  # noqa: SLF001
    modes = [torch._C._get_function_stack_at(at) for at in range(count)]  # noqa: SLF001
    return any(
        not (isinstance(mode, DeviceContext) and mode.device.type == "cpu") for mode in modes
    )


class ThreadModes:
    """Sets the modes of each call in a worker's thread.

    Modes stay set until a call needs others: comparing is cheaper than entering and leaving.
    """

    def __init__(self) -> None:
        self._entered = contextlib.ExitStack()

    def leave(self) -> None:
        """Restore the modes of before the first call, in the same thread.

        Otherwise torch would set them in the thread in which the last reference is dropped, which an
        exception's traceback may hold.
        """
        self._entered.close()

    def take(self, grad: bool, inference: bool, autocast: Autocast | None) -> None:
        """Set these modes, whatever the previous call left."""
        if (
            is_grad_enabled() is grad
            and is_inference_mode_enabled() is inference
            and (current_autocast() if is_autocast_enabled("cpu") else None) == autocast
        ):
            return
        self._entered.close()
        enter = self._entered.enter_context
        # Inference mode sets grad mode too, so grad mode comes second.
        enter(torch.inference_mode(inference))
        enter(torch.set_grad_enabled(grad))
        enter(under_autocast(autocast))
