# SPDX-License-Identifier: Apache-2.0
"""The common calls of Intel's extension for PyTorch, for scripts that used it.

    import xruntime.compat.ipex as ipex    # instead of: import intel_extension_for_pytorch as ipex

    model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=torch.bfloat16)

docs/migration-ipex.md lists call by call what each becomes. Names that are gone raise an AttributeError
that says what to use. Importing this module changes nothing in torch, except that TorchScript files with
INT8 modules can be loaded, and that IPEX_FP32_MATH_MODE is followed where it is set.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# Registers the operator that saved traces contain.
import xruntime.compat.ipex.int8_operator  # noqa: F401
from xruntime.compat.ipex.replacements import missing

if TYPE_CHECKING:
    from torch.backends.mkldnn import VERBOSE_OFF, VERBOSE_ON, VERBOSE_ON_CREATION, verbose

    from xruntime.compat.ipex import cpu, llm, nn, optim, quantization
    from xruntime.compat.ipex.optimizing import optimize
    from xruntime.compat.ipex.switches import (
        FP32MathMode,
        disable_auto_channels_last,
        enable_auto_channels_last,
        enable_onednn_fusion,
        get_fp32_math_mode,
        set_fp32_math_mode,
    )

__all__ = [
    "VERBOSE_OFF",
    "VERBOSE_ON",
    "VERBOSE_ON_CREATION",
    "FP32MathMode",
    "cpu",
    "disable_auto_channels_last",
    "enable_auto_channels_last",
    "enable_onednn_fusion",
    "get_fp32_math_mode",
    "llm",
    "nn",
    "optim",
    "optimize",
    "quantization",
    "set_fp32_math_mode",
    "verbose",
]

__version__ = "2.8.0"
"""The extension's last release for CPUs, whose calls these are: scripts compare it."""

_HERE = "xruntime.compat.ipex"
_ONEDNN = "torch.backends.mkldnn"

_PLACES = {
    "optimize": f"{_HERE}.optimizing",
    **dict.fromkeys(("VERBOSE_OFF", "VERBOSE_ON", "VERBOSE_ON_CREATION", "verbose"), _ONEDNN),
    **dict.fromkeys(
        (
            *("FP32MathMode", "get_fp32_math_mode", "set_fp32_math_mode", "enable_onednn_fusion"),
            *("disable_auto_channels_last", "enable_auto_channels_last"),
        ),
        f"{_HERE}.switches",
    ),
}
"""The module of each name, which is imported when the name is first used."""

_SUBMODULES = ("cpu", "llm", "nn", "optim", "quantization")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{_HERE}.{name}")
    if name not in _PLACES:
        missing(__name__)(name)
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if os.environ.get("IPEX_FP32_MATH_MODE"):
    from xruntime.compat.ipex.switches import follow_environment

    follow_environment()
