# SPDX-License-Identifier: Apache-2.0
"""What optimize() refuses: one error that names what to do, and the model stays as it was."""

from __future__ import annotations

import inspect
import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.golden import Golden
from tests.runtime_ext.optimization.test_optimized_modules import SAMPLE, Small, snapshot
from tests.runtime_ext.tiny_models import Chance
from torch import Tensor, nn

from xruntime import optimize
from xruntime.compilation.samples import Sample
from xruntime.errors import CompilationError, OptimizationError, SampleError
from xruntime.optimization import PassOutcome, explain
from xruntime.optimization.arguments import live_call


class Numbered(nn.Module):
    """Its result depends on what the module does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        return values * next(NUMBERS)


NUMBERS = itertools.count(1)


def refused(error: type[Exception], text: str, model: Any, **arguments: Any) -> None:
    before = snapshot(model) if isinstance(model, nn.Module) else None
    for inplace in (False, True):
        with pytest.raises(error, match=text):
            optimize(model, inplace=inplace, **arguments)
    if before is not None:
        assert snapshot(model) == before


def test_arguments(golden: Golden) -> None:
    wrong: list[dict[str, Any]] = [
        {"level": "O2"}, {"graph": "jit"}, {"passes": {"fold": True}}, {"passes": {"dropout": "no"}},
        {"passes": ["dropout"]}, {"tolerance": -1.0}, {"tolerance": float("nan")}, {"tolerance": "small"},
        {"dtype": torch.int8}, {"level": "O0", "dtype": torch.bfloat16}, {"measure": True}, {"graph": "compile"},
        {"graph": "compile_cpp"},
    ]  # fmt: skip
    golden.errors(*[partial(optimize, Small(), **arguments) for arguments in wrong])
    golden.errors(  # what torch says of them differs from version to version
        lambda: optimize(Small(), sample_input=SAMPLE.double()),
        lambda: optimize(Small(), sample_input={"pictures": SAMPLE}),
        hide=r"(?<=with the sample ).*(?=; args|: give)",
    )


def test_options_by_name() -> None:
    signature = inspect.signature(optimize)
    given = signature.bind(nn.Linear(2, 2), optimizer=None, level="O0", weight_bits=8)
    given.apply_defaults()
    assert given.arguments["graph"] == "auto"
    assert given.arguments["keep_weights"] is True
    # Neither misspelt ones, nor fields that optimize() fills in itself.
    for name in ("grap", "training", "call", "autocast_outputs"):
        with pytest.raises(TypeError, match=rf"^optimize\(\) got an unexpected .* '{name}'$"):
            optimize(nn.Linear(2, 2).eval(), **{name: None})


def test_what_is_no_sample() -> None:
    meta = SAMPLE.to("meta")
    refused(SampleError, r"args\[0\] of the sample is on meta", Small(), sample_input=meta)
    refused(SampleError, r"this is a list", Small(), sample_input=[SAMPLE])
    refused(SampleError, r"holds no tensor", Small(), sample_input=(1, 2))


def test_models() -> None:
    refused(OptimizationError, r"takes a torch.nn.Module, and this is a function", lambda x: x)
    half_trained = Small()
    half_trained.body[3].train()
    refused(
        OptimizationError,
        r"Small is in training mode \(body.3\): call .eval\(\) on it first, or give its optimizer",
        half_trained,
    )
    refused(CompilationError, r"weights on meta", nn.Linear(2, 2, device="meta").eval())
    replaced = Small()
    replaced.forward = lambda images: images  # type: ignore[method-assign]
    refused(OptimizationError, r"forward was replaced on this Small object", replaced)
    refused(
        OptimizationError,
        r"Numbered computes something else in each call.*tolerance=float\('inf'\)",
        Numbered(),
        sample_input=torch.ones(3),
    )
    optimize(Numbered(), sample_input=torch.ones(3), graph="none", tolerance=float("inf"))
    torch.manual_seed(3)
    fast = optimize(Chance(), sample_input=torch.zeros(3), graph="none")
    drawn = fast(torch.zeros(3))
    torch.manual_seed(3)
    assert torch.equal(drawn, Chance()(torch.zeros(3)))


def test_a_forward_that_is_no_method_of_the_module() -> None:
    for kind in (staticmethod, classmethod):
        model = type("Small", (nn.Linear,), {"forward": kind(lambda *values: values[-1])})(2, 2)
        refused(OptimizationError, "make it a method of the module", model.eval())


@pytest.mark.long
def test_parts_that_are_optimized_or_have_no_weights_yet() -> None:
    inner = optimize(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), passes={"dropout": False})
    holder = nn.Sequential(inner, nn.Linear(4, 4)).eval()
    refused(OptimizationError, "0 of this Sequential is optimized already", holder)
    lazy = nn.Sequential(nn.LazyLinear(4)).eval()
    for arguments in ({}, {"sample_input": torch.randn(2, 4)}):
        with pytest.raises(OptimizationError, match=r"0\.weight of this Sequential gets"):
            optimize(lazy, **arguments)


def test_modules_that_are_compiled_or_scripted() -> None:
    linear, sample = nn.Linear(2, 2).eval(), torch.ones(3, 2)
    with pytest.raises(CompilationError, match="is a TorchScript module"):
        optimize(torch.jit.trace(linear, sample))
    optimized = optimize(linear, graph="none")
    with pytest.raises(OptimizationError, match="frozen: script the original module"):
        torch.jit.script(nn.Sequential(optimized))
    with pytest.raises(OptimizationError, match="is optimized already"):
        optimize(torch.compile(optimized))
    linear.compile()
    with pytest.raises(CompilationError, match=r"torch.compile wrapped in Python"):
        optimize(linear)


def test_forms_of_samples() -> None:
    mask = torch.ones(2)
    assert live_call(SAMPLE) == Sample((SAMPLE,), {})
    assert live_call((SAMPLE, mask)) == Sample((SAMPLE, mask), {})
    assert live_call({"images": SAMPLE}) == Sample((), {"images": SAMPLE})
    assert live_call(((SAMPLE,), {"mask": mask})) == Sample((SAMPLE,), {"mask": mask})
    assert live_call(((), {"mask": mask})) == Sample((), {"mask": mask})
    assert live_call((SAMPLE, {"mask": mask})) == Sample((SAMPLE, {"mask": mask}), {})


class Fragile(nn.Module):
    """Fails where a pass has changed something that its code reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.25)
        self.norm = nn.BatchNorm1d(4)
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        assert self.drop.p == 0.25
        hidden: Tensor = self.norm(self.linear(values))
        if self.linear.weight.dtype != torch.float32:
            raise TypeError("weights are not float32")
        return hidden + self.norm.running_mean


