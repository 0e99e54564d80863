# SPDX-License-Identifier: Apache-2.0
"""`autotune`: turns operators back to float until a model is accurate enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from xruntime import quantization
from xruntime.compat.ipex.quantization.prepared import Prepared
from xruntime.compat.ipex.reports import report
from xruntime.errors import QuantizationError

CRITERIA: Final = ("relative", "absolute")


class _Recorder(nn.Module):
    """Calls a model and keeps the arguments."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.calls: list[object] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if args and kwargs:
            raise QuantizationError(
                "calib_func mixes positional and keyword arguments: autotune takes calls with one kind"
            )
        self.calls.append(args or kwargs)
        return self.model(*args, **kwargs)


def autotune(
    model: Prepared,
    calib_dataloader: Iterable[object] | None = None,
    calib_func: Callable[[nn.Module], object] | None = None,
    eval_func: Callable[[nn.Module], float] | None = None,
    op_type_dict: Mapping[str, object] | None = None,
    sampling_sizes: Sequence[int] | None = None,
    accuracy_criterion: Mapping[str, float] | None = None,
    tuning_time: int = 0,
) -> Prepared:
    """Return a prepared model whose recipe keeps the accuracy; `convert` needs no calibration then.

    model
        What `prepare` returned.
    calib_dataloader
        Batches to calibrate with: a tensor, a dict of keyword arguments, or a pair of inputs and label.
    calib_func
        Instead of it: calls the module that it is given with the batches.
    eval_func
        Returns the accuracy of the module that it is given, where larger is better.
    sampling_sizes
        The number of items to calibrate with; of several, the largest. None: 100.
    accuracy_criterion
        ``{"relative": 0.01}``, the default, or ``{"absolute": 0.01}``: the largest allowed drop.
    op_type_dict, tuning_time
        Accepted: the recipe says what stays float, and the search ends with the first result that is
        accurate enough.

    Raises QuantizationError, also if no recipe is accurate enough.
    """
    prepared = _checked(model)
    if eval_func is None:
        raise QuantizationError(
            "eval_func is None: autotune needs a function that returns the accuracy"
        )
    criterion, drop = _criterion(accuracy_criterion)
    if op_type_dict is not None:
        report(
            "autotune(op_type_dict=...) is ignored: load a recipe in which operators are float before",
        )
    if tuning_time:
        report(
            "autotune(tuning_time=...) is ignored: the search ends with the first accurate result",
        )
    batches = _batches(prepared, calib_dataloader, calib_func, max(sampling_sizes or (100,)))
    tuned = quantization.autotune(
        prepared.model,
        batches,
        eval_func,
        drop,
        conf=prepared.observed.conf,
        relative=criterion == "relative",
    )
    return Prepared(prepared.model, tuned.conf, prepared.example)


def _checked(model: object) -> Prepared:
    if not isinstance(model, Prepared):
        raise QuantizationError(
            f"autotune takes what ipex.quantization.prepare returned, and this is a"
            f" {type(model).__name__}"
        )
    return model


def _criterion(given: Mapping[str, float] | None) -> tuple[str, float]:
    entries = list((given or {"relative": 0.01}).items())
    if len(entries) != 1 or entries[0][0] not in CRITERIA:
        raise QuantizationError(
            f"accuracy_criterion is {given!r}: expected is {{'relative': 0.01}} or {{'absolute': 0.01}}"
        )
    return entries[0]


def _batches(
    prepared: Prepared,
    loader: Iterable[object] | None,
    function: Callable[[nn.Module], object] | None,
    items: int,
) -> list[object]:
    batches: Iterable[object]
    if loader is not None:
        batches = map(_inputs, loader)
    elif function is not None:
        recorder = _Recorder(prepared.model)
        with torch.no_grad():
            function(recorder)
        batches = recorder.calls
    else:
        raise QuantizationError("autotune needs calib_dataloader or calib_func")
    kept: list[object] = []
    for batch in batches:
        kept.append(batch)
        items -= _size(batch)
        if items <= 0:
            break
    return kept


def _inputs(batch: object) -> object:
    """The inputs of one call, in a batch of a loader, which may be a pair of inputs and label."""
    if isinstance(batch, list | tuple) and len(batch) == 2:
        batch = batch[0]
    return tuple(batch) if isinstance(batch, list) else batch


def _size(batch: object) -> int:
    """The number of items in a batch: the first size of its first tensor."""
    tensors = [one for one in pytree.tree_leaves(batch) if isinstance(one, torch.Tensor)]
    return tensors[0].shape[0] if tensors and tensors[0].dim() else 1
