# SPDX-License-Identifier: Apache-2.0
"""How far two outputs are apart, what is no matter of rounding, and which of two forms is faster."""

from __future__ import annotations

import math
import random

import pytest
import torch
from tests.golden import Golden
from tests.runtime_ext.tiny_models import Images

from xruntime.compilation.judge import (
    MAX_CALLS,
    MAX_SHORT_CALLS,
    MIN_PAIRS,
    MIN_TRIAL_S,
    TOLERANCES,
    Trial,
    difference,
    tolerance_for,
)
from xruntime.errors import CompilationError
from xruntime.threads.torch_modes import Autocast


def test_largest_difference_counts_against_the_largest_value(golden: Golden) -> None:
    expected = {"near": torch.tensor([1.0, -8.0]), "far": (torch.tensor([100.0, 0.0]), None)}
    seen = {"near": torch.tensor([1.5, -8.0]), "far": (torch.tensor([100.0, 1.0]), None)}
    found = difference(expected, seen, 0.1)
    assert found.where == "output['near']"
    assert (found.absolute, found.relative) == (0.5, 0.0625)
    assert found.allowed
    assert not difference(expected, seen, 0.01).allowed
    golden(str(found))


def test_equal_outputs_are_said_to_be_equal(golden: Golden) -> None:
    value = [torch.tensor([math.nan, math.inf, -math.inf, 2.0]), torch.zeros(0), torch.tensor(3)]
    found = difference(value, [tensor.clone() for tensor in value], 0.0)
    assert found.allowed
    golden(str(found))


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


def test_precision_may_differ_and_is_told(golden: Golden) -> None:
    found = difference(torch.ones(2, dtype=torch.bfloat16), torch.ones(2), 0.0)
    assert found.allowed
    golden(found.other_dtypes)


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
    seen = difference(values, padding, 0.05)
    assert (seen.allowed, seen.relative) == (True, pytest.approx(0.1, rel=1e-4))
    assert 0 < seen.typical < 0.025
    assert not difference(values, padding, 0.02).allowed
    # More than half of the tolerance everywhere leaves no room for outliers.
    assert difference(values, 1.04 * values, 0.05).allowed
    assert not difference(values, 1.04 * padding, 0.05).allowed
    # Another scale, and another row, are no outliers, and the output that is wrong is the one that is named.
    assert not difference(values, 1.1 * values, 0.05).allowed
    swapped = values.clone()
    swapped[3] = 1.2 * values[4]
    assert not difference(values, swapped, 0.05).allowed
    wrong = difference([values, values], [padding, 1.06 * values], 0.05)
    assert (wrong.allowed, wrong.where) == (False, "output[1]")


def test_another_temperature_is_no_outlier() -> None:
    logits = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert not difference(logits / 2.0, logits / 2.2, TOLERANCES[torch.bfloat16]).allowed


def judged(modules_s: list[float], code_s: list[float]) -> Trial:
    """Let the forms take turns of these times, again and again, until one is chosen."""
    trial = Trial("modules", "code")
    while trial.is_faster is None:
        times = modules_s if trial.next_form == "modules" else code_s
        trial.note(times[trial.calls // 2 % len(times)])
    return trial


@pytest.mark.parametrize(
    ("code_s", "faster"), [(0.0009, True), (0.00099, False), (0.001, False), (0.002, False)]
)
def test_a_form_takes_over_if_it_is_three_percent_faster(code_s: float, faster: bool) -> None:
    trial = judged([0.001], [code_s])
    assert (trial.is_faster, trial.calls) == (faster, 2 * MIN_PAIRS)
    assert trial.ratio == pytest.approx(0.001 / code_s)


def test_calls_that_other_work_delays_decide_nothing() -> None:
    delayed = judged(
        [0.0010, 0.0011, 0.0010, 0.0012], [0.0005, 0.0006, 0.0005, 0.0006, 0.05, 0.0005]
    )
    assert delayed.is_faster
    assert 1.03 <= delayed.interval[0] <= delayed.ratio <= delayed.interval[1]


def test_short_calls_outlast_a_moment_of_other_work() -> None:
    trial = judged([0.001], [0.0002, 0.008] * 10 + [0.0005] * 100)
    assert trial.is_faster
    assert trial.calls > MAX_CALLS


def test_what_no_trial_shows_is_no_gain() -> None:
    noise = judged([0.01, 0.02], [0.02, 0.009])
    assert (noise.is_faster, noise.calls) == (False, MAX_CALLS)
    short = judged([0.001, 0.002], [0.002, 0.0009])
    assert not short.is_faster
    assert short.calls == pytest.approx(MIN_TRIAL_S / 0.001475, abs=2)
    assert judged([0.00001, 0.00002], [0.00002, 0.000009]).calls == MAX_SHORT_CALLS
    # Long calls end it as soon as there is an interval.
    assert judged([0.3, 0.6], [0.6, 0.29]).calls == 2 * MIN_PAIRS


def test_the_interval_includes_the_median_nine_times_in_ten() -> None:
    generator, hits = random.Random(0), 0
    for _ in range(2000):
        trial = Trial("modules", "code")
        for _ in range(MAX_CALLS):
            trial.note(generator.lognormvariate(0.0 if trial.next_form == "modules" else -0.2, 0.3))
        low, high = trial.interval
        hits += low <= math.exp(0.2) <= high
    assert 0.89 < hits / 2000 < 0.97
