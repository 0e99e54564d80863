# SPDX-License-Identifier: Apache-2.0
"""Configurations of weights in few bits, for `ipex.llm.optimize`."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from xruntime.compat.ipex.replacements import report
from xruntime.errors import CompatibilityError


class WoqWeightDtype(enum.IntEnum):
    """The precision of weights."""

    INT8 = 1
    INT4 = 2
    NF4 = 3
    FP8 = 4


WoqLowpMode = enum.IntEnum("WoqLowpMode", {"NONE": 0, "FP16": 1, "BF16": 2, "INT8": 3})
WoqActQuantMode = enum.IntEnum(
    "WoqActQuantMode",
    "NONE PER_TENSOR PER_IC_BLOCK PER_BATCH PER_BATCH_IC_BLOCK"
    " PER_TENSOR_SYM PER_IC_BLOCK_SYM PER_BATCH_SYM PER_BATCH_IC_BLOCK_SYM",
    start=-1,
)
WoqWeightQScheme = enum.IntEnum("WoqWeightQScheme", "UNDEFINED ASYMMETRIC SYMMETRIC", start=0)


class WeightOnly(NamedTuple):
    """A configuration: how many bits a weight has."""

    bits: int


def get_weight_only_quant_qconfig_mapping(
    *,
    weight_dtype: WoqWeightDtype = WoqWeightDtype.INT8,
    lowp_mode: Any = None,
    act_quant_mode: Any = None,
    group_size: int | None = None,
    weight_qscheme: Any = None,
) -> WeightOnly:
    """Return a configuration of INT8 or INT4 weights.

    Groups of weights, their symmetric scales and the precision of activations are those of `weight_bits` of
    xruntime.optimize; other arguments are accepted, and reported once if given. Raises CompatibilityError for NF4 and FP8.
    """
    bits = {WoqWeightDtype.INT8: 8, WoqWeightDtype.INT4: 4}.get(weight_dtype)
    if bits is None:
        raise CompatibilityError(
            f"weight_dtype is {weight_dtype!r}; allowed are WoqWeightDtype.INT8 and INT4"
        )
    others = (lowp_mode, act_quant_mode, group_size, weight_qscheme)
    if any(it is not None for it in others):
        report(
            "get_weight_only_quant_qconfig_mapping follows weight_dtype alone: groups and activations are"
            f" those of xruntime.optimize(model, weight_bits={bits})"
        )
    return WeightOnly(bits)
