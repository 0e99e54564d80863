# SPDX-License-Identifier: Apache-2.0
"""The pass that packs the weights of a language model's linears in 8 or 4 bits."""

from __future__ import annotations

import itertools
from typing import Any, Final

import torch
from torch import nn

from xlaunch.text import counted
from xruntime.errors import OperatorError, OptimizationError
from xruntime.generation.large_pages import drop_file_pages
from xruntime.generation.linear_layers import linear_kinds, matrix
from xruntime.generation.linear_rows import MIN_WEIGHTS
from xruntime.generation.mapped_files import MappedFiles
from xruntime.generation.packed_linear import PackedLinear
from xruntime.kept.kept_weights import KeptWeights
from xruntime.optimization.module_order import has_hooks
from xruntime.optimization.run import PassRun
from xruntime.optimization.steps import SkipPassError

_QUANTIZED: Final = ("quantization_config", "is_quantized", "hf_quantizer", "quantization_method")
"""What transformers sets, on the configuration or the model, for a checkpoint that is quantized."""


def pack_weights(run: PassRun) -> str:
    """Store the weights of linears in `weight_bits`, and those of the output layer in `head_bits`.

    Raises OptimizationError if there is none, or if weights are not finite.
    """
    bits, head_bits = run.request.weight_bits, run.request.head_bits
    if bits is None:
        raise SkipPassError("weight_bits was not given")
    if (kind := _quantization(run.model)) is not None:
        raise SkipPassError(f"the model is quantized already ({kind}), and stays as it is")
    head = _output_layer(run.model)
    names = {module: name for name, module in run.model.named_modules()}
    chosen: list[tuple[Any, int]] = []
    for module in run.inner_modules():
        wanted = head_bits if module is head else bits
        if wanted is not None and _can_be_packed(module):
            chosen.append((module, wanted))
    if not chosen:
        raise OptimizationError(
            f"weight_bits={bits}: {run.runner.kind.__name__} has no nn.Linear of at least {MIN_WEIGHTS} weights"
            " besides its output layer: leave it out"
        )
    files = MappedFiles()
    layers = [(matrix(linear), number) for linear, number in chosen]
    store = KeptWeights(run.model, layers, files)
    found = store.load() or itertools.repeat(None)
    made = []
    for (linear, number), packed in zip(chosen, found, strict=False):
        lowered = run.request.dtype is torch.bfloat16
        dtype = torch.bfloat16 if lowered else linear.weight.dtype
        try:
            made.append(PackedLinear(linear, number, dtype, packed))
        except OperatorError as error:
            raise OptimizationError(f"weight_bits={bits}: {names[linear]}: {error}") from error
    run.edits.replace_modules({linear: new for (linear, _), new in zip(chosen, made, strict=True)})
    if packed is None:
        store.save([linear.packed for linear in made])
    if run.request.inplace:  # embeddings may keep the file mapped
        drop_file_pages((weight for weight, _ in layers), files)
    before = sum(linear.weight.nbytes for linear, _ in chosen)
    after = sum(linear.packed.nbytes for linear in made)
    kept = "embeddings and the output layer keep their precision"
    if head_bits is not None:
        kept = f"the output layer has {head_bits} bits, and embeddings keep their precision"
    return (
        f"packed {counted(len(chosen), 'linear')} in {bits} bits, {before / 1e6:.3g} MB of weights into"
        f" {after / 1e6:.3g}; {kept}{store.note and f'; {store.note}'}"
    )


def _can_be_packed(module: Any) -> bool:
    return (
        type(module) in linear_kinds()
        and type(module.weight) is nn.Parameter
        and module.weight.is_cpu
        and module.weight.numel() >= MIN_WEIGHTS
        and not has_hooks(module)
    )


def _output_layer(model: Any) -> nn.Module | None:
    """The layer that computes logits; None if the model does not say which."""
    find = getattr(model, "get_output_embeddings", None)
    head = None if find is None else find()
    return head if isinstance(head, nn.Module) else None


def _quantization(model: Any) -> str | None:
    """How the weights of a model are quantized, as far as transformers or their classes tell; None if they are not."""
    for place in (model, getattr(model, "config", None)):
        for name in _QUANTIZED:
            if value := getattr(place, name, None):
                return str(getattr(value, "quant_method", value))
    for parameter in model.parameters():
        if type(parameter.data) is not torch.Tensor:
            return type(parameter.data).__name__
    return None
