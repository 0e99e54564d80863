# SPDX-License-Identifier: Apache-2.0
"""The comparison of the streams' joined output with the eager module's output for the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from xruntime.compilation.gil import CallableKind, kind_of
from xruntime.compilation.judge import difference, tolerance_for
from xruntime.errors import BatchError, CompilationError
from xruntime.pytrees import tensor_leaves, with_tensors
from xruntime.streams.compiled_module import CompiledForStreams
from xruntime.streams.splitting import Call
from xruntime.threads.torch_modes import current_autocast

Original: TypeAlias = Callable[..., Any]

_NORMS: Final = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def training_dependent(model: object) -> list[tuple[str, nn.Module]]:
    """Return the names of the layers of `model` that, in training mode, give a part of a batch
    other outputs than the whole batch.

    Batch norms compute statistics of their part only, and dropouts draw random numbers in each stream.
    """
    if not isinstance(model, nn.Module) or isinstance(model, CompiledForStreams):
        return []
    return [(name, layer) for name, layer in model.named_modules() if _depends(layer)]


def _depends(layer: nn.Module) -> bool:
    if isinstance(layer, _NORMS):
        return bool(layer.track_running_stats) or "Batch" in type(layer).__name__
    # A number in attention and recurrent layers; in other modules a layer of its own.
    chance = getattr(layer, "p" if "Dropout" in type(layer).__name__ else "dropout", None)
    return isinstance(layer, nn.RReLU) or (isinstance(chance, float) and chance > 0)


def training_error(name: str, layer: nn.Module) -> BatchError:
    """The error for a layer in training mode."""
    return BatchError(
        f"{type(layer).__name__} {name!r} is in training mode: in a stream it sees a part of the batch,"
        " so results and running statistics would not be those of the whole. Call .eval() on the module,"
        " or train it without streams"
    )


def eager_original(model: Any) -> Original | None:
    """Return the eager form of `model`, to be called with a whole batch; None if there is none."""
    if isinstance(model, CompiledForStreams):
        return model.eager
    kind = kind_of(model)
    if kind in (CallableKind.COMPILED, CallableKind.COMPILED_CPP):
        original: Original | None = getattr(model, "_orig_mod", None)
        return original
    return None if kind in (CallableKind.PACKAGE, CallableKind.PACKAGE_UNDER_GIL) else model


def copied(call: Call) -> Call:
    """Copy the tensors of a call, because a module may change them in place."""
    args, kwargs = with_tensors(lambda tensor: tensor.detach().clone(), tuple(call))
    return args, kwargs


def compare(model: object, original: Original, call: Call, joined: Any) -> None:
    """Raise BatchError if `original` returns something else than `joined` for the whole call."""
    remedy = (
        "Without a hint, dimension 0 of every tensor is taken for the batch: name it by input_split_hint"
        " and output_concat_hint. If outputs are random, check=False skips the comparison"
    )
    try:
        with torch.no_grad():
            expected = original(*call[0], **call[1])
        different = difference(expected, joined, tolerance_of(model, joined))
    except CompilationError as error:
        raise BatchError(
            f"the streams' joined output is not the whole batch's: {error}. {remedy}"
        ) from error
    except Exception as error:
        raise BatchError(
            f"the first batch cannot be compared, because the eager module's call with all of it failed"
            f" ({type(error).__name__}: {error}). check=False skips the comparison"
        ) from error
    if not different.allowed:
        raise BatchError(
            f"the streams' joined output is not the eager module's for the whole batch: {different}."
            f" {remedy}"
        )


def tolerance_of(model: object, output: Any) -> float:
    """Return how far outputs of `model` may be from those of the same items in another batch."""
    if isinstance(model, CompiledForStreams):
        return model.tolerance
    values = [tensor for _, tensor in tensor_leaves(output)]
    if isinstance(model, nn.Module):
        values += [*model.parameters(), *model.buffers()]
    return tolerance_for(values, current_autocast())
