# SPDX-License-Identifier: Apache-2.0
"""INT8 inference by torchao's pt2e quantization, compiled with freezing.

    conf = QuantConf(mode="static")                       # or QuantConf.load("recipe.json")
    with calibrate(model, conf, example_inputs) as observed:
        for batch in data:
            observed(batch)
    conf.save("recipe.json")                              # one entry for each operator
    fast = convert(observed)
    save(fast, "model.pt2")
    fast = load("model.pt2")

The model itself is never changed. torchao (``pip install 'torchao>=0.18'``) and torch are imported when
they are first needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xruntime.quantization.recipe import Operator, QuantConf, Scale

if TYPE_CHECKING:
    from xruntime.quantization.autotuning import Autotuned, TuningStep, autotune
    from xruntime.quantization.calibration import Observed, calibrate, prepare
    from xruntime.quantization.conversion import convert
    from xruntime.quantization.quantized_module import QuantizedModule
    from xruntime.quantization.serialization import load, save

__all__ = [
    "Autotuned",
    "Observed",
    "Operator",
    "QuantConf",
    "QuantizedModule",
    "Scale",
    "TuningStep",
    "autotune",
    "calibrate",
    "convert",
    "load",
    "prepare",
    "save",
]

_MODULES = {
    "Autotuned": "autotuning",
    "TuningStep": "autotuning",
    "autotune": "autotuning",
    "Observed": "calibration",
    "calibrate": "calibration",
    "prepare": "calibration",
    "convert": "conversion",
    "load": "serialization",
    "save": "serialization",
    "QuantizedModule": "quantized_module",
}
"""The module of each name, which is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'xruntime.quantization' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"xruntime.quantization.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
