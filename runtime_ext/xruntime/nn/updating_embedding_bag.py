# SPDX-License-Identifier: Apache-2.0
"""Merged embedding bags whose backward updates the tables at once.

The modules come first, then the optimizers that hold their options and state, and the operators.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import nn

from xruntime.errors import EmbeddingBagError
from xruntime.nn.embedding_bag import MergedEmbeddingBag
from xruntime.nn.embedding_call import BagsCall, Lookups, Tensors
from xruntime.nn.embedding_operators import (
    LOOKUPS,
    check_gradients,
    empty_results,
    factor_gradients,
    reduce,
    save_for_backward,
    saved_for_backward,
    wanted_tables,
)
from xruntime.nn.native_operators import define, differentiate
from xruntime.optim.memory_layout import extents, overlap
from xruntime.optim.native_optimizer import load_with_hooks
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
        weights = options.pop("weights", None)
        if weights is not None:
            weights = [nn.Parameter(weight.detach(), requires_grad=False) for weight in weights]
        super().__init__(tables, weights=weights, **options)
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

    def _look_up(self, lookups: Lookups) -> list[torch.Tensor]:
        """In training mode with grad enabled, backward updates the tables."""
        if not (self.training and torch.is_grad_enabled()):
            return super()._look_up(lookups)
        results = torch.ops.xruntime.merged_embedding_bag_with_update(
            self._trigger,
            [weight.detach() for weight in self.weights],
            self._states,
            self._remainders,
            self._number,
            *lookups,
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


_numbers = itertools.count()
_optimizers: weakref.WeakValueDictionary[int, BagOptimizer] = weakref.WeakValueDictionary()


def register(optimizer: BagOptimizer) -> int:
    """Return a number with which operators look up the optimizer while it exists.

    Operators take numbers and tensors only, and options must be read when they run: a graph would keep
    the learning rate that it was compiled with.
    """
    number = next(_numbers)
    _optimizers[number] = optimizer
    return number


class BagOptimizer(torch.optim.Optimizer):
    """Options and state of a module whose backward updates its tables.

    A scheduler of torch changes `param_groups`, which backward reads. `step()` does nothing.
    """

    STATE: ClassVar[str]
    """The name of the state, an fp32 tensor of each table."""
    FUNCTION: ClassVar[str]
    """The function of the library that updates the tables."""
    OPTIONS: ClassVar[tuple[str, ...]]
    """The options that it takes, in its order."""

    def __init__(self, tables: Sequence[torch.Tensor], defaults: dict[str, float]) -> None:
        super().__init__(tables, defaults)
        self._check(self.param_groups[0])
        for table in tables:
            if self._has_state():
                self.state[table][self.STATE] = torch.zeros_like(table, dtype=torch.float32)
            if table.dtype == torch.bfloat16:
                # The lower halves of the fp32 weights; xruntime.optim.split_bf16 has the format.
                self.state[table]["remainder"] = torch.zeros_like(table, dtype=torch.int16)

    def _has_state(self) -> bool:
        """Whether an update with the present options needs state."""
        return True

    def tensors(self, name: str) -> list[torch.Tensor]:
        """Return the state of all tables; empty if they have none."""
        (group,) = self.param_groups
        return [self.state[table][name] for table in group["params"] if name in self.state[table]]

    def run(self, call: BagsCall, *, with_state: bool) -> None:
        """Update the tables of a call. Raises EmbeddingBagError."""
        self._check(self.param_groups[0])
        if self._has_state() and not with_state:
            raise EmbeddingBagError(
                f"{type(self).__name__}: momentum was 0 when the module was made, so there is no state"
                " for it: make the module with a momentum"
            )
        call.run(self.FUNCTION, *(float(self.param_groups[0][name]) for name in self.OPTIONS))

    def _check(self, group: dict[str, Any]) -> None:
        for name in self.OPTIONS:
            value = float(group[name])
            if not 0 <= value < math.inf:
                raise EmbeddingBagError(f"{name}={value}: allowed are finite numbers of at least 0")

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do nothing: backward has updated the tables. Returns the closure's result."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the group of all tables; there is one group only. Raises EmbeddingBagError."""
        if self.param_groups:
            raise EmbeddingBagError("all tables are in one group; make another module for others")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the group, and copy the state to the tensors in use. Raises EmbeddingBagError."""
        states = {table: self.state[table] for table in self.param_groups[0]["params"]}

        def check(saved: dict[str, Any]) -> None:
            self._check(self.defaults | saved["param_groups"][0])
            for number, (table, state) in enumerate(states.items()):
                saved_state = saved["state"].get(number, {})
                if saved_state.keys() != state.keys() or any(
                    value.shape != table.shape for value in saved_state.values()
                ):
                    raise EmbeddingBagError(
                        f"table {number}: the saved state is of other options or another table:"
                        f" {sorted(saved_state)}, not {sorted(state)}"
                    )

        def take(saved: dict[str, Any]) -> None:
            for option, value in self.defaults.items():
                self.param_groups[0].setdefault(option, value)
            for number, (table, state) in enumerate(states.items()):
                for name, value in saved["state"].get(number, {}).items():
                    state[name].copy_(value)
                self.state[table] = state

        load_with_hooks(self, state_dict, check, take)


class BagSGD(BagOptimizer):
    """Options `lr`, `momentum` and `weight_decay`; state `momentum_buffer`, with a momentum."""

    STATE, FUNCTION = "momentum_buffer", "xk_bags_sgd"
    OPTIONS = ("lr", "momentum", "weight_decay")

    def _has_state(self) -> bool:
        return bool(self.param_groups[0]["momentum"] != 0)


class BagAdagrad(BagOptimizer):
    """Options `lr` and `eps`; state `sum`."""

    STATE, FUNCTION = "sum", "xk_bags_adagrad"
    OPTIONS = ("lr", "eps")


# Forward.


define(
    "merged_embedding_bag_with_update(Tensor trigger, Tensor[] weights, Tensor[] states,"
    f" Tensor[] remainders, int optimizer, {LOOKUPS}) -> Tensor[]",
    lambda trigger, weights, *others: reduce(weights, Lookups(*others[3:])),
    lambda trigger, weights, *others: empty_results(weights, Lookups(*others[3:])),
)


# Update.


def _update(*arguments: Any) -> None:
    _update_fake(*arguments)
    gradients, weights, states, remainders, positions, optimizer, *lookups = arguments
    updating = _optimizers.get(optimizer)
    if updating is None:
        raise EmbeddingBagError("the module of this graph was deleted before its backward")
    if not gradients:
        return
    call = BagsCall(
        *(Lookups(*lookups), [weight.shape for weight in weights], gradients[0].dtype),
        output=gradients,
        max_positions=positions,
        weights=weights,
        state=states,
        remainders=remainders,
    )
    updating.run(call, with_state=bool(states))
    torch.autograd.graph.increment_version([*weights, *states, *remainders])


def _update_fake(
    gradients: Tensors,
    weights: Tensors,
    states: Tensors,
    remainders: Tensors,
    positions: Tensors,
    optimizer: int,
    *lookups: Any,
) -> None:
    dims = [weight.shape[1] for weight in weights]
    check_gradients(gradients, dims, Lookups(*lookups), positions)
    for name, dtype, tensors, needed in (
        ("weights", gradients[0].dtype if gradients else None, weights, True),
        ("state", torch.float32, states, False),
        (
            "remainders",
            torch.int16,
            remainders,
            bool(weights) and weights[0].dtype == torch.bfloat16,
        ),
    ):
        if len(tensors) != len(weights) and (needed or tensors):
            raise EmbeddingBagError(f"{len(tensors)} tensors of {name} for {len(weights)} tables")
        for number, tensor in enumerate(tensors):
            shape = tuple(weights[number].shape)
            if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
                raise EmbeddingBagError(
                    f"table {number}: {name} of {tensor.dtype} and shape {tuple(tensor.shape)}, not"
                    f" contiguous {dtype} of shape {shape}"
                )


define(
    "merged_embedding_bag_update_(Tensor[] gradients, Tensor(a!)[] weights, Tensor(b!)[] states,"
    f" Tensor(c!)[] remainders, Tensor[] max_positions, int optimizer, {LOOKUPS}) -> ()",
    _update,
    _update_fake,
)


# The formula of autograd.


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    trigger, weights, states, remainders, optimizer, *lookups = inputs
    ctx.optimizer = optimizer
    # Not saved for backward: other backward passes may have updated them meanwhile.
    ctx.written = (weights, states, remainders)
    positions = output[len(weights) :]
    save_for_backward(ctx, Lookups(*lookups), positions, [trigger])
    ctx.mark_non_differentiable(*positions)


def _backward(ctx: Any, gradients: Any) -> tuple[Any, ...]:
    lookups, positions, (trigger,) = saved_for_backward(ctx)
    weights, states, remainders = ctx.written
    gradients = gradients[: len(weights)]
    factors = factor_gradients(gradients, weights, lookups, ctx.needs_input_grad[7])
    tables = wanted_tables(gradients, [True] * len(weights))
    if tables:
        lists = (
            [tensors[table] for table in tables] if tensors else []
            for tensors in (gradients, weights, states, remainders, positions)
        )
        torch.ops.xruntime.merged_embedding_bag_update_(*lists, ctx.optimizer, *lookups.of(tables))
    none = [[None] * len(tensors) for tensors in (weights, states, remainders)]
    return (
        torch.zeros_like(trigger),
        *none,
        None,
        [None] * len(lookups.indices),
        [None] * len(lookups.offsets),
        factors,
        None,
        None,
    )


differentiate("merged_embedding_bag_with_update", _backward, _setup_context)
