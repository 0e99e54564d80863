# SPDX-License-Identifier: Apache-2.0
"""What the native embedding bags refuse.

`recorded/ops/embedding.py` compares their results, on every instruction set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from xruntime import native


class Call:
    """One table of 4 x 3 with two bags of two indices, all in one array of bytes."""

    def __init__(self) -> None:
        self.weights = (ctypes.c_float * 12)(*range(12))
        self.indices = (ctypes.c_int64 * 4)(0, 3, 1, 1)
        self.offsets = (ctypes.c_int64 * 2)(0, 2)
        self.output = (ctypes.c_float * 6)()
        self.gradients = (ctypes.c_float * 12)()
        self.state = (ctypes.c_float * 12)()
        self.table = native.CBagTable(
            rows=4,
            dim=3,
            index_count=4,
            bags=2,
            **{
                name: ctypes.addressof(getattr(self, name))
                for name in ("weights", "indices", "offsets", "output", "gradients", "state")
            },
        )
        self.bags = native.CBags(
            count=1,
            tables=ctypes.pointer(self.table),
            value_type=native.FLOAT32,
            index_type=native.INT64,
            mode=native.BAG_SUM,
        )
        self.problem = native.CBagProblem()

    def run(self, function: str = "xk_bags_forward", *numbers: float) -> int:
        call = getattr(native.library(), function)
        return int(call(ctypes.byref(self.bags), *numbers, ctypes.byref(self.problem)))


def test_sums(built_library: Path) -> None:
    call = Call()
    assert call.run() == 0
    assert list(call.output) == [9, 11, 13, 6, 8, 10]


WRONG: dict[str, Callable[[Call], None]] = {
    "a negative count": lambda call: setattr(call.bags, "count", -1),
    "no tables": lambda call: setattr(call.bags, "tables", None),
    "an unknown value type": lambda call: setattr(call.bags, "value_type", 3),
    "an unknown index type": lambda call: setattr(call.bags, "index_type", 2),
    "an unknown mode": lambda call: setattr(call.bags, "mode", 3),
    "last offset without offsets": lambda call: (
        setattr(call.bags, "include_last_offset", 1),
        setattr(call.table, "offsets", None),
    )[0],
    "no columns": lambda call: setattr(call.table, "dim", 0),
    "negative rows": lambda call: setattr(call.table, "rows", -1),
    "too many rows": lambda call: setattr(call.table, "rows", 2**31),
    "too many indices": lambda call: setattr(call.table, "index_count", 2**31),
    "negative bags": lambda call: setattr(call.table, "bags", -1),
    "bags of unequal length": lambda call: (
        setattr(call.table, "offsets", None),
        setattr(call.table, "bags", 3),
    )[0],
    **{
        f"no {name}": lambda call, name=name: setattr(call.table, name, None)
        for name in ("weights", "indices", "output", "state")
    },
    "an odd address": lambda call: setattr(call.table, "weights", call.table.weights + 1),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_before_anything_changes(
    built_library: Path, wrong: str
) -> None:
    call = Call()
    WRONG[wrong](call)
    before = list(call.weights)
    assert call.run("xk_bags_adagrad", 0.1, 1e-8) == native.INVALID_ARGUMENT
    assert call.problem.kind == native.PROBLEM_NONE
    assert list(call.weights) == before


def test_maxima_and_means_take_no_factors(built_library: Path) -> None:
    for mode in (native.BAG_MEAN, native.BAG_MAX):
        call = Call()
        call.bags.mode = mode
        call.table.factors = ctypes.addressof(call.state)
        assert call.run() == native.INVALID_ARGUMENT


def test_a_problem_names_table_position_and_value(built_library: Path) -> None:
    for name, position, value, kind in (
        ("indices", 2, 4, native.PROBLEM_INDEX),
        ("indices", 0, -1, native.PROBLEM_INDEX),
        ("offsets", 0, 1, native.PROBLEM_FIRST),
        ("offsets", 1, -1, native.PROBLEM_DECREASING),
        ("offsets", 1, 5, native.PROBLEM_BEYOND),
    ):
        call = Call()
        getattr(call, name)[position] = value
        assert call.run() == native.INVALID_ARGUMENT
        problem = call.problem
        found = (problem.table, problem.position, problem.value, problem.kind)
        assert found == (0, position, value, kind)
        assert not any(call.output)
