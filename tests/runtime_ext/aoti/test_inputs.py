# SPDX-License-Identifier: Apache-2.0
"""What a package's C++ says of its inputs; where it says it in other words, nothing is known of them."""

from __future__ import annotations

import pytest
import torch
from tests.runtime_ext.aoti.archives import ROWS_OF_3

from xruntime.aoti.inputs import Inputs, InputSpec, input_specs

# And of what it writes for a number.
SOURCE = f"""{ROWS_OF_3}
    ConstantHandle arg1_1 = ConstantHandle(input_handles[1]);
    int32_t arg1_1_expected_dtype = aoti_torch_dtype_int64();
"""
ROWS = InputSpec(torch.float32, 2, {1: 3}, {0: 3, 1: 1})
NUMBER = InputSpec(torch.int64, 0, {}, {})


def test_inputs_are_found() -> None:
    assert input_specs([SOURCE], 2) == (ROWS, NUMBER)


@pytest.mark.parametrize(
    ("words", "others", "found"),
    [
        ("aoti_torch_dtype_float32()", "dtype_of<float>()", (None, NUMBER)),
        ("unmatched dim value at", "wrong size of dimension", (None, NUMBER)),
        ("dim value is too small at", "too few items in dimension", (None, NUMBER)),
        ("unmatched stride value at", "wrong stride of dimension", (None, NUMBER)),
        ("input_handles[", "inputs[", (None, None)),
    ],
)
def test_words_of_another_torch_leave_inputs_unchecked(
    words: str, others: str, found: tuple[InputSpec | None, ...]
) -> None:
    assert words in SOURCE
    specs = input_specs([SOURCE.replace(words, others)], 2)
    assert specs == found
    unchecked = sum(spec is None for spec in found)
    assert Inputs(((None, None), {}), specs).unchecked == f"{unchecked} of 2 inputs"
