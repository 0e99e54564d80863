# SPDX-License-Identifier: Apache-2.0
"""torchao's quantizer for this machine's CPU, which leaves the operators alone that stay float.

Imports torchao: `torchao_package.import_torchao()` comes first.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import platform
import warnings
from typing import Any, Final

import torch
from torchao.quantization.pt2e import HistogramObserver, MinMaxObserver
from torchao.quantization.pt2e.observer import UniformQuantizationObserverBase
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
from torchao.quantization.pt2e.quantizer.arm_inductor_quantizer import (
    ArmInductorQuantizer,
    get_default_arm_inductor_quantization_config,
)
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer,
    _annotate_nodes_not_quantize,
    get_default_x86_inductor_quantization_config,
)

from xruntime.errors import RecipeError
from xruntime.quantization.operators import NAME, useless_followers
from xruntime.quantization.recipe import QuantConf, Scale

_log = logging.getLogger("xruntime")

IS_ARM: Final = platform.machine() in ("aarch64", "arm64")

_WITHOUT_VNNI: Final = frozenset(("SSE41", "AVX", "AVX2", "AVX512_CORE"))
"""Values of oneDNN's variable that keep its kernels from VNNI, whatever the CPU has."""

MIN_SCALE: Final = 2**-12
"""torchao's smallest scale of activations."""


def machine_range() -> tuple[int, int]:
    """Return the range of activations that this machine's kernels take without saturating."""
    if IS_ARM:
        return -128, 127
    # Without VNNI, pairs of products of 8 bits are added in 16 bits, which 255 * 127 * 2 exceeds.
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "")).upper()
    if limit in _WITHOUT_VNNI or not torch.cpu._is_vnni_supported():  # noqa: SLF001 - no public one
        return 0, 127
    return 0, 255


def check_range(conf: QuantConf) -> None:
    """Raise RecipeError if this machine's kernels do not take the recipe's range of activations."""
    chosen = conf.activation_range
    if chosen is None:
        return
    if (chosen[0] < 0) != IS_ARM:
        raise RecipeError(
            f"the recipe's activations are in {list(chosen)}, and this machine's kernels take"
            f" {list(machine_range())}: set the range to null (None) and calibrate here"
        )
    if chosen[1] > machine_range()[1]:
        _log.warning(
            "the recipe's activations are in %s; oneDNN has no VNNI here, so sums may saturate: %s is exact",
            list(chosen),
            list(machine_range()),
        )


def observe(module: torch.fx.GraphModule, conf: QuantConf) -> torch.fx.GraphModule:
    """Insert observers of what the recipe quantizes; `module` is changed and must not be used again.

    Its operators have been named. Raises what torchao raises.
    """
    kept = frozenset(conf.names("float"))
    quantizer = _ArmQuantizer(kept) if IS_ARM else _X86Quantizer(kept)
    if conf.mode == "dynamic":
        quantizer.set_module_type_qconfig(torch.nn.Linear, _config(conf))
    else:
        quantizer.set_global(_config(conf))
    with warnings.catch_warnings():
        # "The input of maxpool2d is not quantized": then neither is the pooling, which is right.
        warnings.filterwarnings("ignore", message="The input of maxpool2d is not quantized")
        prepared: torch.fx.GraphModule = prepare_pt2e(module, quantizer)
    return prepared


class StoredScale(UniformQuantizationObserverBase):  # type: ignore[misc] # torchao has no types
    """Stands for an observer, with a scale that is known."""

    def __init__(self, observer: Any, scale: Scale) -> None:
        super().__init__(
            dtype=observer.dtype,
            qscheme=observer.qscheme,
            quant_min=observer.quant_min,
            quant_max=observer.quant_max,
        )
        self.stored = scale

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([self.stored.scale]), torch.tensor([self.stored.zero_point])


def scale_of(observer: Any) -> Scale:
    """Return the scale that follows from what an observer has seen; infinite for NaN or infinity."""
    if not (observer.min_val.isfinite().all() and observer.max_val.isfinite().all()):
        return Scale(math.inf, 0)
    scale, zero_point = observer.calculate_qparams()
    return Scale(scale.item(), int(zero_point.item()))


class _KeepsFloat:
    """Marks nodes as decided before the quantizer sees them."""

    def __init__(self, kept: frozenset[str]) -> None:
        super().__init__()
        self._kept = kept

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        for node in model.graph.nodes:
            value = node.meta.get("val")
            whole = isinstance(value, torch.Tensor) and not value.is_floating_point()
            if whole or node.meta.get(NAME) in self._kept:  # torchao would observe integers
                _annotate_nodes_not_quantize(node)
        for node in useless_followers(model.graph, self._kept):
            _annotate_nodes_not_quantize(node)
        annotated: torch.fx.GraphModule = super().annotate(model)  # type: ignore[misc]
        return annotated


class _X86Quantizer(_KeepsFloat, X86InductorQuantizer):  # type: ignore[misc] # torchao has no types
    pass


class _ArmQuantizer(_KeepsFloat, ArmInductorQuantizer):  # type: ignore[misc] # torchao has no types
    pass


def _config(conf: QuantConf) -> Any:
    """Return torchao's default configuration with the recipe's observer, scheme and range."""
    dynamic = conf.mode == "dynamic"
    if IS_ARM:
        config = get_default_arm_inductor_quantization_config(is_dynamic=dynamic)
    else:
        config = get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
    low, high = conf.activation_range or machine_range()
    changes: dict[str, Any] = {"quant_min": low, "quant_max": high}
    if not dynamic:
        observer = HistogramObserver if conf.observer == "histogram" else MinMaxObserver
        changes["observer_or_fake_quant_ctr"] = observer.with_args(eps=MIN_SCALE)
        if conf.scheme == "symmetric":
            changes["qscheme"] = torch.per_tensor_symmetric
    activation = dataclasses.replace(config.input_activation, **changes)
    return dataclasses.replace(config, input_activation=activation, output_activation=activation)
