# SPDX-License-Identifier: Apache-2.0
"""Steps of parameters: those with dense gradients by one native call, those with sparse ones by one each.

What was checked of a parameter with a dense gradient is kept, also while it has no gradient. A step compares addresses and layouts
of parameters, gradients and states with it. The arrays of addresses are made again only if other parameters
have a gradient; new gradient tensors change one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xruntime.errors import OptimizerError
from xruntime.optim.memory_layout import (
    WrittenMemory,
    empty_like,
    is_dense,
    overlaps_itself,
    same_layout,
    with_layout_of,
)
from xruntime.optim.step_call import TYPES, WEIGHTS_SPLIT, Arrays, State, StepCall, StepKind, Update


def checked_gradient(parameter: torch.Tensor, optimizer: str) -> torch.Tensor:
    """Return a parameter's gradient. Raises OptimizerError for one that the kernels cannot read."""
    gradient = parameter.grad
    assert gradient is not None
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
    return gradient


def new_state(state: State, kind: StepKind, block: torch.Tensor) -> tuple[State, bool]:
    """Return the tensors that a step on `block` needs, and whether the first was missing in `state`.

    Tensors in `state` with the block's layout are used as they are; others are copied or created.
    """
    names, formats = kind.names, kind.formats
    needed = [
        (name, formats.state_dtype, names.initial if name == names.first else 0)
        for name in names.moments
    ]
    if formats.weight_format == WEIGHTS_SPLIT:
        needed.append(("remainder", torch.int16, 0))
    complete: State = {}
    for name, dtype, initial in needed:
        present = state.get(name)
        complete[name] = (
            empty_like(block, dtype).fill_(initial)
            if present is None
            else with_layout_of(present, block, dtype)
        )
    if names.steps:
        complete["step"] = as_count(state.get("step", 0))
    return complete, any(state.get(name) is None for name in names.moments)


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


def _layout(parameter: torch.Tensor) -> tuple[object, ...]:
    """What must not change while a prepared entry is used. The gradient's address may change."""
    gradient = parameter.grad
    assert gradient is not None
    return (
        parameter.data_ptr(),
        parameter.shape,
        parameter.stride(),
        gradient.shape,
        gradient.stride(),
        gradient.is_neg(),
    )


class Entry:
    """One parameter in the arrays."""

    def __init__(self, parameter: torch.Tensor, state: State, kind: StepKind) -> None:
        """Check the parameter and make what its state lacks. Raises OptimizerError."""
        gradient = checked_gradient(parameter, kind.optimizer)
        self.parameter, self.state = parameter, state
        self.block = _as_block(parameter, kind.optimizer)
        """What the kernel updates: the parameter, or a dense copy of it."""
        self.new_state, missing = new_state(state, kind, self.block)
        """What the call adds to `state` or replaces in it."""
        self.fresh = missing and kind.names.fresh
        self.is_copy = self.block.data_ptr() != parameter.data_ptr()
        self.copies_gradient = not (is_dense(gradient) and same_layout(gradient, self.block))
        """Whether the kernel reads a copy of the gradient, in the block's layout."""
        self._layout = _layout(parameter)
        self._state = [(name, tensor, tensor.data_ptr()) for name, tensor in self.new_state.items()]

    def holds(self) -> bool:
        """Return whether parameter, gradient and state are where they were in memory."""
        for name, tensor, address in self._state:
            if tensor.data_ptr() != address or self.state.get(name) is not tensor:
                return False
        return self._layout == _layout(self.parameter)

    def gradient(self) -> torch.Tensor:
        """The gradient that the kernel reads. The caller keeps a reference until the call."""
        gradient = self.parameter.grad
        assert gradient is not None
        if self.copies_gradient:
            return empty_like(self.block, gradient.dtype).copy_(gradient.detach())
        return gradient


