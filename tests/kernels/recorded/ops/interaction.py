# SPDX-License-Identifier: Apache-2.0
"""Pairwise dot products and their derivative."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from tests.kernels.recorded.cases import ROUNDING, Array, Case, Expectation, stored, values_of

# Inputs, batch, features: whole and odd vectors, one and few rows, tiles with rows left over; the
# last is large enough for a team.
SHAPES = (
    *((27, 5, 128), (5, 9, 33), (9, 3, 64), (8, 3, 131), (5, 3, 15), (2, 3, 1), (1, 4, 7)),
    *((3, 0, 5), (2, 3, 0), (6, 700, 21)),
)
BETWEEN_ROWS = 6e4
"""A value that no result may depend on."""


def cases() -> Iterator[Case]:
    random = np.random.default_rng(2)
    for value_type, shape in itertools.product(ROUNDING, SHAPES):
        count, batch, features = shape
        inputs = stored(random.standard_normal(shape), value_type)
        strides = [features + i % 3 for i in range(count)]
        padded = [
            _with_gaps(one, stride, value_type) for one, stride in zip(inputs, strides, strict=True)
        ]
        shared = {
            "inputs": np.concatenate(padded),
            "strides": np.array(strides, dtype="<i8"),
        }
        numbers = {"batch": batch, "features": features}
        x = values_of(inputs)
        rows, columns = np.tril_indices(count, -1)
        wanted = np.hstack([x[0], np.sum(x[rows] * x[columns], axis=2).T])
        output = stored(np.full(wanted.shape, 7), value_type)
        name = "/".join([value_type, *map(str, shape)])
        # Products that cancel have fp32's error of the largest term.
        tolerance = ROUNDING[value_type], 2e-5
        yield Case(
            f"interaction/{name}",
            numbers,
            shared | {"output": output},
            {"output": Expectation(wanted, *tolerance)},
        )
        gradient = stored(random.standard_normal(wanted.shape), value_type)
        g = values_of(gradient)
        pairs = np.zeros((batch, count, count))
        pairs[:, rows, columns] = pairs[:, columns, rows] = g[:, features:]
        gradients = np.einsum("bij,jbf->ibf", pairs, x)
        gradients[0] += g[:, :features]
        yield Case(
            f"interaction_backward/{name}",
            numbers,
            shared | {"gradient": gradient, "gradients": np.full_like(inputs, 7)},
            {"gradients": Expectation(gradients, *tolerance)},
        )


def _with_gaps(rows: Array, stride: int, value_type: str) -> Array:
    """The rows at a distance of `stride`, in one dimension."""
    spread = stored(np.full((len(rows), stride), BETWEEN_ROWS), value_type)
    spread[:, : rows.shape[1]] = rows
    return spread.ravel()
