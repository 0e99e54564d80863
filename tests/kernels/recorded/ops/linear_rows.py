# SPDX-License-Identifier: Apache-2.0
"""Linear layers for few rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from tests.kernels.recorded.cases import ROUNDING, Case, Expectation, stored, values_of

TYPES = ("fp32", "bf16")
# Rows, inputs, outputs: lines and vectors that are whole, and not; rows of weights left over, rows longer than
# half the first-level cache, more rows than are multiplied at once; the last two are large enough for a team.
SHAPES = (
    *((1, 32, 4), (2, 33, 5), (3, 7, 3), (1, 1, 1), (5, 100, 9), (2, 0, 6), (0, 8, 4), (2, 8, 0)),
    *((3, 2600, 6), (1, 2051, 40), (2, 250, 300)),
)
BETWEEN_ROWS = 6e4
"""A value that no result may depend on."""


def cases() -> Iterator[Case]:
    random = np.random.default_rng(5)
    for value_type, weight_type, shape, biased in itertools.product(
        TYPES, TYPES, SHAPES, (False, True)
    ):
        rows, inputs, outputs = shape
        x = stored(random.standard_normal((rows, inputs)), value_type)
        weights = stored(random.standard_normal((outputs, inputs)), weight_type)
        bias = stored(random.standard_normal(outputs), weight_type)
        stride = inputs + 3
        spread = stored(np.full((rows, stride), BETWEEN_ROWS), value_type)
        spread[:, :inputs] = x
        wanted = values_of(x) @ values_of(weights).T + (values_of(bias) if biased else 0)
        numbers = {"rows": rows, "stride": stride, "inputs": inputs, "outputs": outputs}
        arrays = {
            "input": spread,
            "weights": weights,
            "output": stored(np.full((rows, outputs), 7), value_type),
        }
        # Sums whose terms cancel have fp32's error of the largest partial sum.
        largest = float(np.abs(wanted).max(initial=1))
        yield Case(
            f"linear_rows/{value_type}/{weight_type}/{'/'.join(map(str, shape))}/{biased:d}",
            numbers,
            arrays | ({"bias": bias} if biased else {}),
            {"output": Expectation(wanted, ROUNDING[value_type], 4e-6 * largest)},
        )
