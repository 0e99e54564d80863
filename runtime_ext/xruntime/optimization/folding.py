# SPDX-License-Identifier: Apache-2.0
"""Batch norms folded into the convolutions and linears before them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from xruntime.optimization.edits import NeedlessLayer
from xruntime.optimization.module_order import (
    CONVOLUTIONS,
    NORMS,
    CallRecording,
    TracedOrder,
    has_hooks,
    shared_parameters,
)
from xruntime.optimization.run import PassRun
from xruntime.optimization.skipped_norms import AwaitNorm, FoldedNorm, NormFolding
from xruntime.optimization.steps import SkipPassError

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def remove_dropouts(run: PassRun) -> str:
    """Let dropouts return their input."""
    dropouts = [m for m in run.inner_modules() if type(m) in DROPOUTS]
    if not dropouts:
        raise SkipPassError("there is none")
    replaced = [m for m in dropouts if not has_hooks(m)]
    for module in replaced:
        run.edits.replace_class(module, NeedlessLayer)
    hooked = len(dropouts) - len(replaced)
    if not replaced:
        raise SkipPassError("all have forward hooks")
    return f"removed {len(replaced)}" + (f"; {hooked} with hooks are kept" if hooked else "")


def fold_norms(run: PassRun, kinds: tuple[type[nn.Module], ...], what: str) -> str:
    """Fold batch norms into the modules of these classes before them."""
    norms = [m for m in run.model.modules() if type(m) in NORMS]
    firsts = [m for m in run.model.modules() if type(m) in kinds]
    if not norms or not firsts:
        raise SkipPassError("there is no batch norm" if not norms else f"there is no {what}")
    order, how = _order(run)
    pairs = [(m, order.follows[m]) for m in firsts if m in order.follows]
    if not pairs:
        raise SkipPassError(f"no {what}'s output goes to a batch norm alone ({how})")
    names = {module: name for name, module in run.model.named_modules()}
    shared = shared_parameters(run.model)
    refused = []
    folded = 0
    for first, norm in pairs:
        reason = _obstacle(run, order, first, norm, shared)
        if reason is None:
            _fold_pair(run, first, norm)
            watched = isinstance(order, CallRecording)
            if watched:
                hook = first.register_forward_hook(AwaitNorm(names[norm]))
                run.edits.add_undo(hook.remove)
                run.runner.norms_may_be_skipped = True
            dimensions = 2 if type(first) is nn.Linear else None
            run.edits.replace_class(norm, FoldedNorm)
            run.edits.set_attribute(
                norm,
                "_xruntime_folded",
                NormFolding(names[norm], names[first], watched, dimensions, vars(norm)["eps"]),
            )
            folded += 1
        else:
            refused.append(f"{names[first]} and {names[norm]} not: {reason}")
    if not folded:
        raise SkipPassError("; ".join(refused))
    return "; ".join([f"folded {folded} ({how})", *refused])


def _order(run: PassRun) -> tuple[TracedOrder | CallRecording, str]:
    traced, problem = run.traced
    if traced is not None:
        return traced, "order found by torch.fx"
    if run.recording is None:
        raise SkipPassError(f"torch.fx cannot trace it ({problem}), and there is no sample_input")
    return run.recording, "order found by watching the sample's call"


def _obstacle(
    run: PassRun, order: TracedOrder | CallRecording, first: Any, norm: Any, shared: set[int]
) -> str | None:
    """Why these two cannot be folded; None if they can."""
    if has_hooks(first) or has_hooks(norm):
        return "one has hooks"
    if {id(p) for m in (first, norm) for p in m.parameters()} & shared:
        return "a weight is tied to another module's"
    if first in order.read_elsewhere or norm in order.read_elsewhere:
        return "the weights are also read elsewhere"
    if norm.running_mean is None or norm.running_var is None:
        return "the batch norm has no running statistics"
    if run.count(first) > 1 or run.count(norm) > 1:
        return "one is part of several modules"
    if type(first) in CONVOLUTIONS:
        channels = first.out_channels
        if first.transposed and first.groups > 1:
            return "it is transposed and has groups"
    else:
        channels = first.out_features
        if run.recording is None:
            return "without sample_input the number of dimensions is unknown"
        if run.recording.dimensions.get(first) != 2:
            return "the linear's output has not two dimensions"
    if channels != norm.num_features:
        return f"{channels} outputs and {norm.num_features} features"
    return None


def _fold_pair(run: PassRun, first: Any, norm: Any) -> None:
    """Fold in fp64, so that weights are rounded once."""

    def wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.detach().double()

    values: Any = [
        *(wide(first.weight), wide(first.bias)),
        *(wide(norm.running_mean), wide(norm.running_var), norm.eps),
        *(wide(norm.weight), wide(norm.bias)),
    ]
    if type(first) in CONVOLUTIONS:
        fused: Any = fuse_conv_bn_weights(*values, *[first.transposed])
    else:
        fused = fuse_linear_bn_weights(*values)
    dtype = first.weight.dtype
    for name, value in zip(("weight", "bias"), fused, strict=True):
        parameter = nn.Parameter(value.detach().to(dtype), requires_grad=False)
        run.edits.set_parameter(first, name, parameter)
