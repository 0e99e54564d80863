# SPDX-License-Identifier: Apache-2.0
"""Merged embedding bags whose backward updates the tables at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import nn

from xruntime.errors import EmbeddingBagError
from xruntime.nn.embedding_bag import MergedEmbeddingBag
from xruntime.nn.embedding_updates import BagAdagrad, BagOptimizer, BagSGD, register
from xruntime.optim.memory_layout import extents, overlap
from xruntime.optim.split_bf16 import join, split


class UpdatingEmbeddingBag(MergedEmbeddingBag):
    """The base of the modules below; it is not a module to use."""

    optimizer: BagOptimizer
    """The options and the state. Give it to a scheduler, and save its state_dict."""

    def __init__(
        self,
        tables: Iterable[tuple[int, int]],
        kind: type[BagOptimizer],
        defaults: dict[str, float],
        **options: Any,
    ) -> None:
        given = options.pop("weights", None)
        if given is not None:
            given = [nn.Parameter(weight.detach(), requires_grad=False) for weight in given]
        super().__init__(tables, weights=given, **options)
        self.requires_grad_(False)
        _check_memory(list(self.weights))
        self.optimizer = kind(list(self.weights), defaults)
        self._prepare()

    def _prepare(self) -> None:
        # An input that needs a gradient, so that autograd calls backward.
        self._trigger = torch.zeros(0, requires_grad=True, device=self.weights[0].device)
        self._number = register(self.optimizer)
        self._states = self.optimizer.tensors(self.optimizer.STATE)
        self._remainders = self.optimizer.tensors("remainder")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over the state of a pickled or copied module."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._prepare()

    @classmethod
    def _options_of(cls, module: nn.EmbeddingBag) -> dict[str, Any]:
        return {}

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Convert the tables for `to()` and similar methods; their exact fp32 values are kept.

        The state moves with the tables, but keeps its own dtypes.
        """
        before = list(self.weights)
        dtype, tables = self.weights[0].dtype, [weight.data for weight in self.weights]
        masters = self.master_weights if dtype == torch.bfloat16 else lambda: tables
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # torch makes new Parameters where it cannot change the data of the present ones.
        states = [self.optimizer.state.pop(weight, {}) for weight in before]
        self.optimizer.state.update(zip(self.weights, states, strict=True))
        self.optimizer.param_groups[0]["params"] = list(self.weights)
        converted = self.weights[0].dtype
        if converted == dtype:
            for state in states:
                # Conversions to another dtype leave integers alone.
                state.update({name: _as_integers(value, fn) for name, value in state.items()})
            self._prepare()
            return self
        for weight, table in zip(self.weights, tables, strict=True):
            weight.data = table
        if converted not in (torch.float32, torch.bfloat16):
            raise EmbeddingBagError(
                f"tables that backward updates cannot be {converted}: torch.float32 or torch.bfloat16"
            )
        for weight, master in zip(self.weights, masters(), strict=True):
            state = self.optimizer.state[weight]
            state.pop("remainder", None)
            if converted == torch.bfloat16:
                weight.data, state["remainder"] = split(master)
            else:
                weight.data = master
        self._prepare()
        return self

    def forward(
        self,
        indices: Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor] | None = None,
        per_sample_weights: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """As MergedEmbeddingBag; in training mode with grad enabled, backward updates the tables."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(indices, offsets, per_sample_weights)
        results = torch.ops.xruntime.merged_embedding_bag_with_update(
            self._trigger,
            [weight.detach() for weight in self.weights],
            self._states,
            self._remainders,
            self._number,
            *self._lookups(indices, offsets, per_sample_weights),
        )
        return list(results[: len(self.weights)])

    def master_weights(self) -> list[torch.Tensor]:
        """Return the tables in fp32: of bf16 tables, with their remainders. They are copies."""
        if not self._remainders:
            return [weight.detach().clone() for weight in self.weights]
        pairs = zip(self.weights, self._remainders, strict=True)
        return [join(weight, remainder) for weight, remainder in pairs]

    def load_master_weights(self, weights: Sequence[torch.Tensor]) -> None:
        """Set the tables to fp32 values, the inverse of `master_weights`. Raises EmbeddingBagError."""
        shapes = [tuple(weight.shape) for weight in self.weights]
        if [tuple(weight.shape) for weight in weights] != shapes:
            raise EmbeddingBagError(f"weights of other shapes than those of the tables, {shapes}")
        for number, (table, weight) in enumerate(zip(self.weights, weights, strict=True)):
            if self._remainders:
                half, remainder = split(weight.float())
                table.copy_(half)
                self._remainders[number].copy_(remainder)
            else:
                table.copy_(weight)


class MergedEmbeddingBagWithSGD(UpdatingEmbeddingBag):
    """MergedEmbeddingBag whose backward updates the named rows by SGD, without gradient tensors.

    tables, options
        As of MergedEmbeddingBag; fp32 or bf16. bf16 tables have a 16-bit remainder for each weight, so
        they train like fp32 ones.
    lr, weight_decay, momentum
        As of torch.optim.SGD, but rows that no index names keep their weights and momentum. They are in
        `optimizer.param_groups` and read by each backward.

    Every backward in training mode updates, also one of several whose gradients another optimizer
    accumulates. The tables need no gradient and get none. Raises EmbeddingBagError.
    """

    def __init__(
        self,
        tables: Iterable[tuple[int, int]],
        lr: float = 0.01,
        weight_decay: float = 0,
        momentum: float = 0,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(tables, BagSGD, defaults, **options)


class MergedEmbeddingBagWithAdaGrad(UpdatingEmbeddingBag):
    """As MergedEmbeddingBagWithSGD, with the update of torch.optim.Adagrad."""

    def __init__(
        self,
        tables: Iterable[tuple[int, int]],
        lr: float = 0.01,
        eps: float = 1e-10,
        **options: Any,
    ) -> None:
        super().__init__(tables, BagAdagrad, {"lr": lr, "eps": eps}, **options)


def _as_integers(tensor: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Apply `fn` to the bits of a tensor of two or four bytes an element."""
    return fn(tensor.view({2: torch.int16, 4: torch.int32}[tensor.itemsize])).view(tensor.dtype)


def _check_memory(weights: Sequence[torch.Tensor]) -> None:
    """Check that tables can be updated in parallel. Raises EmbeddingBagError."""
    if weights[0].dtype == torch.float16:
        raise EmbeddingBagError(
            "tables of torch.float16 cannot be updated in backward: torch.float32 and torch.bfloat16"
            " can, or use MergedEmbeddingBag with an optimizer"
        )
    for number, weight in enumerate(weights):
        if not weight.is_contiguous():
            raise EmbeddingBagError(f"table {number} is not contiguous: give a contiguous copy")
    if overlap(extents(weights)):
        raise EmbeddingBagError(
            "two tables share memory, so they cannot be updated in backward: use MergedEmbeddingBag"
            " with an optimizer"
        )
