# SPDX-License-Identifier: Apache-2.0
"""Which models and calls belong to a generation of tokens."""

from __future__ import annotations

import sys
from typing import Final

from torch import nn

_LOOP: Final = "transformers.generation."


def generates(model: nn.Module) -> bool:
    """Whether it has transformers' `generate()`."""
    return any(
        kind.__name__ == "GenerationMixin" and kind.__module__.startswith(_LOOP)
        for kind in type(model).__mro__
    )


def called_by_generate() -> bool:
    """Whether transformers' `generate()` is on the stack: it also calls parts, such as an encoder."""
    frame = sys._getframe()  # noqa: SLF001 - quicker by far than module inspect
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith(_LOOP):
            return True
    return False
