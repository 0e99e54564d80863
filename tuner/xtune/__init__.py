# SPDX-License-Identifier: Apache-2.0
"""Finds the best way to run a workload on a machine, with evidence.

The command is `xtune`; `xtune.tune`, see `xtune.cli.searching`, is the same as a call.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["tune"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # By name: modules of the lower floors import this one for the version.
    if name == "tune":
        return import_module("xtune.cli.searching").tune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
