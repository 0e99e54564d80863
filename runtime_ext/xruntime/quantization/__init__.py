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

_NAMES_OF = {
    "autotuning": ("Autotuned", "TuningStep", "autotune"),
    "calibration": ("Observed", "calibrate", "prepare"),
    "conversion": ("convert",),
    "quantized_module": ("QuantizedModule",),
    "serialization": ("load", "save"),
}
"""The modules of these names, which are imported when a name is first used."""


def __getattr__(name: str) -> Any:
    for module, names in _NAMES_OF.items():
        if name in names:
            value = getattr(importlib.import_module(f"xruntime.quantization.{module}"), name)
            return globals().setdefault(name, value)
    raise AttributeError(f"module 'xruntime.quantization' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
