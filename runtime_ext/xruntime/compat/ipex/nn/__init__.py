# SPDX-License-Identifier: Apache-2.0
"""`ipex.nn`: modules and functions of xruntime.nn."""

from __future__ import annotations

from typing import NoReturn

from xruntime.compat.ipex.nn import functional, modules
from xruntime.compat.ipex.replacements import missing
from xruntime.nn import FrozenBatchNorm2d

__all__ = ["FrozenBatchNorm2d", "functional", "modules"]


def __getattr__(name: str) -> NoReturn:
    raise missing(__name__, name)
