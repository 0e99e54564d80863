# SPDX-License-Identifier: Apache-2.0
"""`ipex.optimize`: xruntime.optimize with the arguments of the extension; and its compiler's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from xruntime.compat.ipex import switches
from xruntime.compat.ipex.replacements import report
from xruntime.optimization import INFERENCE, TRAINING
from xruntime.optimization.arguments import OptimizeRequest
from xruntime.optimization.front_end import optimize_by

PASSES: Final = {
    "conv_bn_folding": "conv_bn",
    "linear_bn_folding": "linear_bn",
    "replace_dropout_with_identity": "dropout",
    "concat_linear": "join_linears",
    "split_master_weight_for_bf16": "split_bf16",
    "fuse_update_step": "fused_optimizer",
}
"""The pass of xruntime.optimize for each switch."""

WITHOUT_EFFECT: Final = {
    "weights_prepack": "torch's compiler packs weights, with graph_mode=True or torch.compile",
    "auto_kernel_selection": "torch chooses among oneDNN's kernels and MKL's by itself",
    "optimize_lstm": "torch calls oneDNN's LSTM by itself",
}
"""Switches that are accepted, and what happens instead."""


def optimize(
    model: nn.Module,
    dtype: torch.dtype | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    level: str = "O1",
    inplace: bool = False,
    conv_bn_folding: bool | None = None,
    linear_bn_folding: bool | None = None,
    weights_prepack: bool | None = None,
    replace_dropout_with_identity: bool | None = None,
    optimize_lstm: bool | None = None,
    split_master_weight_for_bf16: bool | None = None,
    fuse_update_step: bool | None = None,
    auto_kernel_selection: bool | None = None,
    sample_input: Any = None,
    graph_mode: bool | None = None,
    concat_linear: bool | None = None,
) -> Any:
    """Return a faster form of `model`, or of (model, optimizer) for training.

    model
        An eager module on the CPU: in eval mode without an optimizer. A TorchScript module is returned as
        it is.
    dtype, optimizer, level, inplace
        As for xruntime.optimize. With level="O0", float32 is accepted: it changes nothing.
    sample_input
        A tensor, or a tuple of arguments. With it, each change is checked on the sample and undone if the
        outputs differ.
    graph_mode
        True compiles the model, which needs sample_input. Otherwise the modules are called one by one, so
        the result can be traced by torch.jit.trace and compiled by torch.compile.
    conv_bn_folding, linear_bn_folding, replace_dropout_with_identity, concat_linear
        For inference: switch the passes conv_bn, linear_bn, dropout and join_linears.
    split_master_weight_for_bf16, fuse_update_step
        For training: switch the passes split_bf16 and fused_optimizer.
    weights_prepack, auto_kernel_selection, optimize_lstm
        Accepted, and reported once if given: torch does these by itself.

    Under autocast to `dtype`, outputs are in `dtype` where the model's own would be; without it, they have the
    dtype of the model's own. Raises OptimizationError, SampleError, CompilationError; model and optimizer are as
    before then.
    """
    arguments = dict(locals())
    if isinstance(model, torch.jit.ScriptModule):
        report("optimize() returns a TorchScript module as it is: give it the eager module")
        return model if optimizer is None else (model, optimizer)
    for name, instead in WITHOUT_EFFECT.items():
        if arguments[name] is not None:
            report(f"optimize({name}={arguments[name]!r}) has no effect: {instead}")
    training = optimizer is not None
    pass_names = TRAINING if training else INFERENCE
    passes = {}
    for name, own in PASSES.items():
        if arguments[name] is not None and own in pass_names:
            passes[own] = bool(arguments[name])
        elif arguments[name]:
            other = "inference" if training else "training"
            report(f"optimize({name}={arguments[name]!r}) has no effect here: it is for {other}")
    if switches.channels_last is not None:
        passes["channels_last"] = switches.channels_last
    graph = "none"
    if graph_mode and optimizer is None:
        if sample_input is None:
            report(
                "optimize(graph_mode=True) compiles only with sample_input=: give the arguments of one"
                " call, or use torch.compile on the result"
            )
        else:
            graph = "auto"
    request = OptimizeRequest(
        model,
        sample_input,
        training=training,
        dtype=None if level == "O0" and dtype is torch.float32 else dtype,
        level=level,
        inplace=inplace,
        graph=graph,
        passes=passes,
        autocast_outputs=True,
    )
    return optimize_by(request, optimizer)


def compile_backend(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile by Inductor for ``torch.compile(model, backend="ipex")``; say once that `backend` can be left out."""
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    report(
        'torch.compile(backend="ipex") compiles by Inductor, torch\'s default: leave the backend out'
    )
    patches = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    return compile_fx(graph, inputs, config_patches=patches)
