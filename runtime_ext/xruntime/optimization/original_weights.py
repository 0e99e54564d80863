# SPDX-License-Identifier: Apache-2.0
"""The input's state_dict, which an optimized module still returns.

Weights that the passes left alone are the module's own. Of those that they changed, the input's tensors
are kept, and not copied: they cost memory only if nothing else refers to them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import nn

from xruntime.compilation.inductor import first_line
from xruntime.errors import OptimizationError


class _OriginalWeight(NamedTuple):
    value: Any
    version: int | None


class OriginalWeights:
    """Entries of the state_dict of `source`, of which `subject` is a copy or the same module.

    counterparts
        By id of a tensor of `source`: the tensor of `subject` in its place.
    """

    def __init__(self, source: nn.Module, counterparts: dict[int, Any]) -> None:
        try:
            self._before: Any = source.state_dict(keep_vars=True)
        except Exception as error:
            raise OptimizationError(
                f"{type(source).__name__}.state_dict() fails ({first_line(error)}), and the optimized module"
                " could not return the weights: repair it first"
            ) from error
        self._counterparts = {
            name: counterparts.get(id(value), value) for name, value in self._before.items()
        }
        self._metadata = getattr(self._before, "_metadata", {})
        self._memory = {
            _address(parameter)
            for parameter in source.parameters()
            if type(parameter) is nn.Parameter
        }
        self._kept: dict[str, _OriginalWeight] = {}
        self._names = list(self._before)
        self._dropped = False

    def settle(self, subject: nn.Module, same_values: dict[int, int], *, keep: bool) -> None:
        """After the passes: keep the tensors that are not in `subject` any more, or drop them."""
        present = subject.state_dict(keep_vars=True)
        for name, value in self._before.items():
            counterpart, now = self._counterparts[name], present.get(name)
            if isinstance(now, torch.Tensor) and (
                now is counterpart or same_values.get(id(now)) == id(counterpart)
            ):
                continue
            if not isinstance(value, torch.Tensor):
                self._kept[name] = _OriginalWeight(value, None)
                continue
            self._dropped = not keep
            if value.is_inference():
                self._kept[name] = _OriginalWeight(value.clone(), None)
            else:
                self._kept[name] = _OriginalWeight(value, value._version)  # noqa: SLF001 - no public one
        self._before = self._counterparts = {}
        if self._dropped:
            self._kept.clear()

    def separate(self, subject: nn.Module) -> None:
        """Copy the parameters of `subject` that share the source's memory."""
        for parameter in subject.parameters():
            if type(parameter) is nn.Parameter and _address(parameter) in self._memory:
                parameter.data = parameter.data.clone()

    def kept_bytes(self, subject: nn.Module) -> int:
        """Return the memory of tensors that only this keeps for `subject`."""
        used = {_start(tensor) for tensor in (*subject.parameters(), *subject.buffers())}
        storages = {
            _start(kept.value): kept.value.nbytes
            for kept in self._kept.values()
            if isinstance(kept.value, torch.Tensor) and _start(kept.value) not in used
        }
        return sum(storages.values())

    def state_dict(
        self, subject: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> Any:
        """Write the entries and torch's version numbers into `destination`, as state_dict does.

        `subject` is the subject's own state_dict with `keep_vars`. Raises OptimizationError if the weights were
        dropped, or were changed in the input since.
        """
        if self._dropped:
            raise OptimizationError(
                "the plain weights were dropped (keep_weights=False, or weight_bits with inplace=True): call"
                " state_dict() before optimize(), or optimize without these"
            )
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()  # noqa: SLF001 - as nn.Module does
        for name in self._names:
            kept = self._kept.get(name)
            value = subject[name] if kept is None else kept.value
            if kept is not None and kept.version is not None and value._version != kept.version:  # noqa: SLF001
                raise OptimizationError(
                    f"{name} of the original model was changed after optimize(), and this module"
                    " computes with the values from before: call state_dict() of the original model"
                )
            plain = value.detach() if isinstance(value, torch.Tensor) and not keep_vars else value
            destination[prefix + name] = plain
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            for name, value in self._metadata.items():
                metadata[prefix + name if name else prefix[:-1]] = value
        return destination


def _start(tensor: torch.Tensor) -> int:
    """Where its values begin; sparse tensors have no such place, and those of other classes no storage."""
    return tensor.data_ptr() if tensor.layout is torch.strided else -1


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else -1
