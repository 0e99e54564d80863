# SPDX-License-Identifier: Apache-2.0
"""The operators of merged embedding bags, with their derivatives: torch.ops.xruntime.merged_....

`merged_embedding_bag` has one derivative with respect to the tables, dense or sparse, and one with
respect to the per-sample weights. Tables are lists, which may differ in rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

from xruntime.errors import EmbeddingBagError
from xruntime.nn.embedding_call import MODES, BagsCall, Lookups, Shapes, Tensors, check_lookups
from xruntime.nn.native_operators import call, define, differentiate, refuse_second_derivative

# No argument is named `mode`, a name that torch's functionalization uses for itself.
LOOKUPS = (
    "Tensor[] indices, Tensor[] offsets, Tensor[] per_sample_weights, int reduction,"
    " bool include_last_offset"
)


def check_tables(weights: Tensors, lookups: Lookups) -> None:
    """Check that dtypes and shapes agree. Raises EmbeddingBagError."""
    for number, weight in enumerate(weights):
        if weight.dim() != 2 or weight.dtype != weights[0].dtype:
            raise EmbeddingBagError(
                f"table {number} is of {weight.dtype} and shape {tuple(weight.shape)}: tables have two"
                f" dimensions, and all the same dtype (table 0: {weights[0].dtype})"
            )
    check_lookups(lookups, len(weights), weights[0].dtype if weights else torch.float32)


def _result_shapes(weights: Tensors, lookups: Lookups) -> list[tuple[int, int]]:
    return [(lookups.bags(number), weight.shape[1]) for number, weight in enumerate(weights)]


def empty_results(weights: Tensors, lookups: Lookups) -> list[torch.Tensor]:
    """What forward writes: the results, then the positions of maxima."""
    check_tables(weights, lookups)
    shapes = _result_shapes(weights, lookups)
    results = [weight.new_empty(shape) for weight, shape in zip(weights, shapes, strict=True)]
    maximized = results if lookups.mode == MODES["max"] else []
    return [*results, *(torch.empty_like(result, dtype=torch.int32) for result in maximized)]


def reduce(weights: Tensors, lookups: Lookups) -> list[torch.Tensor]:
    """Run the forward function; return the results, then the positions of maxima."""
    tensors = empty_results(weights, lookups)
    if tensors:
        results, positions = tensors[: len(weights)], tensors[len(weights) :]
        _call(weights, lookups, output=results, max_positions=positions).run("xk_bags_forward")
    return tensors


def _call(weights: Tensors, lookups: Lookups, **fields: Tensors) -> BagsCall:
    shapes = [weight.shape for weight in weights]
    return BagsCall(lookups, shapes, weights[0].dtype, weights=weights, **fields)


def check_gradients(
    gradients: Tensors, dims: Sequence[int], lookups: Lookups, positions: Tensors
) -> None:
    """Check gradients of results, and positions of maxima. Raises EmbeddingBagError."""
    if not len(gradients) == len(dims) == len(lookups.indices):
        raise EmbeddingBagError(f"{len(gradients)} gradients for {len(dims)} tables")
    check_lookups(lookups, len(gradients), gradients[0].dtype if gradients else torch.float32)
    if len(positions) != (len(gradients) if lookups.mode == MODES["max"] else 0):
        raise EmbeddingBagError(f"{len(positions)} tensors of positions for mode {lookups.mode}")
    for kind, dtype, tensors in (
        ("gradient", gradients[0].dtype if gradients else None, gradients),
        ("tensor of positions", torch.int32, positions),
    ):
        for number, tensor in enumerate(tensors):
            shape = (lookups.bags(number), dims[number])
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise EmbeddingBagError(
                    f"table {number}: a {kind} of {tensor.dtype} and shape {tuple(tensor.shape)}, not"
                    f" {dtype} and {shape}"
                )


# Forward.


def _forward(weights: Tensors, sparse: bool, *lookups: Any) -> list[torch.Tensor]:
    return reduce(weights, Lookups(*lookups))


def merged_embedding_bag(weights: Tensors, sparse: bool, lookups: Lookups) -> Tensors:
    """Call the operator; return results only. Raises EmbeddingBagError, EmbeddingIndexError.

    Without derivatives the results are parts of one tensor: Inductor's C++ wrapper calls operators that
    return lists through Python.
    """
    if weights and not torch.is_grad_enabled():
        packed: torch.Tensor = call(
            torch.ops.xruntime.merged_embedding_bag_packed, _forward_packed, weights, *lookups
        )
        return _parts(packed, _result_shapes(weights, lookups))
    operator = torch.ops.xruntime.merged_embedding_bag
    results: list[torch.Tensor] = call(operator, _forward, weights, sparse, *lookups)
    return results[: len(weights)]


def _forward_packed(weights: Tensors, *lookups: Any) -> torch.Tensor:
    packed = _forward_packed_fake(weights, *lookups)
    bags = Lookups(*lookups)
    output = _parts(packed, _result_shapes(weights, bags))
    _call(weights, bags, output=output).run("xk_bags_forward")
    return packed


def _forward_packed_fake(weights: Tensors, *lookups: Any) -> torch.Tensor:
    bags = Lookups(*lookups)
    check_tables(weights, bags)
    return weights[0].new_empty(sum(map(math.prod, _result_shapes(weights, bags))))


def _parts(packed: torch.Tensor, shapes: Shapes) -> list[torch.Tensor]:
    parts = packed.split_with_sizes([math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


define(
    f"merged_embedding_bag_packed(Tensor[] weights, {LOOKUPS}) -> Tensor",
    _forward_packed,
    _forward_packed_fake,
)


define(
    f"merged_embedding_bag(Tensor[] weights, bool sparse, {LOOKUPS}) -> Tensor[]",
    _forward,
    lambda weights, sparse, *lookups: empty_results(weights, Lookups(*lookups)),
)


# Derivatives.


def _checked_shapes(
    gradients: Tensors, rows: Sequence[int], lookups: Lookups, positions: Tensors
) -> list[tuple[int, int]]:
    """Check the gradients of results; return the shapes of their tables."""
    shapes = [(count, gradient.shape[-1]) for gradient, count in zip(gradients, rows, strict=True)]
    check_gradients(gradients, [dim for _, dim in shapes], lookups, positions)
    return shapes


def _dense_gradients(
    gradients: Tensors, rows: Sequence[int], positions: Tensors, *lookups: Any
) -> Tensors:
    wanted = _dense_gradients_fake(gradients, rows, positions, *lookups)
    if wanted:
        BagsCall(
            *(Lookups(*lookups), [gradient.shape for gradient in wanted], gradients[0].dtype),
            output=gradients,
            max_positions=positions,
            gradients=[gradient.zero_() for gradient in wanted],
        ).run("xk_bags_dense_gradients")
    return wanted


def _dense_gradients_fake(
    gradients: Tensors, rows: Sequence[int], positions: Tensors, *lookups: Any
) -> list[torch.Tensor]:
    shapes = _checked_shapes(gradients, rows, Lookups(*lookups), positions)
    return [gradient.new_empty(shape) for gradient, shape in zip(gradients, shapes, strict=True)]


define(
    f"merged_embedding_bag_dense_gradients(Tensor[] gradients, SymInt[] rows, Tensor[] max_positions,"
    f" {LOOKUPS}) -> Tensor[]",
    _dense_gradients,
    _dense_gradients_fake,
)


def _sparse_gradients(
    gradients: Tensors, rows: Sequence[int], positions: Tensors, *lookups: Any
) -> tuple[Tensors, Tensors]:
    """Return the rows that are named and their gradients."""
    bags = Lookups(*lookups)
    shapes = _checked_shapes(gradients, rows, bags, positions)
    room = [min(count, indices.numel()) for count, indices in zip(rows, bags.indices, strict=True)]
    numbers = [torch.empty(count, dtype=torch.int64) for count in room]
    # What stays unused of a large tensor takes no memory.
    values = [
        gradient.new_empty((count, dim))
        for gradient, count, (_, dim) in zip(gradients, room, shapes, strict=True)
    ]
    if values:
        call = BagsCall(
            *(bags, shapes, gradients[0].dtype),
            output=gradients,
            max_positions=positions,
            gradients=values,
            gradient_rows=numbers,
        )
        call.run("xk_bags_sparse_gradients")
        for number, value, table in zip(numbers, values, call.tables, strict=True):
            number.resize_(table.gradient_row_count)
            value.resize_(table.gradient_row_count, table.dim)
    return numbers, values


def _sparse_gradients_fake(
    gradients: Tensors, rows: Sequence[int], positions: Tensors, *lookups: Any
) -> tuple[Tensors, Tensors]:
    context = torch.library.get_ctx()
    numbers, values = [], []
    shapes = _checked_shapes(gradients, rows, Lookups(*lookups), positions)
    for gradient, (_, dim) in zip(gradients, shapes, strict=True):
        count = context.new_dynamic_size()
        numbers.append(gradient.new_empty((count,), dtype=torch.int64))
        values.append(gradient.new_empty((count, dim)))
    return numbers, values


define(
    f"merged_embedding_bag_sparse_gradients(Tensor[] gradients, SymInt[] rows, Tensor[] max_positions,"
    f" {LOOKUPS}) -> (Tensor[] named_rows, Tensor[] values)",
    _sparse_gradients,
    _sparse_gradients_fake,
)


def _factor_gradients(gradients: Tensors, weights: Tensors, *lookups: Any) -> Tensors:
    wanted = _factor_gradients_fake(gradients, weights, *lookups)
    if wanted:
        call = _call(weights, Lookups(*lookups), output=gradients, gradients=wanted)
        call.run("xk_bags_factor_gradients")
    return wanted


def _factor_gradients_fake(gradients: Tensors, weights: Tensors, *lookups: Any) -> Tensors:
    bags = Lookups(*lookups)
    check_tables(weights, bags)
    check_gradients(gradients, [weight.shape[1] for weight in weights], bags, [])
    dense = torch.contiguous_format
    return [torch.empty_like(factor, memory_format=dense) for factor in bags.factors]


define(
    f"merged_embedding_bag_factor_gradients(Tensor[] gradients, Tensor[] weights, {LOOKUPS})"
    " -> Tensor[]",
    _factor_gradients,
    _factor_gradients_fake,
)


# The formula of autograd.


def save_for_backward(ctx: Any, lookups: Lookups, positions: Tensors, weights: Tensors) -> None:
    """Keep what backward needs of a call; `weights` only where their values are needed."""
    lists = (*lookups[:3], positions, weights)
    ctx.lengths = [len(tensors) for tensors in lists]
    ctx.options = lookups[3:]
    ctx.save_for_backward(*(tensor for tensors in lists for tensor in tensors))
    ctx.set_materialize_grads(False)


def saved_for_backward(ctx: Any) -> tuple[Lookups, list[torch.Tensor], list[torch.Tensor]]:
    """Return the lookups, positions of maxima and weights that were kept."""
    tensors = iter(ctx.saved_tensors)
    indices, offsets, factors, positions, weights = (
        list(islice(tensors, length)) for length in ctx.lengths
    )
    return Lookups(indices, offsets, factors, *ctx.options), positions, weights


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    weights, sparse, *lookups = inputs
    bags = Lookups(*lookups)
    positions = output[len(weights) :]
    ctx.mark_non_differentiable(*positions)
    ctx.rows = [weight.shape[0] for weight in weights]
    ctx.sparse = sparse
    # Only their gradients read the tables again.
    factors_need = any(factors.requires_grad for factors in bags.factors)
    save_for_backward(ctx, bags, positions, weights if factors_need else [])


def _backward(ctx: Any, gradients: Any) -> tuple[Any, ...]:
    lookups, positions, weights = saved_for_backward(ctx)
    gradients = gradients[: len(ctx.rows)]
    return (
        _weight_gradients(ctx, gradients, lookups, positions),
        None,
        [None] * len(lookups.indices),
        [None] * len(lookups.offsets),
        factor_gradients(gradients, weights, lookups, ctx.needs_input_grad[4]),
        None,
        None,
    )


def _weight_gradients(
    ctx: Any, gradients: Any, lookups: Lookups, positions: Tensors
) -> list[torch.Tensor | None]:
    table_gradients: list[torch.Tensor | None] = [None] * len(ctx.rows)
    tables = wanted_tables(gradients, ctx.needs_input_grad[0])
    if not tables:
        return table_gradients
    arguments = (
        [gradients[table] for table in tables],
        [ctx.rows[table] for table in tables],
        [positions[table] for table in tables] if positions else [],
        *lookups.of(tables),
    )
    if ctx.sparse:
        rows, values = torch.ops.xruntime.merged_embedding_bag_sparse_gradients(*arguments)
        for at, table in enumerate(tables):
            table_gradients[table] = torch.sparse_coo_tensor(
                rows[at][None],
                values[at],
                (ctx.rows[table], values[at].shape[1]),
                is_coalesced=True,
                check_invariants=False,
            )
    else:
        dense = torch.ops.xruntime.merged_embedding_bag_dense_gradients(*arguments)
        for table, gradient in zip(tables, dense, strict=True):
            table_gradients[table] = gradient
    return table_gradients


def wanted_tables(gradients: Any, needed: Sequence[bool]) -> list[int]:
    """Return the tables whose results have a gradient and whose input needs one."""
    pairs = zip(gradients, needed, strict=True)
    return [table for table, (one, need) in enumerate(pairs) if one is not None and need]


def factor_gradients(
    gradients: Any, weights: Tensors, lookups: Lookups, needed: Sequence[bool]
) -> list[torch.Tensor | None]:
    """Return the gradients of per-sample weights."""
    factor_gradients: list[torch.Tensor | None] = [None] * len(lookups.factors)
    tables = wanted_tables(gradients, needed) if lookups.factors else []
    if tables:
        computed = torch.ops.xruntime.merged_embedding_bag_factor_gradients(
            [gradients[table] for table in tables],
            [weights[table] for table in tables],
            *lookups.of(tables),
        )
        for table, gradient in zip(tables, computed, strict=True):
            factor_gradients[table] = gradient
    return factor_gradients


differentiate("merged_embedding_bag", _backward, _setup_context)
for _gradients in ("dense_gradients", "sparse_gradients", "factor_gradients"):
    refuse_second_derivative(f"merged_embedding_bag_{_gradients}", "merged_embedding_bag")
