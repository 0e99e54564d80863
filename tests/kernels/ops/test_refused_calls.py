# SPDX-License-Identifier: Apache-2.0
"""What operators with plain arguments refuse, before anything changes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402

from xruntime.native import (  # noqa: E402
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    NO_ISA,
    PACKED4,
    PACKED8,
    ArgumentProblem,
    CWeights,
)

Load = Callable[[str], ctypes.CDLL]
Change = dict[int, Any]
TYPE, SIZE = ArgumentProblem.INVALID_TYPE, ArgumentProblem.INVALID_SIZE
POINTER, PROBABILITY = ArgumentProblem.INVALID_POINTER, ArgumentProblem.INVALID_PROBABILITY
GROUPS, ORDER = ArgumentProblem.INVALID_GROUPS, ArgumentProblem.INVALID_ORDER

MEMORY = torch.ones(64)
"""What all operators read and would write."""
AT = MEMORY.data_ptr()


def addresses(*given: int | None) -> Any:
    return (ctypes.c_void_p * len(given))(*given)


def numbers(*given: int) -> Any:
    return (ctypes.c_int64 * len(given))(*given)


INTERACTION = [addresses(AT, AT, AT), numbers(5, 5, 5), 3, 2, 5, FLOAT32, AT]
NO_INTERACTION: list[tuple[Change, ArgumentProblem]] = [
    ({0: None}, POINTER),
    ({0: addresses(AT, None, AT)}, POINTER),
    ({0: addresses(AT, AT + 2, AT)}, POINTER),
    ({1: None}, POINTER),
    ({2: 0}, SIZE),
    ({2: 2**15}, SIZE),
    ({3: -1}, SIZE),
    ({3: 2**41}, SIZE),
    ({4: -1}, SIZE),
    ({4: 2**31}, SIZE),
    ({5: 3}, TYPE),
    ({6: None}, POINTER),
]

OPERATORS: dict[str, tuple[list[Any], list[tuple[Change, ArgumentProblem]]]] = {
    "xk_dropout": (
        [AT, 5, FLOAT32, 0.5, 1, 2, AT],
        [
            ({0: None}, POINTER),
            ({1: -1}, SIZE),
            ({1: 2**41}, SIZE),
            ({2: 3}, TYPE),
            ({3: -0.1}, PROBABILITY),
            ({3: 1.1}, PROBABILITY),
            ({3: math.nan}, PROBABILITY),
            ({6: None}, POINTER),
        ],
    ),
    "xk_gelu": (
        [AT, None, 5, FLOAT32, 0, AT],
        [
            ({0: None}, POINTER),
            ({1: AT + 2}, POINTER),
            ({2: -1}, SIZE),
            ({2: 2**41}, SIZE),
            ({3: 3}, TYPE),
            ({5: None}, POINTER),
        ],
    ),
    "xk_interaction": (INTERACTION, NO_INTERACTION),
    "xk_interaction_backward": ([*INTERACTION, addresses(AT, AT, AT)], NO_INTERACTION),
    "xk_nms": (
        [AT, 0, 5, numbers(0, 1, 2, 3, 4), numbers(0, 5), 1, 0.5, AT],
        [
            ({0: None}, POINTER),
            ({2: -1}, SIZE),
            ({3: None}, POINTER),
            ({3: numbers(0, 1, 2, 3, 5)}, ORDER),
            ({3: numbers(0, 1, 2, 3, -1)}, ORDER),
            ({4: None}, POINTER),
            ({4: numbers(1, 5)}, GROUPS),
            ({4: numbers(0, 4)}, GROUPS),
            ({4: numbers(0, 6, 5), 5: 2}, GROUPS),
            ({5: -1}, SIZE),
            ({7: None}, POINTER),
        ],
    ),
    "xk_pack_weights": (
        [AT, FLOAT32, 4, 2, PACKED8, AT, AT],
        [
            ({1: 3}, TYPE),
            ({4: FLOAT32}, TYPE),
            ({2: -1}, SIZE),
            ({3: 2**31}, SIZE),
            ({0: None}, POINTER),
            ({5: AT + 1}, POINTER),
            ({6: None}, POINTER),
        ],
    ),
    "xk_unpack_weights": (
        [CWeights(AT, AT, PACKED8), 4, 2, BFLOAT16, AT],
        [
            ({0: None}, POINTER),
            ({0: CWeights(AT, None, PACKED4)}, POINTER),
            ({0: CWeights(AT, None, 0)}, TYPE),
            ({3: FLOAT16}, TYPE),
            ({1: -1}, SIZE),
            ({4: AT + 1}, POINTER),
        ],
    ),
}
"""Valid arguments of each operator, and changes of them with what is said."""


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [(name, *wrong) for name, (_, refused) in OPERATORS.items() for wrong in refused],
)
def test_a_wrong_argument_is_refused_before_anything_changes(
    load: Load, name: str, change: Change, problem: ArgumentProblem
) -> None:
    arguments = list(OPERATORS[name][0])
    for at, value in change.items():
        arguments[at] = value
    assert getattr(load(ISAS[-1]), name)(*arguments) == problem
    assert bool((MEMORY == 1).all())


@pytest.mark.parametrize("name", OPERATORS)
def test_valid_arguments_are_refused_without_an_instruction_set(load: Load, name: str) -> None:
    """The code comes after those of the arguments."""
    assert getattr(load("v9"), name)(*OPERATORS[name][0]) == NO_ISA
    assert bool((MEMORY == 1).all())
