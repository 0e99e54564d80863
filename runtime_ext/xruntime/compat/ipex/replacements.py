# SPDX-License-Identifier: Apache-2.0
"""What replaces the calls of the extension that are not offered here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_PACKAGE: Final = "xruntime.compat.ipex."

_LOW_PRECISION: Final = "use torchao.quantization.quantize_ with Int8WeightOnlyConfig() or another of its configurations"
_RECIPE: Final = (
    "use prepare(model, ipex.quantization.default_static_qconfig_mapping, example_inputs=x), which"
    " observes the calls that follow, and save_qconf_summary"
)
_LANGUAGE_MODELS: Final = (
    "use the model of transformers with torch.compile, and torchao for weights of low precision"
)
_AUTOCAST: Final = "use torch.autocast('cpu', dtype=torch.bfloat16)"
_OLD_PRECISION: Final = "use ipex.optimize(model, dtype=torch.bfloat16) and torch.autocast"

REPLACEMENTS: Final = {
    "AmpConf": _OLD_PRECISION,
    "DEVICE": "leave tensors on the CPU: there is no device of the extension",
    "OnDevice": "use torch.device('meta') as a context manager",
    "compatible_mode": "use torch.compile",
    "compile": "use torch.compile",
    "conf": _OLD_PRECISION,
    "core": "use torch's own functions",
    "cpu.amp": _AUTOCAST,
    "cpu.autocast": _AUTOCAST,
    "cpu.comm": "use torch.distributed with the backend 'gloo'",
    "cpu.hypertune": "use the command `xtune --conf-file FILE SCRIPT`",
    "cpu.launch": "use the command `xlaunch SCRIPT`",
    "cpu.runtime._MultiStreamBenchmarkModule": (
        "use MultiStreamModule.map, which gives each stream whole requests"
    ),
    "cpu.tpp": "use ipex.optimize and torch.compile",
    "disable_auto_channels_last": (
        "use xruntime.optimize(model, passes={'channels_last': False}); nothing else changes layouts"
    ),
    "distributed": "use torch.distributed with the backend 'gloo'",
    "enable_auto_channels_last": "use model.to(memory_format=torch.channels_last)",
    "enable_auto_mixed_precision": _AUTOCAST,
    "enable_onednn_fusion": "use torch.compile, or torch.jit.enable_onednn_fusion for TorchScript",
    "fast_bert": "use ipex.optimize(model, dtype=torch.bfloat16) and torch.compile",
    "fx": "use torch.fx",
    "jit": "use torch.jit",
    "llm": _LANGUAGE_MODELS,
    "nn.functional.InteractionFunc": "use ipex.nn.functional.interaction",
    "nn.modules.DistMergeEmbeddingBagWithAdaGrad": (
        "use MergedEmbeddingBagWithAdaGrad for the tables of each rank, and torch.distributed.all_to_all"
    ),
    "nn.modules.IPEXLinearEltwise": "use torch.nn.Linear and torch.compile, which fuses them",
    "nn.modules.MergedEmbeddingBagWithCat": "use MergedEmbeddingBag and torch.cat",
    "nn.modules.WeightOnlyQuantizedLinear": _LOW_PRECISION,
    "nn.utils": "use ipex.optimize, which converts the weights",
    "optim._lamb": "use ipex.optim.Lamb",
    "optim._lars": "use ipex.optim.Lars",
    "optim._functional": "use the optimizers of ipex.optim",
    "optim._optimizer_utils": "use ipex.optimize(model, optimizer=optimizer)",
    "optimize_transformers": _LANGUAGE_MODELS,
    "quantization.QConfigWoq": _LOW_PRECISION,
    "quantization.QuantConf": _RECIPE,
    "quantization.WoqActQuantMode": _LOW_PRECISION,
    "quantization.WoqLowpMode": _LOW_PRECISION,
    "quantization.WoqWeightDtype": _LOW_PRECISION,
    "quantization.WoqWeightQScheme": _LOW_PRECISION,
    "quantization.calibrate": _RECIPE,
    "quantization.fp8": "use torchao.float8",
    "quantization.get_smooth_quant_qconfig_mapping": "use torchao.prototype.smoothquant",
    "quantization.get_weight_only_quant_qconfig_mapping": _LOW_PRECISION,
    "quantization.gptq": "use torchao.prototype.gptq",
    "tpp": "use ipex.optimize and torch.compile",
    "utils": "use torch's own functions; ipex.verbose is here",
    "xpu": "use torch.xpu",
}
"""By the path below `ipex`: what to use instead."""


def missing(module: str, name: str) -> AttributeError:
    """Return the error for a name that the module `module` of this package does not have."""
    said = _said(f"{module}.{name}")
    return AttributeError(said or f"module {module!r} has no attribute {name!r}")


class GoneFinder(MetaPathFinder):
    """Says what to use instead of a name that is gone, when it is imported.

    ``from module import name`` looks for a submodule when there is no attribute, and drops the
    AttributeError of `missing`.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing. Raises ImportError for a name that is gone."""
        said = _said(name) if name.startswith(_PACKAGE) else None
        if said is not None:
            raise ImportError(said, name=name)
        return None


def _said(name: str) -> str | None:
    """What to say of a name of this package; None if it never was there."""
    path = name.removeprefix(_PACKAGE)
    return f"ipex.{path} is gone: {REPLACEMENTS[path]}" if path in REPLACEMENTS else None


# The last one, so that only modules that nobody else finds come to it.
sys.meta_path.append(GoneFinder())
