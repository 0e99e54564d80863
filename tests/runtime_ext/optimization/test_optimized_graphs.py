# SPDX-License-Identifier: Apache-2.0
"""Optimized modules that are compiled, in the tier `long`; and what is decided before that."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.golden import Golden
from tests.runtime_ext.optimization.test_optimized_modules import SAMPLE, Small, snapshot
from tests.runtime_ext.stream_threads import in_threads
from tests.runtime_ext.tiny_models import Scaled
from torch import Tensor, nn

from xruntime import optimize
from xruntime.compilation.judge import MIN_PAIRS, Trial
from xruntime.kept import store as stores
from xruntime.optimization import PassOutcome, SlowCallWarning, explain
from xruntime.optimization.optimized_code import optimized_code
from xruntime.threads.team import team_of

IS_SLOWER = vars(Trial)["is_slower"]

pytestmark = pytest.mark.usefixtures("compiler")


def agree(optimized: Any, expected: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(optimized, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.long
def test_hooks_of_the_model_run_around_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stores.VARIABLE, str(tmp_path))
    monkeypatch.setattr("xruntime.compilation.judge.Trial.is_faster", True)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout()).eval()
    model.register_forward_hook(lambda _module, _args, output: output - 5)
    before = snapshot(model)
    sample = torch.randn(2, 4)
    optimized = optimize(model, sample_input=sample, wait=True)
    found = explain(optimized)
    assert found.step("graph").outcome is PassOutcome.APPLIED
    assert "takes over" in found.step("graph").reason
    output = optimized(sample)
    agree(output, model(sample))
    assert not output.is_inference()
    output += 1  # torch refuses this for tensors of inference mode
    assert snapshot(model) == before
    assert torch.equal(optimized.state_dict()["0.weight"], model[0].weight)
    optimized.register_forward_hook(lambda _module, _args, output: output * 2)
    agree(optimized(sample), model(sample) * 2)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_torch_compile_takes_the_modules_as_one_graph(dtype: torch.dtype | None) -> None:
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, graph="none", dtype=dtype)
    compiled = torch.compile(optimized, fullgraph=True, backend=backend)
    agree(compiled(SAMPLE), model(SAMPLE), 1e-4 if dtype is None else 0.1)
    assert len(graphs) == 1


class Nesting(nn.Module):
    """Returns a nest of its input and of tensors that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, given: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {"sum": self.layer(given["x"]), "rest": [given["x"], (self.layer(given["x"]),)]}


def test_torch_compile_takes_a_nest_of_outputs_as_one_graph() -> None:
    model, given = Nesting().eval(), {"x": torch.randn(3, 8)}
    optimized = optimize(model, sample_input=(given,), graph="none", dtype=torch.bfloat16)
    found = torch.compile(optimized, fullgraph=True, backend="eager")(given)
    expected = model(given)
    agree(found["sum"], expected["sum"], 0.1)
    agree(found["rest"][1][0], expected["rest"][1][0], 0.1)
    assert torch.equal(found["rest"][0], given["x"])


def script_clock(patch: pytest.MonkeyPatch, times_s: dict[str, float]) -> None:
    """Let each form take so many seconds a call."""

    def compared(one: tuple[str, Any], other: tuple[str, Any], **_: float) -> Trial:
        trial = Trial(one[0], other[0])
        for name in (one[0], other[0]) * MIN_PAIRS:
            trial.note(times_s[name])
        return trial

    patch.setattr("xruntime.optimization.inference.compared_speed", compared)
    patch.setattr(Trial, "is_slower", IS_SLOWER)


@pytest.mark.long
@pytest.mark.parametrize("fastest", ["none", "library", "input"])
def test_fastest_form_is_kept(
    fastest: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stores.VARIABLE, str(tmp_path_factory.getbasetemp()))  # one compilation
    script_clock(monkeypatch, {"input": 1.0, "none": 1.0, "library": 1.0, fastest: 0.5})
    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, measure=True)
    timings = {one.candidate: one for one in explain(optimized).timings}
    assert set(timings) == {"input", "none", "library"}
    assert [one.candidate for one in timings.values() if one.kept] == [fastest]
    assert timings[fastest].median_s == 0.5
    agree(optimized(SAMPLE), model(SAMPLE))
    applied = explain(optimized).step("conv_bn").outcome is PassOutcome.APPLIED
    assert applied == (fastest != "input")


def test_measuring_without_compiling() -> None:
    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, measure=True, graph="none")
    timings = explain(optimized).timings
    assert {one.candidate for one in timings} == {"input", "none"}
    agree(optimized(SAMPLE), model(SAMPLE))
    assert " ms a call (kept)" in str(explain(optimized))


