# SPDX-License-Identifier: Apache-2.0
"""Finds the best way to run a workload on a machine, with evidence.

The command is `xtune`; `xtune.tune`, see `xtune.library`, is the same as a call, for functions too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Trial", "tune"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # By name: modules of the lower floors import this one for the version.
    if name in __all__:
        return getattr(import_module("xtune.library"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
