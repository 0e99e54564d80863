# SPDX-License-Identifier: Apache-2.0
"""Embedding bags of several tables: results, gradients, and updates by SGD and Adagrad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from tests.kernels.recorded.cases import (
    ROUNDING,
    Array,
    Case,
    Expectation,
    join,
    split,
    stored,
    values_of,
)

# Rows, dim, indices, bags: no whole vectors, one column, no indices, more columns than a pass has,
# and many indices of few rows. The others are large enough for a team.
SIZES = ((50, 33, 60, 7), (1, 1, 5, 2), (9, 130, 0, 3), (6, 515, 30, 4), (3, 16, 70, 1))
LARGE_SIZES = ((70_000, 1, 12_000, 100), (60, 33, 700, 40))
MODES = {"sum": 0, "weighted": 0, "mean": 1, "max": 2}
LAYOUTS = ("offsets", "last", "even")
"""Bags begin at offsets, which may also have the end of the last one; or all bags are equal."""
UPDATES: dict[str, dict[str, float]] = {
    "bags_sgd": {"lr": 0.1, "momentum": 0, "weight_decay": 0.03},
    "bags_sgd/momentum": {"lr": 0.1, "momentum": 0.8, "weight_decay": 0},
    "bags_adagrad": {"lr": 0.1, "eps": 1e-6},
}
UNTOUCHED = 7


class Table(NamedTuple):
    """One table in fp64, and the bag of each index."""

    weights: Array
    indices: Array
    factors: Array
    starts: Array
    """Where the bags begin in `indices`, and the end of the last one."""
    gradients: Array
    """Those of the results."""

    def bags(self) -> Array:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def scales(self, mode: str) -> Array:
        """What each row is multiplied by."""
        return 1 / np.diff(self.starts)[self.bags()] if mode == "mean" else self.factors


def cases() -> Iterator[Case]:
    random = np.random.default_rng(4)
    for i, value_type in enumerate(ROUNDING):
        for j, mode in enumerate(MODES):
            index_type = ("<i4", "<i8")[(i + j) % 2]
            layout = LAYOUTS[(i + 2 * j) % 3]
            yield from _cases_of(value_type, index_type, mode, layout, SIZES, random)
    yield from _cases_of("fp32", "<i8", "weighted", "offsets", LARGE_SIZES, random)
    yield from _cases_of("bf16", "<i4", "max", "last", LARGE_SIZES, random)


def _cases_of(
    value_type: str,
    index_type: str,
    mode: str,
    layout: str,
    sizes: tuple[tuple[int, ...], ...],
    random: np.random.Generator,
) -> Iterator[Case]:
    counts = [count // bags * bags if layout == "even" else count for _, _, count, bags in sizes]
    tables = [
        _table(rows, dim, count, bags, value_type, even=layout == "even", random=random)
        for (rows, dim, _, bags), count in zip(sizes, counts, strict=True)
    ]
    if mode != "weighted":
        tables = [table._replace(factors=np.ones(len(table.indices))) for table in tables]
    if mode == "max":
        for table in tables:
            table.weights[1::3, ::2] = np.nan
    results, positions = zip(*(_reduce(table, mode) for table in tables), strict=True)
    gradients = [
        _gradients(table, mode, largest) for table, largest in zip(tables, positions, strict=True)
    ]
    named = [np.unique(table.indices) for table in tables]
    largest = _joined(positions).astype("<i4")

    numbers: dict[str, float] = {"mode": MODES[mode], "include_last_offset": layout == "last"}
    arrays = {"indices": _joined(table.indices for table in tables).astype(index_type)}
    if layout != "even":
        until = None if layout == "last" else -1
        arrays["offsets"] = _joined(table.starts[:until] for table in tables).astype(index_type)
    if mode == "weighted":
        arrays["factors"] = stored(_joined(table.factors for table in tables), value_type)
    weights = stored(_joined(table.weights for table in tables), value_type)
    size = "large" if sizes is LARGE_SIZES else "small"
    name = f"{mode}/{value_type}/{index_type[1:]}/{layout}/{size}"
    # Sums have up to hundreds of terms, which cancel.
    rounded = ROUNDING[value_type], 2e-5

    def shape(gradient_sizes: list[int]) -> dict[str, Array]:
        rows = [
            (size[0], size[1], count, size[3]) for size, count in zip(sizes, counts, strict=True)
        ]
        table_sizes = np.column_stack([rows, gradient_sizes])
        return {"tables": table_sizes.astype("<i8")}

    def untouched(count: int) -> Array:
        return stored(np.full(count, UNTOUCHED), value_type)

    forward = shape([0] * len(sizes)) | arrays | {"weights": weights}
    forward["output"] = untouched(sum(result.size for result in results))
    expected = {"output": Expectation(_joined(results), *rounded)}
    if mode == "max":
        forward["max_positions"] = np.full(largest.size, UNTOUCHED, dtype="<i4")
        expected["max_positions"] = Expectation(largest)
    yield Case(f"bags_forward/{name}", numbers, forward, expected)

    arrays["output"] = stored(_joined(table.gradients for table in tables), value_type)
    if mode == "max":
        arrays["max_positions"] = largest

    dense = [np.full(gradient.shape, float(UNTOUCHED)) for gradient in gradients]
    for to, gradient, rows in zip(dense, gradients, named, strict=True):
        to[rows] = gradient[rows]
    dense_sizes = [to.size for to in dense]
    yield Case(
        f"bags_dense_gradients/{name}",
        numbers,
        shape(dense_sizes) | arrays | {"gradients": untouched(sum(dense_sizes))},
        {"gradients": Expectation(_joined(dense), *rounded)},
    )

    rooms = [min(size[0], count) for size, count in zip(sizes, counts, strict=True)]
    sparse = [
        np.full((room, size[1]), float(UNTOUCHED)) for room, size in zip(rooms, sizes, strict=True)
    ]
    sparse_rows = [np.full(room, UNTOUCHED) for room in rooms]
    for i, rows in enumerate(named):
        sparse[i][: rows.size], sparse_rows[i][: rows.size] = gradients[i][rows], rows
    sparse_sizes = [to.size for to in sparse]
    written = {
        "gradients": untouched(sum(sparse_sizes)),
        "gradient_rows": np.full(sum(rooms), UNTOUCHED, dtype="<i8"),
        "gradient_row_counts": np.zeros(len(sizes), dtype="<i8"),
    }
    yield Case(
        f"bags_sparse_gradients/{name}",
        numbers,
        shape(sparse_sizes) | arrays | written,
        {
            "gradients": Expectation(_joined(sparse), *rounded),
            "gradient_rows": Expectation(_joined(sparse_rows)),
            "gradient_row_counts": Expectation(np.array([rows.size for rows in named])),
        },
    )

    arrays["weights"] = weights
    if MODES[mode] == MODES["sum"]:
        of_factors = _joined(
            np.sum(table.weights[table.indices] * table.gradients[table.bags()], axis=1)
            for table in tables
        )
        yield Case(
            f"bags_factor_gradients/{name}",
            numbers,
            shape(counts) | arrays | {"gradients": untouched(of_factors.size)},
            # Of 515 terms, which cancel.
            {"gradients": Expectation(of_factors, ROUNDING[value_type], 5e-5)},
        )

    if value_type == "fp16":
        return
    masters = random.standard_normal(weights.size).astype("<f4")
    arrays["weights"] = masters
    if value_type == "bf16":
        arrays["weights"], arrays["remainders"] = split(masters)
        arrays["weights"][::5] = 0  # set from outside, beside the remainders of other weights
        masters = join(arrays["weights"], arrays["remainders"])
    state = (0.1 + random.random(weights.size)).astype("<f4")
    touched = _joined(
        np.repeat(np.isin(np.arange(len(gradient)), rows), gradient.shape[1])
        for gradient, rows in zip(gradients, named, strict=True)
    )
    for update, options in UPDATES.items():
        new_weights, new_state = _update(
            options, values_of(masters), _joined(gradients), values_of(state)
        )
        yield Case(
            f"{update}/{name}",
            numbers | options,
            shape([0] * len(sizes)) | arrays | {"state": state},
            {
                "masters": Expectation(np.where(touched, new_weights, masters), 2e-6, 5e-6),
                "state": Expectation(np.where(touched, new_state, state), 2e-6, 5e-6),
            },
        )


def _table(
    rows: int,
    dim: int,
    count: int,
    bags: int,
    value_type: str,
    *,
    even: bool,
    random: np.random.Generator,
) -> Table:
    def values(*shape: int) -> Array:
        return values_of(stored(random.standard_normal(shape), value_type))

    starts = np.linspace(0, count, bags + 1).astype(np.int64)
    if not even:
        starts[1:-1] = np.sort(random.integers(0, count + 1, bags - 1))
        if bags > 2:
            starts[1] = starts[2]
    return Table(
        weights=values(rows, dim),
        indices=random.integers(0, rows, count),
        factors=values(count),
        starts=starts,
        gradients=values(bags, dim),
    )


def _reduce(table: Table, mode: str) -> tuple[Array, Array]:
    """The results of the bags, and the positions of the largest values."""
    results = np.zeros(table.gradients.shape)
    positions = np.full(results.shape, -1)
    chosen = table.weights[table.indices]
    if mode != "max":
        np.add.at(results, table.bags(), table.scales(mode)[:, None] * chosen)
        return results, positions
    for bag, (begin, end) in enumerate(zip(table.starts[:-1], table.starts[1:], strict=True)):
        if begin < end:
            first, later = chosen[begin], chosen[begin + 1 : end]
            # A NaN counts only if it comes first; numpy takes any.
            rows = np.vstack([first, np.where(np.isnan(later), -np.inf, later)])
            positions[bag] = begin + np.argmax(rows, axis=0)
            results[bag] = np.max(rows, axis=0)
    return results, positions


def _gradients(table: Table, mode: str, positions: Array) -> Array:
    """Those with respect to the weights."""
    bags = table.bags()
    each = table.scales(mode)[:, None] * table.gradients[bags]
    if mode == "max":
        each = each * (positions[bags] == np.arange(bags.size)[:, None])
    sums = np.zeros(table.weights.shape)
    np.add.at(sums, table.indices, each)
    return sums


def _update(n: dict[str, float], w: Array, g: Array, state: Array) -> tuple[Array, Array]:
    """The weights and the state after a step, if all rows are named."""
    if "eps" in n:
        state = state + g * g
        return w - n["lr"] * g / (np.sqrt(state) + n["eps"]), state
    g = g + n["weight_decay"] * w
    if n["momentum"] == 0:
        return w - n["lr"] * g, state
    state = n["momentum"] * state + g
    return w - n["lr"] * state, state


def _joined(parts: object) -> Array:
    """All elements in one dimension."""
    return np.concatenate([np.ravel(part) for part in parts])  # type: ignore[attr-defined]
