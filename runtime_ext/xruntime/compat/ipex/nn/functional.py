# SPDX-License-Identifier: Apache-2.0
"""`ipex.nn.functional`: the interaction."""

from __future__ import annotations

from typing import NoReturn

from xruntime.compat.ipex.replacements import missing
from xruntime.nn import interaction

__all__ = ["interaction"]


def __getattr__(name: str) -> NoReturn:
    raise missing(__name__, name)
