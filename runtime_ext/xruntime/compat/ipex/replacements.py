# SPDX-License-Identifier: Apache-2.0
"""Replacements for the calls and arguments of the extension that are not offered here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final, NoReturn

from xruntime.errors import CompatibilityWarning

_PACKAGE: Final = "xruntime.compat.ipex."

_LOW_PRECISION: Final = "use torchao.quantization.quantize_ with Int8WeightOnlyConfig() or another of its configurations"
_LANGUAGE_MODELS: Final = (
    "use a model of transformers and ipex.llm.optimize, which keeps generate()"
)
_OLD_PRECISION: Final = "use ipex.optimize(model, dtype=torch.bfloat16) and torch.autocast"

_GROUPS: Final[dict[str, str]] = {
    _OLD_PRECISION: "AmpConf conf",
    "leave tensors on the CPU: there is no device of the extension": "DEVICE",
    "use torch.device('meta') as a context manager": "OnDevice _init_on_device",
    "use torch.compile": "compatible_mode compile _dynamo _inductor _get_compiler_backend"
    " _set_compiler_backend cpu.graph_capture",
    "use torch's own functions, such as torch.cpu.get_capabilities()['amx_fp16']": "core _C",
    "use ipex.__version__": "version",
    "leave the question out: everything here is for CPUs": "has_cpu",
    "use torch.xpu": "xpu",
    "use torch.xpu.is_available()": "has_xpu",
    "build against torch and xruntime's kernels, as docs/kernels.md shows": "cmake_prefix_path",
    "use torch.autocast('cpu', dtype=torch.bfloat16)": "cpu.amp cpu.autocast enable_auto_mixed_precision",
    "use torch.distributed with the backend 'gloo'": "cpu.comm distributed deepspeed",
    "use the command `xtune --conf-file FILE SCRIPT`": "cpu.hypertune",
    "use the command `xlaunch SCRIPT`": "cpu.launch",
    "use the command `xlaunch --optimize auto SCRIPT`": "cpu.auto_ipex",
    "use ipex.cpu.runtime, which has all names": (
        "cpu.runtime.cpupool cpu.runtime.multi_stream cpu.runtime.runtime_utils cpu.runtime.task"
    ),
    "use MultiStreamModule.map, which gives each stream whole requests": (
        "cpu.runtime._MultiStreamBenchmarkModule"
    ),
    "use ipex.optimize and torch.compile": "cpu.tpp tpp cpu.nn",
    "torch chooses among oneDNN's kernels and MKL's by itself": (
        "cpu._auto_kernel_selection _disable_dnnl _enable_dnnl _using_dnnl"
    ),
    "use torch.backends.cpu.get_cpu_capability() and torch.cpu.get_capabilities()": "cpu._cpu_isa",
    "use ipex.enable_onednn_fusion": "cpu.onednn_fusion",
    "use torch's own functions; ipex.verbose is here": "cpu.utils utils",
    "use ipex.optimize, set_fp32_math_mode and the like directly": "frontend",
    "use ipex.optimize(model, dtype=torch.bfloat16) and torch.compile": "fast_bert",
    "use torch.fx": "fx",
    "use torch.jit": "jit",
    _LANGUAGE_MODELS: "llm.modules llm.functional llm.generation llm.utils llm.quantization"
    " optimize_transformers transformers cpu.transformers nn.optimize_transformers",
    "use ipex.nn.functional.interaction": "nn.functional.InteractionFunc",
    "use torch.nn.functional.embedding_bag, which is not replaced here": "nn.functional._embeddingbag",
    "use xruntime.nn.roi_align": (
        "nn.functional._roi_align nn.functional.roi_align nn.modules._roi_align nn.modules.roi_align"
    ),
    "use torch.linalg and the methods of torch.Tensor": "nn.functional._tensor_method",
    "use ipex.nn.modules.MergedEmbeddingBag and its relatives": "nn.modules.merged_embeddingbag",
    "use ipex.nn.FrozenBatchNorm2d": "nn.modules.frozen_batch_norm",
    "use MergedEmbeddingBagWithAdaGrad for the tables of each rank, and torch.distributed.all_to_all": (
        "nn.modules.DistMergeEmbeddingBagWithAdaGrad"
    ),
    "use torch.nn.Linear and torch.compile, which fuses them": (
        "nn.modules.IPEXLinearEltwise nn.modules.linear_fuse_eltwise"
    ),
    "use torch.cat([dense, *MergedEmbeddingBag.from_embeddingbag_list(tables)(indices, offsets)], 1)": (
        "nn.modules.MergedEmbeddingBagWithCat"
    ),
    "use torch.nn.LSTM": "nn.modules.lstm",
    "use ipex.optimize, which converts the weights": "nn.utils",
    "use ipex.optim.Lamb": "optim._lamb",
    "use ipex.optim.Lars; in place of create_optimizer_lars, give it norms and biases as a group with"
    " adaptive=False and weight_decay=0": "optim._lars",
    "use the optimizers of ipex.optim": "optim._functional",
    "use ipex.optimize(model, optimizer=optimizer)": "optim._optimizer_utils",
    _LOW_PRECISION: "quantization.QConfigWoq quantization.woq cpu.woq nn.modules.WeightOnlyQuantizedLinear"
    " nn.modules.weight_only_quantization",
    "use prepare(model, ipex.quantization.default_static_qconfig_mapping, example_inputs=x), which observes"
    " the calls that follow, and save_qconf_summary": "quantization.QuantConf quantization.calibrate"
    " quantization.conf",
    "use torchao.float8": "quantization.fp8",
    "use torchao.prototype.smoothquant": "quantization.get_smooth_quant_qconfig_mapping"
    " quantization.get_smooth_quant_static_qconfig quantization._smooth_quant",
    "use torchao.prototype.gptq": "quantization.gptq quantization._GPTQ",
    "use torch.quantize_per_channel": "quantization.quantize_per_channel quantization.quantize_per_block",
    "use torch.Tensor.dequantize": (
        "quantization.dequantize_per_channel quantization.dequantize_per_block"
    ),
    "use ipex.quantization, which has prepare, convert and autotune": "quantization._autotune"
    " quantization._qconfig quantization._quantize quantization._quantize_utils"
    " quantization._quantization_state quantization._recipe quantization._utils",
}

REPLACEMENTS: Final = {path: said for said, paths in _GROUPS.items() for path in paths.split()}
"""What to use instead of each name, by its path below `ipex`."""

reported: set[str] = set()
"""The messages that `report` has printed in this process."""


def report(said: str, *, stacklevel: int = 2) -> None:
    """Warn of an argument that has another effect here, or none: once in a process.

    `stacklevel` is the caller's, as in warnings.warn.
    """
    if said not in reported:
        reported.add(said)
        warnings.warn(said, CompatibilityWarning, stacklevel=stacklevel + 1)


def missing(module: str) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module of this package, which raises the AttributeError for a name."""

    def refuse(name: str) -> NoReturn:
        said = _said(f"{module}.{name}")
        raise AttributeError(said or f"module {module!r} has no attribute {name!r}")

    return refuse


class GoneFinder(MetaPathFinder):
    """Raises an error that names the replacement when a name is imported that is not offered here.

    ``from module import name`` looks for a submodule when there is no attribute, and drops the
    AttributeError of `missing`.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing. Raises ImportError for a name that is not offered here."""
        said = _said(name) if name.startswith(_PACKAGE) else None
        if said is not None:
            raise ImportError(said, name=name)
        return None


def _said(name: str) -> str | None:
    """The message for a name of this package; None if the extension never had it."""
    path = name.removeprefix(_PACKAGE)
    return f"ipex.{path} is gone: {REPLACEMENTS[path]}" if path in REPLACEMENTS else None


# The last one, so that only modules that nobody else finds come to it.
sys.meta_path.append(GoneFinder())