def test_input_that_is_the_fastest_is_returned_as_it_was(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is scripted: the input takes 1 ms, everything else 2."""
    script_clock(monkeypatch, {"input": 1e-3, "none": 2e-3})
    model = Small()
    before = snapshot(model)
    optimized = optimize(model, sample_input=SAMPLE, measure=True, graph="none", inplace=True)
    assert optimized is model
    assert snapshot(model) == before
    assert not any(step.outcome is PassOutcome.APPLIED for step in explain(optimized).steps)
    golden(explain(optimized).step("conv_bn").reason)


@pytest.mark.parametrize("passes", [(), (nn.Dropout(),)])
def test_modes_alone_must_be_a_gain(
    passes: tuple[nn.Module, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is scripted: both take as long. A call in other modes takes some microseconds more."""
    script_clock(monkeypatch, {"input": 1e-3, "none": 1e-3})
    model = nn.Sequential(nn.Linear(8, 8), *passes).eval()
    model[0].register_forward_hook(lambda *_: None)
    with pytest.warns(SlowCallWarning, match="has hooks"):
        optimized = optimize(model, sample_input=torch.randn(2, 8), wait=True)
    no_grad = explain(optimized).step("no_grad").outcome
    assert no_grad is (PassOutcome.APPLIED if passes else PassOutcome.UNDONE)


@pytest.mark.parametrize("counting_s", [1.0, 2.0])
def test_modules_that_are_slower_are_not_called_while_code_is_made(
    counting_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is scripted: the modules are slower, and then so is the search for code, or not."""
    clock = iter([2.0, counting_s, counting_s])

    def compared(one: tuple[str, Any], other: tuple[str, Any], **_: float) -> Trial:
        trial, other_s = Trial(one[0], other[0]), next(clock)
        for call in (one[1], other[1]) * MIN_PAIRS:
            call()
            trial.note(other_s if trial.calls % 2 else 1.0)
        return trial

    monkeypatch.setattr("xruntime.optimization.inference.compared_speed", compared)
    monkeypatch.setattr(Trial, "is_slower", IS_SLOWER)
    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, dtype=torch.bfloat16)
    assert explain(optimized).step("precision").outcome is PassOutcome.UNDONE
    assert torch.equal(optimized(SAMPLE), model(SAMPLE))
    step = explain(optimized).step("graph")
    if counting_s == 1.0:
        assert step.outcome is PassOutcome.APPLIED
        assert optimized_code(optimized).modes.dtype is torch.bfloat16
        assert not optimized(SAMPLE).requires_grad
    else:
        assert "wait=True compiles now" in step.reason
        assert type(optimized) is Small


def test_inner_hooks_keep_the_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    seen: list[Tensor] = []
    model[0].register_forward_hook(lambda _module, _args, output: seen.append(output))
    sample = torch.randn(2, 4)
    with pytest.warns(SlowCallWarning, match="Sequential is not compiled: 0 has hooks"):
        optimized = optimize(model, sample_input=sample)
    assert explain(optimized).step("graph").reason.startswith("0 has hooks")
    seen.clear()
    optimized(sample)
    assert len(seen) == 1


class Branching(nn.Module):
    """Takes one of two branches, by the values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values)
        if values.sum() > 0:
            return self.second(hidden).relu()
        return self.second(hidden).sigmoid()


@pytest.mark.long
def test_model_that_cannot_be_exported_runs_as_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stores.VARIABLE, str(tmp_path))
    model, sample = Branching(), torch.ones(2, 4)
    with pytest.warns(SlowCallWarning, match=r"Branching is not compiled: .*cannot export"):
        optimized = optimize(model, sample_input=sample, wait=True)
    step = explain(optimized).step("graph")
    assert step.outcome is PassOutcome.SKIPPED
    assert "torch.export cannot export Branching" in step.reason
    for values in (sample, -sample, -2 * sample):
        agree(optimized(values), model(values))


def test_whatever_torch_raises_when_it_compiles_the_modules_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor as inductor

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("API call failed at main.cpp")

    monkeypatch.setenv(stores.VARIABLE, str(tmp_path))
    monkeypatch.setattr(inductor, "aot_compile", fail)
    model, sample = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), torch.randn(2, 4)
    with pytest.warns(SlowCallWarning, match=r"Sequential is not compiled: .*API call failed"):
        optimized = optimize(model, sample_input=sample, wait=True)
    agree(optimized(sample), model(sample))


@pytest.mark.long
def test_transformer_of_torch_in_bf16() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model, sample = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowCallWarning)  # another torch may compile it
        optimized = optimize(model, sample_input=sample, dtype=torch.bfloat16)
    agree(optimized(sample), model(sample), 0.1)


