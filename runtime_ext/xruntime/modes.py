# SPDX-License-Identifier: Apache-2.0
"""torch's modes that belong to a thread, carried to the thread that does the work.

grad mode, inference mode and autocast are state of the calling thread; a new Python thread starts
with their defaults. at::launch copies them for torch's own threads; this does so for ours.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import NamedTuple

import torch


class Modes(NamedTuple):
    """What a thread's torch operators do besides computing.

    **Ex.:** ``Modes(grad=False, inference=True, autocast=None)`` under ``torch.inference_mode()``.
    """

    grad: bool
    inference: bool
    autocast: Autocast | None
    """None where autocast is off for the CPU."""


class Autocast(NamedTuple):
    dtype: torch.dtype
    cache: bool


_WITHOUT_AUTOCAST = {
    (grad, inference): Modes(grad, inference, autocast=None)
    for grad, inference in itertools.product((False, True), repeat=2)
}
"""Made once: this is asked for twice a call."""


def current_modes() -> Modes:
    """The modes of the calling thread."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    if not torch.is_autocast_enabled("cpu"):
        return _WITHOUT_AUTOCAST[grad, inference]
    autocast = Autocast(torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled())
    return Modes(grad, inference, autocast)


class ThreadModes:
    """Puts the calling thread, a worker's, under the modes of each call that it does.

    They stay until a call needs others: entering and leaving costs more than looking.
    """

    def __init__(self) -> None:
        self._entered = contextlib.ExitStack()

    def take(self, wanted: Modes) -> None:
        """Bring the thread under `wanted`, whatever the call before may have left."""
        if current_modes() == wanted:
            return
        self._entered.close()
        enter = self._entered.enter_context
        # Inference mode sets grad mode as well, so grad mode comes second.
        enter(torch.inference_mode(wanted.inference))
        enter(torch.set_grad_enabled(wanted.grad))
        if wanted.autocast is not None:
            dtype, cache = wanted.autocast
            enter(torch.autocast("cpu", dtype=dtype, cache_enabled=cache))
        elif torch.is_autocast_enabled("cpu"):
            enter(torch.autocast("cpu", enabled=False))
