# SPDX-License-Identifier: Apache-2.0
"""`ipex.cpu`: the runtime extension."""

from __future__ import annotations

from typing import NoReturn

from xruntime.compat.ipex.cpu import runtime
from xruntime.compat.ipex.replacements import missing

__all__ = ["runtime"]


def __getattr__(name: str) -> NoReturn:
    raise missing(__name__, name)
