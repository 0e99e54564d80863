# SPDX-License-Identifier: Apache-2.0
"""The search for the operators that have to stay float."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.golden import Golden
from tests.runtime_ext.quantization.int8_models import Branches, Outlier, images
from torch import nn

from xruntime.errors import QuantizationError
from xruntime.quantization import (
    Autotuned,
    QuantConf,
    QuantizedModule,
    autotune,
    calibrate,
    convert,
)

pytestmark = pytest.mark.usefixtures("torchao")

Evaluate = Callable[[nn.Module], float]


def outlier() -> Outlier:
    torch.manual_seed(3)
    return Outlier()


def batches() -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(4)
    return [torch.randn(32, 16, generator=drawn) for _ in range(4)]


def signal_of(model: nn.Module) -> Evaluate:
    """Return the evaluation: 1 minus the relative error of the outputs, on data of its own."""
    values = torch.randn(256, 16, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = model(values)

    def evaluate(module: nn.Module) -> float:
        module.eval()
        with torch.no_grad():
            return 1 - ((module(values) - expected).norm() / expected.norm()).item()

    return evaluate


@pytest.fixture(scope="module")
def tuned(compiler: None, torchao: None) -> Autotuned:
    model = outlier()
    return autotune(model, batches(), signal_of(model), max_drop=0.02)


@pytest.mark.long
def test_the_harmful_operator_alone_stays_float(tuned: Autotuned) -> None:
    assert tuned.conf.names("float") == ["wide"]
    assert {"plain", "last"} <= set(tuned.conf.names("int8"))
    assert isinstance(tuned.module, QuantizedModule)
    evaluate = signal_of(outlier())
    assert tuned.float_accuracy == 1.0
    assert tuned.accuracy == pytest.approx(evaluate(tuned.module), abs=1e-6)
    assert tuned.accuracy >= 0.98


@pytest.mark.long
def test_the_recipe_that_was_found_needs_no_calibration(tuned: Autotuned) -> None:
    conf = tuned.conf.copy()
    with calibrate(outlier(), conf, batches()[0]) as observed:
        pass
    values = batches()[0]
    assert torch.equal(convert(observed).eager(values), tuned.module.eager(values))


@pytest.mark.long
def test_each_step_is_reported_with_its_accuracy(tuned: Autotuned) -> None:
    start, *others, compiled = tuned.steps
    assert (start.action, start.floats, start.allowed) == ("start", (), False)
    assert start.accuracy < 0.98
    assert (others[0].action, others[0].operator) == ("float", "wide")
    assert (compiled.action, compiled.accuracy) == ("compiled", tuned.accuracy)
    assert all(step.allowed == (step.accuracy >= 0.98) for step in tuned.steps)
    # The last attempt to put the operator back failed.
    assert ("int8", "wide", False) in [(s.action, s.operator, s.allowed) for s in others]
    lines = str(tuned).splitlines()
    assert lines[0] == "float: accuracy 1"
    assert len(lines) == len(tuned.steps) + 1
    assert "float wide: accuracy 0.9" in str(tuned)


@pytest.mark.full
def test_a_drop_that_is_allowed_changes_nothing(compiler: None) -> None:
    model = outlier()
    conf = QuantConf(keep_float=["last"])
    tuned = autotune(model, batches(), signal_of(model), max_drop=2.0, conf=conf)
    assert [step.action for step in tuned.steps] == ["start", "compiled"]
    assert tuned.conf.names("float") == ["last"]
    assert conf.operators["last"].kind == ""


def test_a_fusion_that_was_not_observed_is_calibrated_again() -> None:
    """With `left` in float the addition reads its output, which was not observed before."""
    model = Branches()
    with torch.no_grad():
        model.left.weight.mul_(10)

    def evaluate(module: nn.Module) -> float:
        return -float(sum(buffer.dtype == torch.int8 for buffer in module.buffers()))

    tuned = autotune(model, [images(8), images(8, 1)], evaluate, max_drop=1.0)
    assert tuned.conf.names("float") == ["left"]
    assert tuned.conf.operators["add"].inputs[0].value == "conv2d"
    assert [(s.action, s.operator, s.accuracy) for s in tuned.steps] == [
        ("start", "", -2.0),
        ("float", "left", -1.0),
        ("int8", "left", -2.0),
        ("compiled", "", -1.0),
    ]


def test_an_impossible_bound_is_an_error() -> None:
    """The evaluation gets worse with each call, so even the float graph drops too far."""
    calls: list[nn.Module] = []

    def evaluate(module: nn.Module) -> float:
        calls.append(module)
        return -float(len(calls))

    with pytest.raises(QuantizationError, match=r"no operator is left to turn back to float"):
        autotune(outlier(), batches()[:1], evaluate, max_drop=0.0)
    # Float; all in INT8; each of plain, mul, cat, wide and last turned back.
    assert len(calls) == 7


def test_wrong_arguments_are_refused(golden: Golden) -> None:
    given = {"calibration": batches(), "evaluate": lambda _: 1.0}
    golden.errors(
        lambda: autotune(outlier(), **{**given, "calibration": []}),
        lambda: autotune(outlier(), **{**given, "calibration": iter([1])}),
        lambda: autotune(outlier(), **given, max_drop=-1.0),
        lambda: autotune(outlier(), **{**given, "evaluate": lambda _: float("nan")}),
    )