class Remembering(nn.Module):
    """Its forward sets attributes, its own or a part's."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.part = nn.ReLU()
        self.where = where
        self.calls = self.part.calls = 0
        self.size: Any = None
        self.register_buffer("count", torch.zeros(()))
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        hidden: Tensor = self.part(self.linear(values))
        if self.where == "output":
            self.last = hidden
        elif self.where == "counter":
            self.calls += 1
        elif self.where == "part":
            self.part.calls += 1
        elif self.where == "buffer":
            self.count += 1
        else:
            self.size = values.shape
        return hidden


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("output", "last was changed"),
        ("counter", "calls was changed"),
        ("part", "part.calls was changed"),
        ("buffer", "count was changed"),
    ],
)
def test_model_that_changes_itself_is_not_compiled(where: str, name: str) -> None:
    model, sample = Remembering(where), torch.randn(2, 4)
    with pytest.warns(SlowCallWarning, match=rf"a call changes the module \(.*{name}"):
        optimized = optimize(model, sample_input=sample)
    before = optimized.calls, optimized.part.calls, optimized.count.item()
    optimized(sample)
    after = optimized.calls, optimized.part.calls, optimized.count.item()
    expected = [where == "counter", where == "part", where == "buffer"]
    assert [new - old for new, old in zip(after, before, strict=True)] == expected
    if where == "output":
        with torch.no_grad():
            torch.testing.assert_close(optimized.last, model(sample))


@pytest.mark.long
def test_model_that_changes_itself_only_for_another_shape() -> None:
    model = Remembering("size")
    model(torch.randn(2, 4))  # the first call changes it, too
    optimized = optimize(model, sample_input=torch.randn(2, 4))
    assert explain(optimized).step("graph").outcome is PassOutcome.APPLIED
    for rows in (3, 2, 3):
        values = torch.randn(rows, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowCallWarning)
            agree(optimized(values), model(values))
        assert optimized.size == (rows, 4)


CHANGES: dict[str, Any] = {
    "attribute": lambda it: setattr(it, "negate", True),
    "hook of a part": lambda it: it.linear.register_forward_hook(lambda _m, _a, out: out * 2),
    "part": lambda it: setattr(it, "linear", nn.Linear(4, 4)),
}


@pytest.mark.parametrize("how", CHANGES)
def test_change_after_optimizing_is_seen(how: str) -> None:
    torch.manual_seed(0)
    model, call = Scaled(), (torch.randn(2, 4), 2.0)
    optimized = optimize(model, sample_input=call)
    agree(optimized(*call), model(*call))
    for changed in (model, optimized):
        torch.manual_seed(1)
        CHANGES[how](changed)
    with pytest.warns(
        SlowCallWarning, match=r"Scaled: from now on calls run without.*optimize\(\)"
    ):
        agree(optimized(*call), model(*call))
    agree(optimized(*call), model(*call))


def test_model_that_changes_its_arguments_runs_as_modules() -> None:
    class Writing(Branching):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values.add_(1))

    model = Writing().eval()
    with pytest.warns(SlowCallWarning, match=r"is not compiled: .*a call may change its arguments"):
        optimized = optimize(model, sample_input=torch.ones(2, 4))
    for start in (1.0, -3.0):
        values, expected = torch.full((2, 4), start), torch.full((2, 4), start)
        agree(optimized(values), model(expected))
        assert torch.equal(values, expected)


def test_model_that_is_not_compiled_is_returned_as_it_was_if_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock is scripted: in the first run both take as long, in the second the model is faster."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout()).eval()
    model[0].register_forward_hook(lambda _module, _args, output: output)
    sample = torch.randn(2, 4)
    for input_s, outcome in ((0.98, PassOutcome.APPLIED), (0.9, PassOutcome.UNDONE)):
        times = {"input": input_s, "none": 1.0}
        script_clock(monkeypatch, times)
        with pytest.warns(SlowCallWarning, match="is not compiled"):
            optimized = optimize(model, sample_input=sample)
        assert explain(optimized).step("no_grad").outcome is outcome
        assert type(optimized[2]) is nn.Dropout or outcome is PassOutcome.APPLIED
        assert (type(optimized) is nn.Sequential) == (outcome is PassOutcome.UNDONE)
        agree(optimized(sample), model(sample))


@pytest.mark.full
def test_threads_share_compiled_code() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout()).eval()
    optimized = optimize(model, sample_input=torch.randn(2, 4))

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with team_of(1):
            for _ in range(50):
                values = torch.randn(2, 4, generator=generator)
                assert torch.allclose(optimized(values), model(values), atol=1e-5)

    in_threads(work, range(3))
