# SPDX-License-Identifier: Apache-2.0
"""`ipex.quantization`: INT8 by xruntime.quantization, with the calls of the extension.

    qconfig_mapping = ipex.quantization.default_static_qconfig_mapping
    prepared = ipex.quantization.prepare(model, qconfig_mapping, example_inputs=x)
    for batch in data:
        prepared(batch)
    prepared.save_qconf_summary("conf.json")        # a recipe of xruntime.quantization
    converted = ipex.quantization.convert(prepared)

torchao is imported by the first call.
"""

from __future__ import annotations

from xruntime.compat.ipex.quantization.autotuning import autotune
from xruntime.compat.ipex.quantization.conversion import convert, prepare
from xruntime.compat.ipex.quantization.settings import (
    WoqActQuantMode,
    WoqLowpMode,
    WoqWeightDtype,
    WoqWeightQScheme,
    default_dynamic_qconfig,
    default_dynamic_qconfig_mapping,
    default_static_qconfig,
    default_static_qconfig_mapping,
    get_weight_only_quant_qconfig_mapping,
)
from xruntime.compat.ipex.replacements import missing

__all__ = [
    "WoqActQuantMode",
    "WoqLowpMode",
    "WoqWeightDtype",
    "WoqWeightQScheme",
    "autotune",
    "convert",
    "default_dynamic_qconfig",
    "default_dynamic_qconfig_mapping",
    "default_static_qconfig",
    "default_static_qconfig_mapping",
    "get_weight_only_quant_qconfig_mapping",
    "prepare",
]


__getattr__ = missing(__name__)
