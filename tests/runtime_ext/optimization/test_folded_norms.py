# SPDX-License-Identifier: Apache-2.0
"""Batch norms that become part of the weights before them, and those that must not."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.golden import Golden
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from xruntime.errors import OptimizationError
from xruntime.kept import store as stores
from xruntime.optimization import PassOutcome, explain, optimize


def randomized(norm: Any) -> Any:
    """Give a batch norm statistics as after training."""
    with torch.no_grad():
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        if norm.affine:
            norm.weight.uniform_(0.5, 2)
            norm.bias.uniform_(-1, 1)
    return norm


def agree(model: nn.Module, optimized: nn.Module, sample: Tensor) -> None:
    """The optimized module computes what the model computes in fp64."""
    wide = copy.deepcopy(model).double()(sample.double())
    torch.testing.assert_close(optimized(sample).double(), wide, rtol=1e-4, atol=1e-5)


def outcome(optimized: nn.Module, name: str) -> PassOutcome:
    return explain(optimized).step(name).outcome


CONVOLUTIONS = [
    (nn.Conv1d(3, 5, 3, bias=False), nn.BatchNorm1d(5), (2, 3, 9)),
    (nn.Conv2d(4, 6, 3, groups=2, padding=1), nn.BatchNorm2d(6), (3, 4, 7, 5)),
    (nn.Conv2d(3, 7, 1, stride=2), nn.BatchNorm2d(7, affine=False), (1, 3, 5, 5)),
    (nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3), (2, 2, 4, 3, 5)),
    (nn.ConvTranspose2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), (2, 3, 4, 5)),
    (nn.Conv2d(3, 3, 3, padding="same", padding_mode="reflect"), nn.BatchNorm2d(3), (0, 3, 8, 8)),
]


@pytest.mark.parametrize(("first", "norm", "shape"), CONVOLUTIONS)
def test_convolutions(first: nn.Module, norm: nn.Module, shape: tuple[int, ...]) -> None:
    model = nn.Sequential(first, randomized(norm), nn.ReLU()).eval()
    sample = torch.randn(shape)
    optimized = optimize(model, sample_input=sample, graph="none")
    assert outcome(optimized, "conv_bn") is PassOutcome.APPLIED
    assert not any(type(m) is type(norm) for m in optimized.modules())
    agree(model, optimized, sample)
    # Without a sample torch.fx alone shows the order.
    unchecked = optimize(model)
    assert outcome(unchecked, "conv_bn") is PassOutcome.APPLIED
    agree(model, unchecked, sample)


def test_linear(golden: Golden) -> None:
    model = nn.Sequential(nn.Linear(5, 7), randomized(nn.BatchNorm1d(7)), nn.Tanh()).eval()
    sample = torch.randn(3, 5)
    optimized = optimize(model, sample_input=sample, graph="none")
    assert outcome(optimized, "linear_bn") is PassOutcome.APPLIED
    agree(model, optimized, sample)
    step = explain(optimize(model)).step("linear_bn")
    assert step.outcome is PassOutcome.SKIPPED
    golden(step.reason)


def test_norm_over_another_dimension_than_the_linears_outputs() -> None:
    model = nn.Sequential(nn.Linear(5, 7), randomized(nn.BatchNorm1d(7))).eval()
    sample = torch.randn(3, 7, 5)  # the norm is over dimension 1, not over the linear's outputs
    optimized = optimize(model, sample_input=sample, graph="none")
    assert "not two dimensions" in explain(optimized).step("linear_bn").reason
    agree(model, optimized, sample)


class Branching(nn.Module):
    """Its Python code depends on values, so torch.fx cannot trace it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.norm = randomized(nn.BatchNorm2d(4))
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        if images.sum() > 1e6:
            images = images / 2
        return torch.relu(self.norm(self.first(images)))


def test_order_is_watched_where_fx_cannot_trace(golden: Golden) -> None:
    model, sample = Branching(), torch.randn(2, 3, 6, 6)
    optimized = optimize(model, sample_input=sample, graph="none")
    step = explain(optimized).step("conv_bn")
    assert step.outcome is PassOutcome.APPLIED
    golden(step.reason)
    agree(model, optimized, sample)
    step = explain(optimize(model)).step("conv_bn")
    assert step.outcome is PassOutcome.SKIPPED
    assert "torch.fx cannot trace it (TraceError" in step.reason


def test_another_epsilon_of_a_folded_norm_is_refused() -> None:
    model, sample = Branching(), torch.randn(2, 3, 6, 6)
    optimized = optimize(model, sample_input=sample, graph="none")
    optimized.norm.eps = 0.5
    with pytest.raises(OptimizationError, match=r"norm\.eps was changed after optimize"):
        optimized(sample)


class Skipping(Branching):
    """Its batch norm is used in some calls."""

    def forward(self, images: Tensor, norm: bool = True) -> Tensor:
        features = self.first(images)
        return self.norm(features) if norm and len(images) > 1 else features


def test_call_that_skips_a_folded_norm_is_refused() -> None:
    model, sample = Skipping(), torch.randn(2, 3, 6, 6)
    optimized = optimize(model, sample_input=sample, graph="none")
    assert outcome(optimized, "conv_bn") is PassOutcome.APPLIED
    for _ in range(2):
        agree(model, optimized, sample)
        for call in ((sample, False), (sample[:1],)):
            with pytest.raises(OptimizationError, match="a call skips norm, which the sample's"):
                optimized(*call)
    optimized = optimize(model, sample_input=sample, graph="none", passes={"conv_bn": False})
    torch.testing.assert_close(optimized(sample[:1]), model(sample[:1]), check_stride=False)


