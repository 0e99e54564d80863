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
BY_INPUT = {"fp32-by-input": "fp32", "bf16-by-input": "bf16"}
"""Types of weights that are stored as (inputs, outputs), behind `FIRST` other columns."""
FIRST = 5
# Rows, inputs, outputs: lines and vectors that are whole, and not; rows of weights left over, rows longer than
# half the first-level cache, more rows than are multiplied at once, several strips of outputs; the last three are
# large enough for a team.
SHAPES = (
    *((1, 32, 4), (2, 33, 5), (3, 7, 3), (1, 1, 1), (5, 100, 9), (2, 0, 6), (0, 8, 4), (2, 8, 0)),
    *((3, 2600, 6), (9, 21, 130), (1, 2051, 40), (2, 250, 300), (4, 35, 2211)),
)
BETWEEN_ROWS = 6e4
"""A value that no result may depend on."""


def cases() -> Iterator[Case]:
    random = np.random.default_rng(5)
    for value_type, weight_type, shape, biased in itertools.product(
        TYPES, (*TYPES, *PACKED, *BY_INPUT), SHAPES, (False, True)
    ):
        rows, inputs, outputs = shape
        x = stored(random.standard_normal((rows, inputs)), value_type)
        arrays, numbers = {}, {"rows": rows, "stride": inputs + 3}
        numbers |= {"weight_stride": 0, "first_weight": 0}
        if bits := PACKED.get(weight_type):
            arrays["weights"], arrays["scales"], exact = packed(random, (outputs, inputs), bits)
            numbers["format"] = FORMATS[bits]
        elif as_type := BY_INPUT.get(weight_type):
            columns = random.standard_normal((inputs, FIRST + outputs))
            columns[:, :FIRST] = BETWEEN_ROWS
            arrays["weights"] = stored(columns, as_type)
            exact = values_of(arrays["weights"])[:, FIRST:].T
            numbers |= {"weight_stride": FIRST + outputs, "first_weight": FIRST}
        else:
            arrays["weights"] = stored(random.standard_normal((outputs, inputs)), weight_type)
            exact = values_of(arrays["weights"])
        bias_type = "fp32" if bits else BY_INPUT.get(weight_type, weight_type)
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
