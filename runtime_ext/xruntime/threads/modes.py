# SPDX-License-Identifier: Apache-2.0
"""torch's modes that belong to a thread, carried to the thread that does the work.

grad mode, inference mode and autocast are state of the calling thread; a new Python thread starts
with their defaults. at::launch copies them for torch's own threads; this does so for ours.
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
    """The calling thread's, where it is on for the CPU."""
    return Autocast(torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled())


class ThreadModes:
    """Puts the calling thread, a worker's, under the modes of each call that it does.

    They stay until a call needs others: entering and leaving costs more than looking.
    """

    def __init__(self) -> None:
        self._entered = contextlib.ExitStack()

    def take(self, grad: bool, inference: bool, autocast: Autocast | Literal[False]) -> None:
        """Bring the thread under these modes, whatever the call before may have left.

        `autocast` is False where it is to be off for the CPU.
        """
        if (
            is_grad_enabled() is grad
            and is_inference_mode_enabled() is inference
            and (is_autocast_enabled("cpu") and current_autocast()) == autocast
        ):
            return
        self._entered.close()
        enter = self._entered.enter_context
        # Inference mode sets grad mode as well, so grad mode comes second.
        enter(torch.inference_mode(inference))
        enter(torch.set_grad_enabled(grad))
        if autocast:
            dtype, cache = autocast
            enter(torch.autocast("cpu", dtype=dtype, cache_enabled=cache))
        elif is_autocast_enabled("cpu"):
            enter(torch.autocast("cpu", enabled=False))
