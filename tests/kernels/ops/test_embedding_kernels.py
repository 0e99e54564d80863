# SPDX-License-Identifier: Apache-2.0
"""What the native embedding bags refuse.

`recorded/ops/embedding.py` compares their results, on every instruction set.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from xruntime import native
from xruntime.native import ArgumentProblem

pytest.importorskip("torch")

from xruntime.nn.embedding_call import MODES, CBagProblem, CBags, CBagTable

WRONG: dict[str, tuple[dict[str, int | None], ArgumentProblem]] = {
    "a negative count": ({"count": -1}, ArgumentProblem.INVALID_SIZE),
    "no tables": ({"tables": None}, ArgumentProblem.INVALID_POINTER),
    "an unknown value type": ({"value_type": 3}, ArgumentProblem.INVALID_TYPE),
    "an unknown index type": ({"index_type": 2}, ArgumentProblem.INVALID_TYPE),
    "an unknown mode": ({"mode": 3}, ArgumentProblem.INVALID_MODE),
    "last offset without offsets": (
        {"include_last_offset": 1, "offsets": None},
        ArgumentProblem.INVALID_SIZE,
    ),
    "no columns": ({"dim": 0}, ArgumentProblem.INVALID_SIZE),
    "negative rows": ({"rows": -1}, ArgumentProblem.INVALID_SIZE),
    "too many rows": ({"rows": 2**31}, ArgumentProblem.INVALID_SIZE),
    "too many indices": ({"index_count": 2**31}, ArgumentProblem.INVALID_SIZE),
    "negative bags": ({"bags": -1}, ArgumentProblem.INVALID_SIZE),
    "bags of unequal length": ({"offsets": None, "bags": 3}, ArgumentProblem.INVALID_SIZE),
    **{
        f"no {name}": ({name: None}, ArgumentProblem.INVALID_POINTER)
        for name in ("weights", "indices", "output", "state")
    },
    "an odd address": ({"weights": 4097}, ArgumentProblem.INVALID_POINTER),
}
"""Fields of the call or its table, and what is said of them."""


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_before_anything_changes(
    built_library: Path, wrong: str
) -> None:
    """One table of 4 x 3 with two bags of two indices."""
    arrays = {
        "weights": (ctypes.c_float * 12)(*range(12)),
        "indices": (ctypes.c_int64 * 4)(0, 3, 1, 1),
        "offsets": (ctypes.c_int64 * 2)(0, 2),
        "output": (ctypes.c_float * 6)(),
        "state": (ctypes.c_float * 12)(),
    }
    addresses = {name: ctypes.addressof(array) for name, array in arrays.items()}
    table = CBagTable(rows=4, dim=3, index_count=4, bags=2, **addresses)
    bags = CBags(1, ctypes.pointer(table), native.FLOAT32, 1, MODES["sum"])
    fields, problem = WRONG[wrong]
    for name, value in fields.items():
        setattr(bags if hasattr(bags, name) else table, name, value)
    update, place = native.library().xk_bags_adagrad, CBagProblem()
    assert update(ctypes.byref(bags), 0.1, 1e-8, ctypes.byref(place)) == problem
    assert list(arrays["weights"]) == list(range(12))
    assert not any(arrays["state"])