@pytest.mark.long
def test_compiled_call_that_skips_a_folded_norm_is_refused(
    compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stores.VARIABLE, str(tmp_path))
    monkeypatch.setattr("xruntime.compilation.judge.Trial.is_faster", True)
    model, sample = Skipping(), torch.randn(2, 3, 6, 6)
    optimized = optimize(model, sample_input=sample, wait=True)
    assert outcome(optimized, "graph") is PassOutcome.APPLIED
    for _ in range(2):
        agree(model, optimized, sample)
        for call in ((sample, False), (sample[:1],)):
            with pytest.raises(OptimizationError, match="a call skips norm"):
                optimized(*call)


def test_linear_before_a_norm_is_called_with_another_number_of_dimensions() -> None:
    model = nn.Sequential(nn.Linear(7, 7), randomized(nn.BatchNorm1d(7))).eval()
    optimized = optimize(model, sample_input=torch.randn(3, 7), graph="none")
    assert outcome(optimized, "linear_bn") is PassOutcome.APPLIED
    with pytest.raises(
        OptimizationError, match="1: 2 dimensions were expected, as in the sample's call"
    ):
        optimized(torch.randn(3, 7, 7))  # the norm is over dimension 1


def test_tracing_does_not_disturb_other_threads() -> None:
    """torch.fx replaces nn.Module.__call__ while it traces."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), randomized(nn.BatchNorm2d(4))).eval()
    other, sample = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), torch.randn(3, 4)
    wanted, call = other(sample), nn.Module.__call__
    begun, ended = threading.Event(), threading.Event()
    results: list[bool] = []

    def work() -> None:
        while not ended.is_set():
            try:
                results.append(torch.equal(other(sample), wanted))
            except (NameError, TypeError):  # what a tracer of these modules raises
                results.append(False)
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    try:
        explanations = [explain(optimize(model)) for _ in range(30)]
    finally:
        ended.set()
        thread.join()
    assert all(results)
    assert {one.step("conv_bn").outcome for one in explanations} == {PassOutcome.APPLIED}
    assert nn.Module.__call__ is call


class Between(Branching):
    """`how` says what happens between the convolution and the batch norm."""

    def __init__(self, how: str, *, traceable: bool = False) -> None:
        super().__init__()
        self.how, self.traceable = how, traceable
        self.kept: Any = None
        if how == "tied weights":
            self.other = nn.Conv2d(3, 4, 3)
            self.other.weight = self.first.weight

    def forward(self, images: Tensor) -> Any:
        if not self.traceable and images.sum() > 1e6:
            images = images / 2
        features = self.first(images)
        normed = self.norm(features)
        if self.how == "used twice":
            return normed + features
        if self.how == "part of the output":
            return normed, features
        if self.how == "stored":
            self.kept = features
        if self.how == "a view is used":
            return normed + features.flatten(1).mean(1)[:, None, None, None]
        if self.how == "convolution called twice":
            return normed + self.first(images * 2)
        if self.how == "norm called twice":
            return normed + self.norm(features * 2)
        if self.how == "weight read":
            return normed + self.first.weight.mean()
        if self.how == "tied weights":
            return normed + self.other(images)
        return normed


@pytest.mark.parametrize(
    "how",
    [
        *("used twice", "part of the output", "stored", "a view is used", "weight read"),
        *("convolution called twice", "norm called twice", "tied weights"),
    ],
)
def test_pairs_that_stay(how: str) -> None:
    model, sample = Between(how).eval(), torch.randn(2, 3, 6, 6)
    optimized = optimize(model, sample_input=sample, graph="none")
    assert outcome(optimized, "conv_bn") is PassOutcome.SKIPPED
    torch.testing.assert_close(optimized(sample), model(sample))
    if how != "stored":  # which torch.fx does not see
        model = Between(how, traceable=True).eval()
        for optimized in (optimize(model), optimize(model, sample_input=sample, graph="none")):
            assert outcome(optimized, "conv_bn") is PassOutcome.SKIPPED
            torch.testing.assert_close(optimized(sample), model(sample))


def test_hooks_parametrizations_and_missing_statistics_stay() -> None:
    sample = torch.randn(2, 3, 6, 6)
    hooked = nn.Sequential(nn.Conv2d(3, 4, 3), randomized(nn.BatchNorm2d(4))).eval()
    seen: list[Tensor] = []
    hooked[0].register_forward_hook(lambda _module, _args, output: seen.append(output))
    optimized = optimize(hooked, sample_input=sample, graph="none")
    assert "one has hooks" in explain(optimized).step("conv_bn").reason
    seen.clear()
    optimized(sample)
    torch.testing.assert_close(seen, [hooked[0](sample)] * 2, check_stride=False)

    spectral = nn.Sequential(
        parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), randomized(nn.BatchNorm2d(4))
    ).eval()
    optimized = optimize(spectral, sample_input=sample, graph="none", dtype=torch.bfloat16)
    assert outcome(optimized, "conv_bn") is PassOutcome.SKIPPED
    torch.testing.assert_close(optimized(sample), spectral(sample), rtol=5e-2, atol=5e-2)

    bare = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    optimized = optimize(bare, sample_input=sample, graph="none")
    assert "no running statistics" in explain(optimized).step("conv_bn").reason
    torch.testing.assert_close(optimized(sample), bare(sample))
