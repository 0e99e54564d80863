# SPDX-License-Identifier: Apache-2.0
"""The settings that `prepare` takes: the two defaults, and torch's QConfig and QConfigMapping."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from xruntime.compat.ipex.replacements import report
from xruntime.errors import QuantizationError
from xruntime.quantization import QuantConf


class Settings(NamedTuple):
    """One of the defaults."""

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
