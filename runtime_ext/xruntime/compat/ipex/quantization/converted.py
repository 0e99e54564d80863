# SPDX-License-Identifier: Apache-2.0
"""`convert`: an INT8 module, which torch.jit.trace can trace, and which can be pickled and copied."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from xruntime import quantization
from xruntime.compat.ipex.int8_operator import is_traced, pack, unpack, untraced
from xruntime.compat.ipex.quantization.prepared import Prepared
from xruntime.compat.ipex.replacements import report
from xruntime.compilation.samples import Sample
from xruntime.errors import QuantizationError
from xruntime.quantization.quantized_module import QuantizedModule


class Converted(QuantizedModule):
    """An `xruntime.quantization.QuantizedModule` that can also be traced, pickled and copied.

    In a trace it is the operator `xruntime::int8_module`, so `xruntime.compat.ipex` has to be imported
    where a saved trace is loaded, as the extension had to be.
    """

    _archive: torch.Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, computed in INT8."""
        if not is_traced():
            return super().forward(*args, **kwargs)
        with untraced():
            # The structure is a part of the trace, like all values that are not tensors.
            leaves, structure = pytree.tree_flatten(super().forward(*args, **kwargs))
        inputs = [one for one in pytree.tree_leaves((args, kwargs)) if _is_tensor(one)]
        traced = iter(torch.ops.xruntime.int8_module(self._packed(), inputs))
        leaves = [next(traced) if _is_tensor(one) else one for one in leaves]
        return pytree.tree_unflatten(leaves, structure)

    def __reduce__(self) -> Any:
        return _unpacked, (self._packed(),)

    def _packed(self) -> torch.Tensor:
        if self._archive is None:
            with untraced():
                self._archive = pack(self)
        return self._archive


class ConvertedLater(nn.Module):
    """An INT8 module that is made when it is first called, for a model prepared without an example."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__()
        # Neither is a part of this module, as torch.jit.trace sees it.
        self._prepared, self._made = [prepared], list[Converted]()
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, computed in INT8. Raises QuantizationError."""
        with _lock:
            if not self._made:
                with untraced():
                    prepared = self._prepared[0].again(example=Sample(args, kwargs))
                    self._made.append(_traceable(quantization.convert(prepared.observed)))
        return self._made[0](*args, **kwargs)


_lock = threading.RLock()


def convert(model: Prepared, inplace: bool = False) -> nn.Module:
    """Return the INT8 module that the recipe of a prepared model describes.

    Without example inputs, its first call is the example. `inplace` is accepted: the prepared model is
    never changed. Raises QuantizationError, for example without a single batch of calibration, and
    RecipeError; the prepared model is as before then.
    """
    if not isinstance(model, Prepared):
        raise QuantizationError(
            f"convert takes what ipex.quantization.prepare returned, and this is a {type(model).__name__}"
        )
    if inplace:
        report(
            "convert(inplace=True): the prepared model is never changed; use what convert returns",
        )
    if model.waits:
        return ConvertedLater(model)
    return _traceable(quantization.convert(model.observed))


def _traceable(module: QuantizedModule) -> Converted:
    return Converted(module.exported, module.conf, module.name)


def _unpacked(archive: torch.Tensor) -> Converted:
    return _traceable(unpack(archive))


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
