# SPDX-License-Identifier: Apache-2.0
"""What an optimized module promises: the input is untouched, state_dict is plain, the rest is refused."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from tests.runtime_ext.optimization.test_folded_norms import randomized
from torch import Tensor, nn

from xruntime import optimize
from xruntime.errors import OptimizationError
from xruntime.optimization import PassOutcome, explain


class Small(nn.Module):
    """Something for every pass: norms to fold, dropouts, and three linears with one input."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3), randomized(nn.BatchNorm2d(width)), nn.ReLU(), nn.Dropout2d()
        )
        self.wide = nn.Linear(width, 2 * width)
        self.wide_norm = randomized(nn.BatchNorm1d(2 * width))
        self.queries, self.keys = nn.Linear(2 * width, 5), nn.Linear(2 * width, 4, bias=False)
        self.values = nn.Linear(2 * width, 3)
        self.norm = nn.LayerNorm(12)
        self.register_buffer("scale", torch.full((12,), 2.0), persistent=False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        features = self.wide_norm(self.wide(self.body(images).mean((2, 3))))
        parts = self.queries(features), self.keys(features), self.values(features)
        return self.norm(torch.cat(parts, 1)) * self.scale


SAMPLE = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def snapshot(model: nn.Module) -> list[Any]:
    """What must not change in a model: modules, their attributes, and tensors with their layouts."""
    found: list[Any] = [type(model)]
    for name, module in model.named_modules():
        found += [name, type(module), id(module), sorted(module.__dict__), module.training]
    for name, value in model.state_dict(keep_vars=True).items():
        found += [name, id(value), value.stride(), value.dtype]
        found += [] if value.is_meta else [value.tolist()]
    return found


def test_all_passes_and_the_explanation() -> None:
    model = Small()
    before = snapshot(model)
    optimized = optimize(model, sample_input=SAMPLE, graph="none", dtype=torch.bfloat16)
    assert snapshot(model) == before
    found = explain(optimized)
    assert [step.name for step in found.steps] == [
        *("no_grad", "dropout", "conv_bn", "linear_bn", "channels_last", "precision", "weights"),
        *("join_linears", "graph"),
    ]
    skipped = [step.name for step in found.steps if step.outcome is not PassOutcome.APPLIED]
    assert skipped == ["graph"]
    assert f"compared with the model on the sample: {found.difference}" in str(found)
    assert found.bytes_after < found.bytes_before
    assert found.difference.allowed
    text = str(found)
    assert "join_linears: applied: joined 3 linears into 1" in text
    assert "memory of weights: " in text
    torch.testing.assert_close(optimized(SAMPLE), model(SAMPLE), rtol=0, atol=0.2)
    assert optimized(SAMPLE).dtype == torch.float32
    assert not optimized(SAMPLE).requires_grad
    assert optimized.norm.weight.dtype == torch.float32
    assert optimized.wide.weight.dtype == torch.bfloat16
    assert isinstance(optimized, Small)
    assert inspect.signature(optimized.forward) == inspect.signature(model.forward)


SWITCHES = ["dropout", "conv_bn", "linear_bn", "channels_last", "join_linears", "no_grad"]


@pytest.mark.parametrize("name", SWITCHES)
def test_each_pass_alone_and_switched_off(name: str) -> None:
    model = Small()
    expected = copy.deepcopy(model).double()
    expected.scale = expected.scale.double()
    alone = optimize(model, sample_input=SAMPLE, level="O0", passes={name: True})
    applied = [s.name for s in explain(alone).steps if s.outcome is PassOutcome.APPLIED]
    assert applied == [name]
    wanted = expected(SAMPLE.double())
    torch.testing.assert_close(alone(SAMPLE).double(), wanted, rtol=1e-4, atol=1e-5)
    without = optimize(model, sample_input=SAMPLE, graph="none", passes={name: False})
    step = explain(without).step(name)
    assert (step.outcome, step.reason) == (PassOutcome.SKIPPED, "switched off")
    torch.testing.assert_close(without(SAMPLE).double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision(dtype: torch.dtype) -> None:
    model = Small()
    tolerance = 5e-2 if dtype is torch.bfloat16 else 6e-3
    for stored in (True, False):
        optimized = optimize(
            model,
            sample_input=SAMPLE,
            graph="none",
            dtype=dtype,
            passes={"weights": stored},
        )
        expected = model(SAMPLE)
        difference = (optimized(SAMPLE) - expected).abs().max() / expected.abs().max()
        assert 0 < difference < tolerance


def test_level_0_changes_nothing() -> None:
    model = Small()
    before = snapshot(model)
    optimized = optimize(model, sample_input=SAMPLE, level="O0")
    assert snapshot(model) == before
    assert type(optimized) is Small
    assert torch.equal(optimized(SAMPLE), model(SAMPLE))
    assert {step.outcome for step in explain(optimized).steps} == {PassOutcome.SKIPPED}
    assert {step.reason for step in explain(optimized).steps} == {"level O0"}
    optimized.train()
    optimized.load_state_dict(model.state_dict())


def test_inplace_changes_the_model_itself() -> None:
    model, same = Small(), Small()
    same.load_state_dict(model.state_dict())
    weights = copy.deepcopy(model.state_dict())
    optimized = optimize(model, sample_input=SAMPLE, graph="none", inplace=True)
    assert optimized is model
    torch.testing.assert_close(model(SAMPLE), same(SAMPLE))
    assert type(model.body[1]) is not nn.BatchNorm2d
    torch.testing.assert_close(dict(model.state_dict()), dict(weights), rtol=0, atol=0)

    dropped = optimize(same, sample_input=SAMPLE, graph="none", inplace=True, keep_weights=False)
    assert explain(dropped).bytes_kept == 0
    with pytest.raises(OptimizationError, match=r"dropped.*call state_dict\(\) before optimize"):
        dropped.state_dict()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_state_dict_is_the_inputs(dtype: torch.dtype | None) -> None:
    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, graph="none", dtype=dtype)
    saved = optimized.state_dict()
    expected = model.state_dict()
    assert list(saved) == list(expected)
    for name, value in expected.items():
        assert torch.equal(saved[name], value), name
        assert saved[name].dtype == value.dtype
        assert not saved[name].requires_grad
    assert saved._metadata == expected._metadata
    fresh = Small()
    fresh.load_state_dict(saved)
    assert torch.equal(fresh(SAMPLE), model(SAMPLE))
    # As a part of another module.
    whole = nn.ModuleDict({"part": optimized, "more": nn.Linear(2, 2)})
    names = {f"part.{name}" for name in expected} | {"more.weight", "more.bias"}
    assert set(whole.state_dict()) == names
    with pytest.raises(OptimizationError, match="frozen: load them into the original module"):
        whole.load_state_dict(whole.state_dict())


def test_original_that_changes_is_noticed() -> None:
    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, graph="none")
    before = optimized(SAMPLE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert torch.equal(optimized(SAMPLE), before)
    theirs = {it.untyped_storage().data_ptr() for it in model.parameters()}
    assert not theirs & {it.untyped_storage().data_ptr() for it in optimized.parameters()}
    with pytest.raises(OptimizationError, match=r"body.0.weight of the original model was changed"):
        optimized.state_dict()


def test_what_would_change_a_frozen_module_is_refused() -> None:
    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, graph="none")

    def refused(text: str, change: Any) -> None:
        with pytest.raises(OptimizationError, match=f"an optimized module is frozen: {text}"):
            change()

    refused("load them into the original", lambda: optimized.load_state_dict(model.state_dict()))
    refused("train the original", optimized.train)
    refused("convert or move", optimized.double)
    refused("convert or move", lambda: optimized.to("meta"))
    refused(r"torch.compile\(model\) compiles its calls", optimized.compile)
    refused("copy the original", lambda: copy.deepcopy(optimized))
    refused("save state_dict", lambda: pickle.dumps(optimized))
    refused("share the original", optimized.share_memory)
    assert optimized.eval() is optimized
    assert optimized.to("cpu") is optimized.float() is optimized.cpu()
    with pytest.raises(OptimizationError, match=r"optimized already: give optimize\(\) the orig"):
        optimize(optimized)
    with pytest.raises(OptimizationError, match="was not returned by"):
        explain(model)


