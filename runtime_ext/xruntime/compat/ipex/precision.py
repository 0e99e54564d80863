# SPDX-License-Identifier: Apache-2.0
"""The precision in which oneDNN computes with fp32 tensors."""

from __future__ import annotations

import enum
from typing import Any

import torch

from xruntime.errors import CompatibilityError


class FP32MathMode(enum.Enum):
    """What fp32 multiplications of matrices and convolutions are computed in; sums are in fp32."""

    FP32 = "ieee"
    TF32 = "tf32"
    BF32 = "bf16"


def set_fp32_math_mode(mode: FP32MathMode = FP32MathMode.FP32, device: str = "cpu") -> None:
    """Set torch.backends.mkldnn's precision of fp32 operators, for the whole process.

    BF32 lets oneDNN round the operands of matmul and conv to bf16, which it does where that is faster: on
    x86 with AMX. The setting for RNNs is changed, too, but in torch 2.13 no RNN reads it: a GRU follows
    that of matmul, and an LSTM stays in fp32. Raises CompatibilityError for another mode or device, and
    before torch 2.9.
    """
    _check_device(device)
    precision = _precision(mode)
    for operators in _operators():
        operators.fp32_precision = precision


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


def _precision(mode: object) -> str:
    if not isinstance(mode, FP32MathMode):
        allowed = ", ".join(f"ipex.{one}" for one in FP32MathMode)
        raise CompatibilityError(f"mode is {mode!r}; allowed are {allowed}")
    return mode.value


def _check_device(device: str) -> None:
    if device != "cpu":
        raise CompatibilityError(
            f"device is {device!r}, and only 'cpu' is possible here: for others use torch.backends"
        )
