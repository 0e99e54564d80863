# SPDX-License-Identifier: Apache-2.0
"""torch's thread-local modes, copied to the thread that does the work.

grad mode, inference mode and autocast belong to the calling thread; a new Python thread starts with
the defaults. at::launch copies them to torch's own threads; this module copies them to ours.
"""

from __future__ import annotations

import contextlib
from typing import Literal, NamedTuple

import torch
from torch import is_autocast_enabled, is_grad_enabled, is_inference_mode_enabled


class Autocast(NamedTuple):
    """**Ex.:** ``Autocast(torch.bfloat16, cache=True)`` under ``torch.autocast("cpu")``."""

    dtype: torch.dtype
    cache: bool


def current_autocast() -> Autocast:
    """Return the calling thread's autocast, which must be on for the CPU."""
    return Autocast(torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled())


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

    def take(self, grad: bool, inference: bool, autocast: Autocast | Literal[False]) -> None:
        """Set these modes, whatever the previous call left.

        `autocast` is False if it is off for the CPU.
        """
        if (
            is_grad_enabled() is grad
            and is_inference_mode_enabled() is inference
            and (is_autocast_enabled("cpu") and current_autocast()) == autocast
        ):
            return
        self._entered.close()
        enter = self._entered.enter_context
        # Inference mode sets grad mode too, so grad mode comes second.
        enter(torch.inference_mode(inference))
        enter(torch.set_grad_enabled(grad))
        if autocast:
            dtype, cache = autocast
            enter(torch.autocast("cpu", dtype=dtype, cache_enabled=cache))
        elif is_autocast_enabled("cpu"):
            enter(torch.autocast("cpu", enabled=False))