class DenseStep:
    """The parameters of one group that are stored alike."""

    _call: StepCall
    _states_are_new: bool

    def __init__(self, kind: StepKind) -> None:
        self._kind = kind
        self._known: dict[torch.Tensor, Entry] = {}
        self._entries: list[Entry] = []
        self._written = WrittenMemory([], kind.optimizer)
        self._addresses: list[int] = []
        self._checked: set[tuple[int, int]] = set()
        """Addresses and elements of the last step's gradients."""

    def prepare(self, parameters: Sequence[torch.Tensor], states: Sequence[State]) -> None:
        """Check the parameters and their gradients; no parameter and no state is changed.

        Raises OptimizerError.
        """
        entries = []
        for parameter, state in zip(parameters, states, strict=True):
            entry = self._known.get(parameter)
            if entry is None or not entry.holds():
                entry = Entry(parameter, state, self._kind)
            entries.append(entry)
        same = entries == self._entries
        if not same and any(self._known.get(entry.parameter) is not entry for entry in entries):
            written = [
                tensor
                for entry in entries
                for tensor in written_tensors(entry.block, entry.new_state)
            ]
            self._written = WrittenMemory(written, self._kind.optimizer)
            self._known = {entry.parameter: entry for entry in entries}
            self._checked = set()
        self._gradients = [entry.gradient() for entry in entries]
        addresses = [gradient.data_ptr() for gradient in self._gradients]
        if same and addresses == self._addresses:
            return
        places = {
            (address, gradient.numel()): gradient
            for address, gradient in zip(addresses, self._gradients, strict=True)
        }
        unchecked = [gradient for place, gradient in places.items() if place not in self._checked]
        self._written.check_gradients(unchecked)
        self._checked = set(places)
        self._addresses = addresses
        if same:
            self._call.arrays.gradients.copy_(torch.tensor(addresses))
            return
        self._entries = entries
        self._states_are_new = True
        self._call = StepCall(self._arrays(), self._kind.formats)

    def run(self, update: Update, *, maximize: bool, seed: int) -> None:
        """Update the parameters and their states."""
        copied = [(entry.parameter, entry.block) for entry in self._entries if entry.is_copy]
        for parameter, block in copied:
            block.copy_(parameter)
        self._call.run(update, maximize=maximize, seed=seed)
        for parameter, block in copied:
            parameter.copy_(block)
        # Autograd finds out that a saved parameter has changed, as after any operation in place.
        torch.autograd.graph.increment_version([entry.parameter for entry in self._entries])
        self._gradients = []
        if self._states_are_new:
            self._states_are_new = False
            for entry in self._entries:
                entry.fresh = False
                entry.state.update(entry.new_state)

    def _arrays(self) -> Arrays:
        entries, names = self._entries, self._kind.names

        def addresses(name: str | None) -> torch.Tensor | None:
            if name is None:
                return None
            return torch.tensor([entry.new_state[name].data_ptr() for entry in entries])

        split = self._kind.formats.weight_format == WEIGHTS_SPLIT
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


class SparseStep:
    """One parameter with a sparse gradient, whose rows are the entries of the native call.

    Rows without a gradient are left alone, and so is their state.
    """

    def __init__(self, parameter: torch.Tensor, state: State, kind: StepKind) -> None:
        """Check everything and prepare the arrays. Raises OptimizerError."""
        optimizer, names, formats = kind
        gradient = checked_gradient(parameter, optimizer)
        if gradient.sparse_dim() != 1 or not parameter.is_contiguous():
            raise OptimizerError(
                f"{optimizer}: a sparse gradient has {gradient.sparse_dim()} sparse dimensions and its"
                f" parameter the strides {parameter.stride()}; supported are gradients of whole rows,"
                " as of nn.Embedding(sparse=True), of contiguous parameters"
            )
        block = parameter.detach()
        new, _ = new_state(state, kind, block)
        written = WrittenMemory(written_tensors(block, new), optimizer)
        coalesced = gradient.coalesce()
        rows = coalesced.indices()[0]
        self._values = coalesced.values().contiguous().resolve_neg()
        written.check_gradients([self._values])
        self._parameter, self._state, self._new = parameter, state, new
        count = rows.numel()
        size = block[0].numel() if count else 0

        def addresses(tensor: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            return numbers * (size * tensor.element_size()) + tensor.data_ptr()

        def of_rows(name: str | None) -> torch.Tensor | None:
            return None if name is None or name not in new else addresses(new[name], rows)

        self._call = StepCall(
            Arrays(
                sizes=torch.full((count,), size),
                weights=addresses(block, rows),
                gradients=addresses(self._values, torch.arange(count)),
                remainders=of_rows("remainder"),
                first=of_rows(names.first),
                second=None,
                steps=torch.full((count,), new["step"].data_ptr()) if names.steps else None,
                fresh=None,
            ),
            formats,
        )
        self._empty = count == 0

    def run(self, update: Update, *, maximize: bool, seed: int) -> None:
        """Update the rows that have a gradient."""
        self._call.run(update, maximize=maximize, seed=seed)
        if self._empty and "step" in self._new:
            self._new["step"].add_(1)
        torch.autograd.graph.increment_version(self._parameter)
        self._state.update(self._new)