def test_pass_after_which_the_model_fails_is_undone() -> None:
    model, sample = Fragile(), torch.randn(3, 4)
    optimized = optimize(model, sample_input=sample, graph="none", dtype=torch.bfloat16)
    found = explain(optimized)
    assert found.step("dropout").outcome is PassOutcome.APPLIED
    assert found.step("linear_bn").outcome is PassOutcome.SKIPPED
    assert found.step("precision").outcome is PassOutcome.APPLIED
    step = found.step("weights")
    assert step.outcome is PassOutcome.UNDONE
    assert "the model fails: TypeError: weights are not float32" in step.reason
    torch.testing.assert_close(optimized(sample), model(sample), rtol=0.05, atol=0.05)


def test_pass_that_changes_too_much_is_undone() -> None:
    model, sample = Small(), SAMPLE
    optimized = optimize(
        model, sample_input=sample, graph="none", dtype=torch.bfloat16, tolerance=1e-5
    )
    step = explain(optimized).step("precision")
    assert step.outcome is PassOutcome.UNDONE
    assert "the outputs differ: the largest difference is" in step.reason
    assert explain(optimized).step("weights").outcome is PassOutcome.SKIPPED
    torch.testing.assert_close(optimized(sample), model(sample), rtol=1e-4, atol=1e-5)


class Collecting(nn.Module):
    """Changes the list and the object that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.eval()

    def forward(self, values: Tensor, found: list[Tensor], counter: SimpleNamespace) -> Tensor:
        outputs = self.linear(values) + counter.steps
        found.append(outputs)
        counter.steps += 1
        return outputs


def test_the_samples_objects_are_not_changed() -> None:
    sample = torch.randn(2, 4), [], SimpleNamespace(steps=torch.zeros(4))
    optimize(Collecting(), sample_input=sample, graph="none")
    assert sample[1] == []
    assert not sample[2].steps.any()


class Force(nn.Module):
    """Its output is a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.eval()

    def forward(self, positions: Tensor) -> Tensor:
        positions.requires_grad_()
        return torch.autograd.grad(self.linear(positions).tanh().sum(), positions)[0]


def test_model_that_needs_gradients() -> None:
    with pytest.raises(OptimizationError, match=r"Force needs gradients.*torch\.enable_grad\(\)$"):
        optimize(Force(), sample_input=torch.randn(5, 3))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_nested_tensors_within_a_model_and_among_its_outputs() -> None:
    class Nesting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.eval()

        def forward(self, values: Tensor) -> Tensor:
            return self.linear(torch.nested.as_nested_tensor([values, values[:1]]))  # type: ignore[no-any-return]

    model, values = Nesting(), torch.randn(2, 4)
    optimized = optimize(model, sample_input=values, graph="none")
    for found, expected in zip(optimized(values).unbind(), model(values).unbind(), strict=True):
        torch.testing.assert_close(found, expected)
