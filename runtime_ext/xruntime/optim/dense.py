# SPDX-License-Identifier: Apache-2.0
"""Parameters with dense gradients: checked once, then updated by one native call a step.

The arrays of addresses are kept. A step compares addresses, layouts and dtypes of parameters and states with
the last step's; new gradient tensors of the same kind only change one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from xruntime import native
from xruntime.errors import OptimizerError
from xruntime.optim.layout import (
    Written,
    empty_like,
    is_dense,
    overlaps_itself,
    same_layout,
    with_layout_of,
)
from xruntime.optim.step_call import TYPES, Arrays, Formats, StepCall, Update

State = dict[str, Any]


class StateNames(NamedTuple):
    """The names of an optimizer's state, as torch.optim has them."""

    first: str | None
    second: str | None
    steps: bool
    fresh: bool
    """Whether the first state is set, not updated, by a parameter's first step."""
    initial: float = 0.0
    """Of the first state."""

    @property
    def moments(self) -> tuple[str, ...]:
        return tuple(name for name in (self.first, self.second) if name is not None)


class Entry(NamedTuple):
    """One parameter in the arrays."""

    parameter: torch.Tensor
    state: State
    new_state: State
    """What the call adds to `state` or replaces in it."""
    block: torch.Tensor
    """What the kernel updates: the parameter, or a dense copy of it."""
    copies_gradient: bool
    """Whether the kernel reads a copy of the gradient, in the block's layout."""
    fresh: bool


def check_gradient(parameter: torch.Tensor, gradient: torch.Tensor, optimizer: str) -> None:
    """Raise OptimizerError for a gradient that the kernels cannot read."""
    if gradient.device.type != "cpu" or parameter.device.type != "cpu":
        raise OptimizerError(
            f"{optimizer}: a parameter is on {parameter.device} and its gradient on {gradient.device};"
            " xruntime.optim updates parameters on the CPU"
        )
    for what, dtype in (
        ("parameter became", parameter.dtype),
        ("gradient has dtype", gradient.dtype),
    ):
        if dtype not in TYPES:
            raise OptimizerError(
                f"{optimizer}: a {what} {dtype}; allowed are torch.bfloat16 and torch.float32"
            )
    if gradient.shape != parameter.shape:
        raise OptimizerError(
            f"{optimizer}: a gradient has shape {tuple(gradient.shape)} and its parameter"
            f" {tuple(parameter.shape)}"
        )


def new_state(
    state: State, names: StateNames, formats: Formats, block: torch.Tensor
) -> tuple[State, bool]:
    """Return the tensors that a step on `block` needs, and whether the first was missing in `state`.

    Those in `state` are taken where they have the block's layout; others are copied or made.
    """
    made: State = {}
    for name in names.moments:
        found = state.get(name)
        if found is None:
            value = names.initial if name == names.first else 0.0
            made[name] = empty_like(block, formats.state_dtype).fill_(value)
        else:
            made[name] = with_layout_of(found, block, formats.state_dtype)
    if names.steps:
        made["step"] = as_count(state.get("step", 0))
    if formats.weight_format == native.WEIGHTS_SPLIT:
        found = state.get("remainder")
        made["remainder"] = (
            empty_like(block, torch.int16).zero_()
            if found is None
            else with_layout_of(found, block, torch.int16)
        )
    return made, any(state.get(name) is None for name in names.moments)


def written_tensors(block: torch.Tensor, state: State) -> list[torch.Tensor]:
    """Return what a step on `block` writes, beside step counts."""
    return [block, *(value for name, value in state.items() if name != "step")]


def _as_block(parameter: torch.Tensor, optimizer: str) -> torch.Tensor:
    weights = parameter.detach()
    if is_dense(weights):
        return weights
    if overlaps_itself(weights):
        raise OptimizerError(
            f"{optimizer}: elements of a parameter of shape {tuple(parameter.shape)} share memory"
            f" (strides {parameter.stride()}); make it contiguous"
        )
    return weights.clone(memory_format=torch.contiguous_format)


def _place(tensor: Any) -> tuple[object, ...] | None:
    """Where a tensor lies in memory and how; None for what is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        return None
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _key(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, names: StateNames
) -> tuple[object, ...]:
    """What must not change while the arrays are used, except for the gradient's address."""
    return (
        id(parameter),
        _place(parameter),
        gradient.dtype,
        gradient.shape,
        gradient.stride(),
        gradient.is_neg(),
        *[_place(state.get(name)) for name in (*names.moments, "step", "remainder")],
    )


