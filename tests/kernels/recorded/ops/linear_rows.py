# SPDX-License-Identifier: Apache-2.0
"""Linear layers for few rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from tests.kernels.recorded.cases import ROUNDING, Case, Expectation, stored, values_of
from tests.kernels.recorded.packing import FORMATS, packed, rounding

TYPES = ("fp32", "bf16")
PACKED = {"packed8": 8, "packed4": 4}
"""Bits of weights that are packed."""
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
        TYPES, (*TYPES, *PACKED), SHAPES, (False, True)
    ):
        rows, inputs, outputs = shape
        x = stored(random.standard_normal((rows, inputs)), value_type)
        arrays, numbers = {}, {"rows": rows, "stride": inputs + 3}
        if bits := PACKED.get(weight_type):
            arrays["weights"], arrays["scales"], exact = packed(random, (outputs, inputs), bits)
            numbers["format"] = FORMATS[bits]
        else:
            arrays["weights"] = stored(random.standard_normal((outputs, inputs)), weight_type)
            exact = values_of(arrays["weights"])
        bias_type = "fp32" if bits else weight_type
        bias = stored(random.standard_normal(outputs), bias_type)
        stride = inputs + 3
        spread = stored(np.full((rows, stride), BETWEEN_ROWS), value_type)
        spread[:, :inputs] = x
        wanted = values_of(x) @ exact.T + (values_of(bias) if biased else 0)
        numbers |= {"inputs": inputs, "outputs": outputs}
        arrays |= {"input": spread, "output": stored(np.full((rows, outputs), 7), value_type)}
        # Sums whose terms cancel have fp32's error of the largest partial sum.
        largest = float(np.abs(wanted).max(initial=1))
        error = 4e-6 * largest + (rounding(values_of(x), exact) if bits else 0)
        yield Case(
            f"linear_rows/{value_type}/{weight_type}/{'/'.join(map(str, shape))}/{biased:d}",
            numbers,
            arrays | ({"bias": bias} if biased else {}),
            {"output": Expectation(wanted, ROUNDING[value_type], error)},
        )
