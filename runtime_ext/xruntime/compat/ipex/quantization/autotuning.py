# SPDX-License-Identifier: Apache-2.0
"""`autotune`: turns operators back to float until a model is accurate enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from xruntime import quantization
from xruntime.compat.ipex.quantization.conversion import Prepared, eval_form
from xruntime.compat.ipex.replacements import report
from xruntime.compilation.samples import sample_call
from xruntime.errors import QuantizationError
from xruntime.quantization import QuantConf

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
    model: nn.Module | None = None,
    calib_dataloader: Iterable[object] | None = None,
    calib_func: Callable[..., Any] | None = None,
    eval_func: Any = None,
    op_type_dict: Any = None,
    smoothquant_args: Any = None,
    sampling_sizes: Sequence[int] | None = None,
    accuracy_criterion: Mapping[str, float] | None = None,
    tuning_time: int = 0,
    *,
    prepared_model: Prepared | None = None,
) -> Prepared:
    """Return a prepared model whose recipe keeps the accuracy; `convert` needs no calibration then.

    model
        A float model, which the first batch is the example of, or what `prepare` returned.
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
    op_type_dict, smoothquant_args, tuning_time
        Accepted and reported: the recipe says what stays float, and the search ends with the first result
        that is accurate enough.

    Up to release 2.0 the arguments were ``(prepared_model, calib_dataloader, eval_func, sampling_sizes,
    accuracy_criterion, tuning_time)``; such calls are understood too.
    Raises QuantizationError, also if no recipe is accurate enough.
    """
    if calib_dataloader is not None and calib_func is not None and not callable(eval_func):
        # The older order: each argument takes the place of one that is not given.
        sampling_sizes = sampling_sizes or eval_func
        accuracy_criterion = accuracy_criterion or op_type_dict
        tuning_time = tuning_time or smoothquant_args or 0
        calib_func, eval_func, op_type_dict, smoothquant_args = None, calib_func, None, None
    subject = prepared_model or model
    if not isinstance(subject, nn.Module):
        raise QuantizationError(
            "autotune takes a float model or what ipex.quantization.prepare returned, and this is a"
            f" {type(subject).__name__}"
        )
    if eval_func is None:
        raise QuantizationError(
            "eval_func is None: autotune needs a function that returns the accuracy"
        )
    criterion, drop = _criterion(accuracy_criterion)
    ignored = {
        "op_type_dict": (op_type_dict, "load a recipe in which operators are float before"),
        "smoothquant_args": (smoothquant_args, "torchao.prototype.smoothquant does it before"),
        "tuning_time": (tuning_time, "the search ends with the first accurate result"),
    }
    for name, (value, instead) in ignored.items():
        if value:
            report(f"autotune({name}=...) is ignored: {instead}")
    float_model = subject.model if isinstance(subject, Prepared) else eval_form(subject)
    batches = _batches(float_model, calib_dataloader, calib_func, max(sampling_sizes or (100,)))
    if not batches:
        raise QuantizationError("autotune got not a single batch: give some typical data")
    if not isinstance(subject, Prepared) or subject.waits:
        recipe = subject.recipe if isinstance(subject, Prepared) else QuantConf()
        subject = Prepared(float_model, recipe, sample_call(batches[0]), None)
    tuned = quantization.autotune(
        subject.model,
        batches,
        eval_func,
        drop,
        conf=subject.observed.conf,
        relative=criterion == "relative",
    )
    return subject.again(recipe=tuned.conf)


def _criterion(given: Mapping[str, float] | None) -> tuple[str, float]:
    entries = list((given or {"relative": 0.01}).items())
    if len(entries) != 1 or entries[0][0] not in CRITERIA:
        raise QuantizationError(
            f"accuracy_criterion is {given!r}: expected is {{'relative': 0.01}} or {{'absolute': 0.01}}"
        )
    return entries[0]


def _batches(
    model: nn.Module,
    loader: Iterable[object] | None,
    function: Callable[[nn.Module], object] | None,
    items: int,
) -> list[object]:
    batches: Iterable[object]
    if loader is not None:
        batches = map(inputs_of, loader)
    elif function is not None:
        recorder = _Recorder(model)
        with torch.no_grad():
            function(recorder)
        batches = recorder.calls
    else:
        raise QuantizationError("autotune needs calib_dataloader or calib_func")
    kept: list[object] = []
    for batch in batches:
        kept.append(batch)
        items -= item_count(batch)
        if items <= 0:
            break
    return kept


def inputs_of(batch: object) -> object:
    """Return the inputs of one call, in a batch of a loader, which may be a pair of inputs and label."""
    if isinstance(batch, list | tuple) and len(batch) == 2:
        batch = batch[0]
    return tuple(batch) if isinstance(batch, list) else batch


def item_count(batch: object) -> int:
    """Return the number of items in a batch: the first size of its first tensor."""
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return tensors[0].shape[0] if tensors and tensors[0].dim() else 1
