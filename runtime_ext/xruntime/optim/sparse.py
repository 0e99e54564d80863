# SPDX-License-Identifier: Apache-2.0
"""Parameters with sparse gradients: each row of the gradient is an entry of the native call."""

from __future__ import annotations

import torch

from xruntime.errors import OptimizerError
from xruntime.optim.dense import (
    State,
    StateNames,
    check_gradient,
    new_state,
    written_tensors,
)
from xruntime.optim.memory_layout import Written
from xruntime.optim.step_call import Arrays, Formats, StepCall, Update


class SparseStep:
    """One parameter; rows without a gradient are left alone, and so is their state."""

    def __init__(
        self,
        optimizer: str,
        parameter: torch.Tensor,
        state: State,
        names: StateNames,
        formats: Formats,
    ) -> None:
        """Check everything and prepare the arrays. Raises OptimizerError."""
        gradient = parameter.grad
        assert gradient is not None
        check_gradient(parameter, gradient, optimizer)
        if gradient.sparse_dim() != 1 or not parameter.is_contiguous():
            raise OptimizerError(
                f"{optimizer}: a sparse gradient has {gradient.sparse_dim()} sparse dimensions and its"
                f" parameter the strides {parameter.stride()}; supported are gradients of whole rows,"
                " as of nn.Embedding(sparse=True), of contiguous parameters"
            )
        block = parameter.detach()
        new, _ = new_state(state, names, formats, block)
        written = Written(written_tensors(block, new), optimizer)
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
