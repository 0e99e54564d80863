# SPDX-License-Identifier: Apache-2.0
"""Settings of the whole process: the precision of fp32 operators, channels-last, oneDNN's fusions.

IPEX_FP32_MATH_MODE in the environment is read when `xruntime.compat.ipex` is imported.
"""

from __future__ import annotations

import enum
import os
from typing import Any

import torch

from xruntime.compat.ipex.replacements import report
from xruntime.errors import CompatibilityError


class FP32MathMode(enum.Enum):
    """The precision in which fp32 matrix multiplications and convolutions multiply; sums are in fp32."""

    FP32 = "ieee"
    TF32 = "tf32"
    BF32 = "bf16"


VARIABLE = "IPEX_FP32_MATH_MODE"
"""FP32, TF32 or BF32, or their numbers 0, 1 and 2."""

channels_last: bool | None = None
"""Whether `ipex.optimize` converts convolutions to channels-last; None: as xruntime.optimize does."""


def enable_auto_channels_last() -> None:
    """Let `ipex.optimize` convert convolutions to channels-last, as it does unless that is disabled."""
    global channels_last  # noqa: PLW0603 - a setting of the process, as it was
    channels_last = None
    report(
        "enable_auto_channels_last() changes nothing but ipex.optimize, which does it by default"
    )


def disable_auto_channels_last() -> None:
    """Let `ipex.optimize` leave memory formats as they are."""
    global channels_last  # noqa: PLW0603
    channels_last = False
    report(
        "disable_auto_channels_last() changes ipex.optimize alone: it is passes={'channels_last': False} of"
        " xruntime.optimize"
    )


def enable_onednn_fusion(enabled: bool) -> None:
    """Accept the switch of fusions in TorchScript, which has no effect: torch.compile fuses."""
    report(
        f"enable_onednn_fusion({enabled}) has no effect: torch.compile fuses by itself, and TorchScript has"
        " torch.jit.enable_onednn_fusion"
    )


def follow_environment() -> None:
    """Set the mode that IPEX_FP32_MATH_MODE names, and report it."""
    value = os.environ.get(VARIABLE, "")
    modes = {mode.name: mode for mode in FP32MathMode}
    modes |= {str(number): mode for number, mode in enumerate(FP32MathMode)}
    mode = modes.get(value.upper())
    if mode is None:
        report(f"{VARIABLE}={value} is ignored: allowed are {', '.join(modes)}", stacklevel=3)
        return
    set_fp32_math_mode(mode)
    report(
        f"{VARIABLE}={value} is followed: it sets torch.backends.mkldnn.matmul.fp32_precision, and conv, to"
        f" {mode.value!r}",
        stacklevel=3,
    )


def set_fp32_math_mode(mode: FP32MathMode = FP32MathMode.FP32, device: str = "cpu") -> None:
    """Set torch.backends.mkldnn's precision of fp32 operators, for the whole process.

    BF32 lets oneDNN round the operands of matmul and conv to bf16, which it does where that is faster: on
    x86 with AMX. The setting for RNNs is changed, too, but in torch 2.13 no RNN reads it: a GRU follows
    that of matmul, and an LSTM stays in fp32. Raises CompatibilityError for another mode or device, and
    before torch 2.9.
    """
    _check_device(device)
    if mode not in list(FP32MathMode):
        allowed = ", ".join(f"ipex.{mode}" for mode in FP32MathMode)
        raise CompatibilityError(f"mode is {mode!r}; allowed are {allowed}")
    for operators in _operators():
        operators.fp32_precision = mode.value


def get_fp32_math_mode(device: str = "cpu") -> FP32MathMode:
    """Return the mode of matrix multiplications. Raises CompatibilityError."""
    _check_device(device)
    precision = _operators()[0].fp32_precision
    return FP32MathMode.FP32 if precision == "none" else FP32MathMode(precision)


def _operators() -> tuple[Any, ...]:
    onednn: Any = torch.backends.mkldnn
    if not hasattr(onednn, "matmul"):
        raise CompatibilityError(
            f"torch {torch.__version__} has no torch.backends.mkldnn.matmul.fp32_precision, which torch 2.9"
            " introduced: use torch.set_float32_matmul_precision"
        )
    return onednn.matmul, onednn.conv, onednn.rnn


def _check_device(device: str) -> None:
    if device != "cpu":
        raise CompatibilityError(
            f"device is {device!r}, and only 'cpu' is possible here: for others use torch.backends"
        )
