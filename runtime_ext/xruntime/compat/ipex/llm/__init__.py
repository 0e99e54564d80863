# SPDX-License-Identifier: Apache-2.0
"""`ipex.llm.optimize`: xruntime.optimize for a language model, with the arguments of the extension."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from xruntime.compat.ipex.quantization.settings import WeightOnly
from xruntime.compat.ipex.replacements import missing, report
from xruntime.errors import CompatibilityError
from xruntime.optimization import optimize as _optimize

__all__ = ["optimize"]

WITHOUT_EFFECT: Final = {
    "sample_inputs": "nothing is traced, so no sample is needed",
    "deployment_mode": "nothing is traced: the model that is returned generates as it is",
    "cache_weight_for_large_batch": "each batch reads the same weights",
    "qconfig_summary_file": "it belongs to static quantization, which is xruntime.quantization's",
}
"""Arguments that are accepted, and why nothing follows from them."""


def optimize(
    model: nn.Module,
    optimizer: Any = None,
    dtype: torch.dtype = torch.float,
    inplace: bool = False,
    device: str = "cpu",
    quantization_config: Any = None,
    qconfig_summary_file: str | None = None,
    low_precision_checkpoint: Any = None,
    sample_inputs: Any = None,
    deployment_mode: bool = True,
    cache_weight_for_large_batch: bool = False,
) -> Any:
    """Return a form of a language model of transformers whose generate() is faster.

    dtype
        float32 leaves the weights in the precision that they have; bfloat16 and float16 are as for xruntime.optimize.
    inplace
        Change the model itself, and have its weights in memory once.
    quantization_config
        What `ipex.quantization.get_weight_only_quant_qconfig_mapping` returns: linears have weights of 8 or 4 bits.
    sample_inputs, deployment_mode, cache_weight_for_large_batch, qconfig_summary_file
        Accepted, and reported once if they ask for something.

    Raises CompatibilityError for an optimizer, another device, another quantization_config or a
    low_precision_checkpoint, and what xruntime.optimize raises; the model is as before then.
    """
    arguments = dict(locals())
    if optimizer is not None:
        raise CompatibilityError(
            "llm.optimize is for inference: for training use ipex.optimize(model, optimizer=optimizer)"
        )
    if torch.device(device).type != "cpu":
        raise CompatibilityError(f"device is {device!r}, and only 'cpu' is possible here")
    if low_precision_checkpoint is not None:
        raise CompatibilityError(
            "low_precision_checkpoint is not read: load GPTQ and AWQ checkpoints by transformers'"
            " from_pretrained, or the original weights with quantization_config"
        )
    if quantization_config is not None and not isinstance(quantization_config, WeightOnly):
        raise CompatibilityError(
            f"quantization_config is a {type(quantization_config).__name__}; allowed is the result of"
            " ipex.quantization.get_weight_only_quant_qconfig_mapping. For static INT8 use"
            " xruntime.quantization, for SmoothQuant torchao.prototype.smoothquant"
        )
    for name, instead in WITHOUT_EFFECT.items():
        if arguments[name] not in (None, name == "deployment_mode"):
            report(f"llm.optimize({name}=...) has no effect: {instead}")
    low = None if dtype is torch.float32 else dtype
    if quantization_config is None:
        return _optimize(model, dtype=low, inplace=inplace)
    return _optimize(model, dtype=low, inplace=inplace, weight_bits=quantization_config.bits)


__getattr__ = missing(__name__)
