# SPDX-License-Identifier: Apache-2.0
"""How far two outputs are apart, and what is no matter of rounding."""

from __future__ import annotations

import math

import pytest
import torch
from tests.runtime_ext.tiny_models import Images

from xruntime.compilation.accuracy import TOLERANCES, difference, tolerance_for
from xruntime.errors import CompilationError
from xruntime.threads.torch_modes import Autocast


def test_largest_difference_counts_against_the_largest_value() -> None:
    expected = {"near": torch.tensor([1.0, -8.0]), "far": (torch.tensor([100.0, 0.0]), None)}
    seen = {"near": torch.tensor([1.5, -8.0]), "far": (torch.tensor([100.0, 1.0]), None)}
    found = difference(expected, seen, 0.1)
    assert found.where == "output['near']"
    assert (found.absolute, found.relative) == (0.5, 0.0625)
    assert found.allowed
    assert not difference(expected, seen, 0.01).allowed
    assert "0.5, 0.062 of the largest value, in output['near']" in str(found)


def test_equal_outputs_are_said_to_be_equal() -> None:
    value = [torch.tensor([math.nan, math.inf, -math.inf, 2.0]), torch.zeros(0), torch.tensor(3)]
    found = difference(value, [tensor.clone() for tensor in value], 0.0)
    assert found.allowed
    assert str(found) == "the outputs are equal"


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        (torch.tensor([1.0]), torch.tensor([math.nan])),
        (torch.tensor([math.inf]), torch.tensor([-math.inf])),
        (torch.tensor([3]), torch.tensor([4])),
        (torch.tensor([True]), torch.tensor([False])),
        (torch.tensor([0.0]), torch.tensor([1e-9])),
    ],
)
def test_what_no_rounding_explains(expected: torch.Tensor, seen: torch.Tensor) -> None:
    found = difference(expected, seen, 1e9)
    assert math.isinf(found.relative)
    assert not found.allowed
    assert "differs by more than rounding" in str(found)
    assert difference(expected, seen, math.inf).allowed


def test_precision_may_differ_and_is_told() -> None:
    found = difference(torch.ones(2, dtype=torch.bfloat16), torch.ones(2), 0.0)
    assert found.allowed
    assert (
        found.other_dtypes == "output is torch.float32 there and torch.bfloat16 in the eager module"
    )


@pytest.mark.parametrize(
    ("expected", "seen", "text"),
    [
        (torch.ones(2), torch.ones(3), r"tensor \(2,\).*tensor \(3,\)"),
        (torch.ones(2), torch.ones(2, dtype=torch.int32), "float32.*int32"),
        ((torch.ones(2),), (torch.ones(2), None), "tuple of 1.*tuple of 2"),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "keys 'a'.*keys 'b'"),
        ((torch.ones(2),), (None,), r"output\[0\] is a tensor \(2,\).*None"),
    ],
)
def test_other_forms_are_refused(expected: object, seen: object, text: str) -> None:
    with pytest.raises(CompilationError, match=text):
        difference(expected, seen, 1.0)


def test_coarsest_precision_in_use_sets_the_tolerance() -> None:
    model = Images()
    assert tolerance_for(model.parameters(), None) == TOLERANCES[torch.float32]
    half = tolerance_for(model.parameters(), Autocast(torch.float16, True))
    assert half == TOLERANCES[torch.float16]
    assert tolerance_for(model.bfloat16().parameters(), None) == TOLERANCES[torch.bfloat16]
    assert tolerance_for((), None) == TOLERANCES[torch.float32]


def test_outliers_are_allowed_where_the_root_mean_square_is_small() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(32, 40, 64, generator=generator)
    largest = values.abs().max()
    padding = values.clone()
    padding[3, 20] += 0.1 * largest
    seen = difference(values, padding, 0.05, outliers=4.0)
    assert (seen.allowed, seen.relative) == (True, pytest.approx(0.1, rel=1e-4))
    assert 0 < seen.typical < 0.05
    assert not difference(values, padding, 0.05).allowed
    assert not difference(values, padding, 0.05, outliers=1.5).allowed
    # Another scale, and another row, are no outliers, and the output that is wrong is the one that is named.
    assert not difference(values, 1.1 * values, 0.05, outliers=4.0).allowed
    swapped = values.clone()
    swapped[3] = 1.2 * values[4]
    assert not difference(values, swapped, 0.05, outliers=4.0).allowed
    wrong = difference([values, values], [padding, 1.06 * values], 0.05, outliers=4.0)
    assert (wrong.allowed, wrong.where) == (False, "output[1]")
