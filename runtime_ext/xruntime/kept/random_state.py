# SPDX-License-Identifier: Apache-2.0
"""The random numbers that a call may draw: those of torch, Python and numpy that all of a program shares."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import torch


class RandomState:
    """The state of the shared generators when it was made."""

    def __init__(self) -> None:
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        self._numpy = _numpy_state()

    def change(self) -> str | None:
        """Return whose numbers were drawn since, for a message; None if there were none."""
        if not torch.equal(self._torch, torch.get_rng_state()):
            return "torch's random numbers"
        if self._python != random.getstate():
            return "Python's random numbers"
        if pickle.dumps(self._numpy) != pickle.dumps(_numpy_state()):  # it has an array
            return "numpy's random numbers"
        return None

    def restore(self) -> None:
        """Let the generators go on from here."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _numpy_state() -> Any:
    """Return the state of numpy; None while the program has not imported numpy."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()