class DenseStep:
    """The parameters of one group that are stored alike."""

    def __init__(
        self,
        optimizer: str,
        parameters: Sequence[torch.Tensor],
        states: Sequence[State],
        names: StateNames,
        formats: Formats,
    ) -> None:
        """Check everything and prepare the arrays; no parameter and no state is changed.

        Raises OptimizerError.
        """
        self._optimizer = optimizer
        self._names = names
        self.formats = formats
        self._entries = [
            self._entry(parameter, state)
            for parameter, state in zip(parameters, states, strict=True)
        ]
        self._written = Written(
            [
                tensor
                for entry in self._entries
                for tensor in written_tensors(entry.block, entry.new_state)
            ],
            optimizer,
        )
        self._gradients = [self._gradient(entry) for entry in self._entries]
        self._written.check_gradients(self._gradients)
        self._addresses = [gradient.data_ptr() for gradient in self._gradients]
        self._call = StepCall(self._arrays(), formats)
        self._copied = [
            (entry.parameter, entry.block)
            for entry in self._entries
            if entry.block.data_ptr() != entry.parameter.data_ptr()
        ]
        self._copies_gradients = any(entry.copies_gradient for entry in self._entries)
        self._keys: list[tuple[object, ...]] = []
        """Empty until the first call has succeeded: the states are in place afterwards."""

    def fits(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Return whether the arrays hold for these parameters; takes over new gradients.

        Raises OptimizerError if a new gradient shares memory with what is written.
        """
        if len(parameters) != len(self._keys):
            return False
        for parameter, entry, key in zip(parameters, self._entries, self._keys, strict=True):
            gradient = parameter.grad
            assert gradient is not None
            if _key(parameter, gradient, entry.state, self._names) != key:
                return False
        if self._copies_gradients:
            self._gradients = [self._gradient(entry) for entry in self._entries]
        else:
            self._gradients = [
                parameter.grad for parameter in parameters if parameter.grad is not None
            ]
        addresses = [gradient.data_ptr() for gradient in self._gradients]
        if addresses != self._addresses:
            self._written.check_gradients(self._gradients)
            self._call.arrays.gradients.copy_(torch.tensor(addresses))
            self._addresses = addresses
        return True

    def run(self, update: Update, *, maximize: bool, seed: int) -> None:
        """Update the parameters and their states."""
        for parameter, block in self._copied:
            block.copy_(parameter)
        self._call.run(update, maximize=maximize, seed=seed)
        for parameter, block in self._copied:
            parameter.copy_(block)
        # Autograd finds out that a saved parameter has changed, as after any operation in place.
        torch.autograd.graph.increment_version([entry.parameter for entry in self._entries])
        self._gradients = []
        if self._keys:
            return
        for entry in self._entries:
            entry.state.update(entry.new_state)
        self._keys = [
            _key(entry.parameter, gradient, entry.state, self._names)
            for entry in self._entries
            if (gradient := entry.parameter.grad) is not None
        ]

    def _entry(self, parameter: torch.Tensor, state: State) -> Entry:
        gradient = parameter.grad
        assert gradient is not None
        check_gradient(parameter, gradient, self._optimizer)
        block = _as_block(parameter, self._optimizer)
        new, missing = new_state(state, self._names, self.formats, block)
        dense = is_dense(gradient) and same_layout(gradient, block)
        return Entry(parameter, state, new, block, not dense, missing and self._names.fresh)

    def _gradient(self, entry: Entry) -> torch.Tensor:
        """What the kernel reads; the reference keeps it until the call."""
        gradient = entry.parameter.grad
        assert gradient is not None
        if entry.copies_gradient:
            return empty_like(entry.block, gradient.dtype).copy_(gradient.detach())
        return gradient

    def _arrays(self) -> Arrays:
        entries, names = self._entries, self._names

        def addresses(name: str | None) -> torch.Tensor | None:
            if name is None:
                return None
            return torch.tensor([entry.new_state[name].data_ptr() for entry in entries])

        split = self.formats.weight_format == native.WEIGHTS_SPLIT
        return Arrays(
            sizes=torch.tensor([entry.block.numel() for entry in entries]),
            weights=torch.tensor([entry.block.data_ptr() for entry in entries]),
            gradients=torch.tensor(self._addresses),
            remainders=addresses("remainder") if split else None,
            first=addresses(names.first),
            second=addresses(names.second),
            steps=addresses("step") if names.steps else None,
            fresh=torch.tensor([entry.fresh for entry in entries], dtype=torch.int32)
            if names.fresh
            else None,
        )


def as_count(step: Any) -> torch.Tensor:
    """Return a step count as the kernels have it: a tensor of one fp32 value."""
    if (
        isinstance(step, torch.Tensor)
        and step.dtype == torch.float32
        and step.device.type == "cpu"
        and step.numel() == 1
    ):
        return step
    return torch.tensor(float(step), dtype=torch.float32, device="cpu")
