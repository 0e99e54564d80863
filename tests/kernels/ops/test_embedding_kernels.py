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


class Call:
    """One table of 4 x 3 with two bags of two indices, all in one array of bytes."""

    def __init__(self) -> None:
        self.weights = (ctypes.c_float * 12)(*range(12))
        self.indices = (ctypes.c_int64 * 4)(0, 3, 1, 1)
        self.offsets = (ctypes.c_int64 * 2)(0, 2)
        self.output = (ctypes.c_float * 6)()
        self.gradients = (ctypes.c_float * 12)()
        self.state = (ctypes.c_float * 12)()
        self.table = CBagTable(
            rows=4,
            dim=3,
            index_count=4,
            bags=2,
            **{
                name: ctypes.addressof(getattr(self, name))
                for name in ("weights", "indices", "offsets", "output", "gradients", "state")
            },
        )
        self.bags = CBags(
            count=1,
            tables=ctypes.pointer(self.table),
            value_type=native.FLOAT32,
            index_type=1,
            mode=MODES["sum"],
        )
        self.problem = CBagProblem()

    def run(self, function: str = "xk_bags_forward", *numbers: float) -> int:
        call = getattr(native.library(), function)
        return int(call(ctypes.byref(self.bags), *numbers, ctypes.byref(self.problem)))


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
    call = Call()
    fields, problem = WRONG[wrong]
    for name, value in fields.items():
        setattr(call.bags if hasattr(call.bags, name) else call.table, name, value)
    before = list(call.weights)
    assert call.run("xk_bags_adagrad", 0.1, 1e-8) == problem
    assert list(call.weights) == before


def test_maxima_and_means_take_no_factors(built_library: Path) -> None:
    for mode in (MODES["mean"], MODES["max"]):
        call = Call()
        call.bags.mode = mode
        call.table.factors = ctypes.addressof(call.state)
        assert call.run() == ArgumentProblem.INVALID_MODE


def test_a_problem_names_table_position_and_value(built_library: Path) -> None:
    for name, position, value, code in (
        ("indices", 2, 4, ArgumentProblem.INVALID_INDEX),
        ("indices", 0, -1, ArgumentProblem.INVALID_INDEX),
        ("offsets", 0, 1, ArgumentProblem.INVALID_FIRST_OFFSET),
        ("offsets", 1, -1, ArgumentProblem.DECREASING_OFFSET),
        ("offsets", 1, 5, ArgumentProblem.LARGE_OFFSET),
    ):
        call = Call()
        getattr(call, name)[position] = value
        assert call.run() == code
        problem = call.problem
        assert (problem.table, problem.position, problem.value) == (0, position, value)
        assert not any(call.output)
