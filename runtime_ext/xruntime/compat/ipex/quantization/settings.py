# SPDX-License-Identifier: Apache-2.0
"""The settings of `prepare`, its two defaults and torch's own, and those of `ipex.llm.optimize`."""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

from xruntime.compat.ipex.replacements import report
from xruntime.errors import CompatibilityError, QuantizationError
from xruntime.quantization import QuantConf


class Settings(NamedTuple):
    mode: str
    """static or dynamic."""

    def __repr__(self) -> str:
        return f"default_{self.mode}_qconfig_mapping"


default_static_qconfig_mapping: Final = Settings("static")
"""Histogram observers of activations, and int8 weights with a scale for each channel."""
default_dynamic_qconfig_mapping: Final = Settings("dynamic")
"""The scales of linear layers' activations are computed in each call."""
default_static_qconfig: Final = default_static_qconfig_mapping
default_dynamic_qconfig: Final = default_dynamic_qconfig_mapping

_OBSERVERS: Final = {"HistogramObserver": "histogram", "MinMaxObserver": "minmax"}
_DYNAMIC: Final = "PlaceholderObserver"


def new_recipe(configure: object) -> QuantConf:
    """Return a recipe without operators for what `prepare` was given.

    configure
        One of the defaults, a QuantConf, or torch's QConfig or QConfigMapping, of which the global QConfig
        counts.

    Raises QuantizationError for anything else, and for observers of other kinds.
    """
    if isinstance(configure, Settings):
        return QuantConf(configure.mode)
    if isinstance(configure, QuantConf):
        return configure.copy()
    qconfig: Any = getattr(configure, "global_qconfig", configure)
    if not hasattr(qconfig, "activation") or not hasattr(qconfig, "weight"):
        raise QuantizationError(
            f"configure is a {type(configure).__name__}; expected is"
            " ipex.quantization.default_static_qconfig_mapping, default_dynamic_qconfig_mapping, a"
            " QConfigMapping with a global QConfig, or a QConfig"
        )
    activation = qconfig.activation()
    kind = type(activation).__name__
    if kind == _DYNAMIC:
        return QuantConf("dynamic")
    if kind not in _OBSERVERS:
        raise QuantizationError(
            f"the QConfig observes activations by {kind}; possible are"
            f" {', '.join(_OBSERVERS)}, and {_DYNAMIC} for dynamic quantization"
        )
    _check_weight(qconfig.weight())
    symmetric = "symmetric" in str(activation.qscheme)
    return QuantConf(
        "static",
        scheme="symmetric" if symmetric else "affine",
        observer=_OBSERVERS[kind],
        activation_range=(0, 127) if getattr(activation, "reduce_range", False) else None,
    )


def _check_weight(observer: Any) -> None:
    kind, scheme = type(observer).__name__, str(getattr(observer, "qscheme", ""))
    if kind != "PerChannelMinMaxObserver" or "symmetric" not in scheme:
        report(
            f"the QConfig observes weights by {kind} ({scheme}): here weights are int8, symmetric, with a"
            " scale for each channel",
            stacklevel=4,
        )


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
    if any(value is not None for value in others):
        report(
            "get_weight_only_quant_qconfig_mapping follows weight_dtype alone: groups and activations are"
            f" those of xruntime.optimize(model, weight_bits={bits})"
        )
    return WeightOnly(bits)