@dataclass
class Answer:
    scores: Tensor
    parts: dict[str, Any]


class Fields(NamedTuple):
    left: Tensor
    right: Any


class Structured(nn.Module):
    """Takes keyword arguments and returns a dataclass with nests."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.wrong = False
        self.eval()

    def forward(self, values: Tensor, *, extra: dict[str, Tensor], flag: bool = False) -> Answer:
        scores = self.linear(values) + extra["shift"]
        if flag:
            scores = -scores
        return Answer(scores, {"fields": Fields(scores * 2, [scores.argmax(-1), None])})


def test_keyword_arguments_and_dataclasses() -> None:
    model = Structured()
    call = ((torch.randn(3, 4),), {"extra": {"shift": torch.randn(4)}, "flag": True})
    optimized = optimize(model, sample_input=call, graph="none", dtype=torch.bfloat16)
    assert explain(optimized).step("weights").outcome is PassOutcome.APPLIED
    args, kwargs = call
    answer, expected = optimized(*args, **kwargs), model(*args, **kwargs)
    assert type(answer) is Answer
    assert type(answer.parts["fields"]) is Fields
    torch.testing.assert_close(answer.scores, expected.scores, rtol=0.05, atol=0.05)
    assert answer.parts["fields"].left.dtype == torch.float32
    # Differences inside of a dataclass are found.
    strict = optimize(model, sample_input=call, graph="none", dtype=torch.bfloat16, tolerance=1e-6)
    step = explain(strict).step("precision")
    assert step.outcome is PassOutcome.UNDONE
    assert "output['scores']" in step.reason or "output['parts']" in step.reason
    assert torch.equal(strict(*args, **kwargs).scores, expected.scores)


def test_samples_are_not_written() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)).eval()
    sample = torch.randn(3, 4)
    before = sample.clone()
    optimize(model, sample_input=sample, graph="none")
    assert torch.equal(sample, before)


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(10, 8)
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.tokens.weight
            self.eval()

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.tokens(ids))

    model, ids = Tied(), torch.randint(0, 10, (2, 5))
    optimized = optimize(model, sample_input=ids, graph="none", dtype=torch.bfloat16)
    assert optimized.head.weight is optimized.tokens.weight
    assert optimized.head.weight.dtype == torch.bfloat16
    assert explain(optimized).bytes_after * 2 == explain(optimized).bytes_before
    saved = optimized.state_dict()
    assert torch.equal(saved["head.weight"], model.head.weight)
    fresh = Tied()
    fresh.load_state_dict(saved)
    assert torch.equal(fresh(ids), model(ids))


def test_hooks_of_the_model_itself_run() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    model.register_forward_hook(lambda _module, _args, output: output + 1)
    sample = torch.randn(2, 4)
    optimized = optimize(model, sample_input=sample, graph="none")
    torch.testing.assert_close(optimized(sample), model(sample))
    optimized.register_forward_pre_hook(lambda _module, args: (args[0] * 2,))
    torch.testing.assert_close(optimized(sample), model(sample * 2))


def test_inference_mode_of_the_caller_does_not_matter() -> None:
    model = Small()
    with torch.inference_mode():
        optimized = optimize(model, sample_input=SAMPLE.clone(), graph="none", dtype=torch.bfloat16)
        inside = optimized(SAMPLE)
    assert not any(p.is_inference() for p in optimized.parameters())
    torch.testing.assert_close(optimized(SAMPLE), inside)
    assert not optimized(SAMPLE).is_inference()
    assert torch.equal(optimized.state_dict()["wide.weight"], model.wide.weight)


def test_what_torch_compile_wrapped_is_optimized_itself() -> None:
    model = Small()
    optimized = optimize(torch.compile(model), sample_input=SAMPLE, graph="none")
    assert isinstance(optimized, Small)
    torch.testing.assert_close(optimized(SAMPLE), model(SAMPLE))


def test_autocast_of_the_caller_counts_without_dtype() -> None:
    model, sample = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), torch.randn(2, 4)
    optimized = optimize(model, sample_input=sample, graph="none")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(optimized(sample), model(sample))
        assert optimized(sample).dtype == torch.bfloat16
        full = optimize(model, sample_input=sample, graph="none", dtype=torch.float32)
        assert full(sample).dtype == torch.float32


def test_third_party_modules_are_left_alone() -> None:
    class Scaled(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values) * self.weight.dtype.itemsize

    model = nn.Sequential(Scaled(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).eval()
    sample = torch.randn(3, 4)
    optimized = optimize(model, sample_input=sample, graph="none", dtype=torch.bfloat16)
    assert type(optimized[0]) is Scaled
    assert optimized[0].weight.dtype == torch.float32
    assert optimized[2].weight.dtype == torch.bfloat16
    torch.testing.assert_close(optimized(sample), model(sample), rtol=0.05, atol=0.05)
