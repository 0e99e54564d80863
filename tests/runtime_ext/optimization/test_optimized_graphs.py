# SPDX-License-Identifier: Apache-2.0
"""Optimized modules that torch compiles. The default tier compiles one small model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.runtime_ext.optimization.test_optimized_modules import SAMPLE, Small, snapshot
from tests.runtime_ext.tiny_models import Layer
from torch import Tensor, nn

from xruntime import optimize
from xruntime.errors import OptimizationError, PackageInputError
from xruntime.optimization import Outcome, SlowCallWarning, explain
from xruntime.threads.team import team_of

pytestmark = [
    # torch warns of what it imports itself.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*"),
    pytest.mark.usefixtures("compiler"),
]


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    """Precompiled headers take longer than these few compilations without them."""
    import torch._inductor.config as settings

    with settings.patch(cpp_cache_precompile_headers=False):
        yield


def agree(optimized: Any, expected: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(optimized, expected, rtol=tolerance, atol=tolerance)


def test_compiled_graph_is_used() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout()).eval()
    model.register_forward_hook(lambda _module, _args, output: output - 5)
    before = snapshot(model)
    sample = torch.randn(2, 4)
    optimized = optimize(model, sample_input=sample)
    found = explain(optimized)
    assert found.step("graph").outcome is Outcome.APPLIED
    assert "compile_cpp: " in found.step("graph").reason
    assert "packs the frozen weights" in found.step("prepack").reason
    output = optimized(sample)
    agree(output, model(sample))
    assert not output.is_inference()
    output += 1  # torch refuses this for tensors of inference mode
    assert snapshot(model) == before
    assert torch.equal(optimized.state_dict()["0.weight"], model[0].weight)
    # Hooks of the module run around the compiled code.
    optimized.register_forward_hook(lambda _module, _args, output: output * 2)
    agree(optimized(sample), model(sample) * 2)


@pytest.mark.long
def test_all_passes_and_a_compiled_graph() -> None:
    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, dtype=torch.bfloat16)
    assert explain(optimized).step("graph").outcome is Outcome.APPLIED
    assert optimized(SAMPLE).dtype == torch.float32
    agree(optimized(SAMPLE), model(SAMPLE), 0.2)
    # Another number of threads is compiled for.
    with team_of(2):
        agree(optimized(SAMPLE), model(SAMPLE), 0.2)


@pytest.mark.long
def test_keyword_arguments_and_siblings() -> None:
    import torch._dynamo.utils as counting

    class Attention(nn.Module):
        def __init__(self, linears: int) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(16, 48 // linears) for _ in range(linears))
            self.eval()

        def forward(self, *, hidden: Tensor) -> dict[str, Tensor]:
            q, k, v = torch.cat([part(hidden) for part in self.parts], -1).chunk(3, -1)
            return {"seen": nn.functional.scaled_dot_product_attention(q, k, v)}

    call = {"hidden": torch.randn(2, 8, 16)}

    def calls(linears: int, *, join: bool) -> int:
        """Calls of kernels from the compiled code; some CPUs' linears count more than once."""
        model = Attention(linears)
        counting.counters.clear()
        optimized = optimize(
            model, sample_input=call, dtype=torch.bfloat16, passes={"join_linears": join}
        )
        assert explain(optimized).step("graph").outcome is Outcome.APPLIED
        agree(optimized(**call)["seen"], model(**call)["seen"], 0.05)
        counted: int = counting.counters["inductor"]["extern_calls"]
        return counted

    # As one matrix product in place of three.
    assert calls(3, join=True) == calls(1, join=False) < calls(3, join=False)


@pytest.mark.full
def test_wrapper_in_python() -> None:
    model, sample = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(3, 4)
    optimized = optimize(model, sample_input=sample, graph="compile")
    assert explain(optimized).step("graph").reason.startswith("compile: torch.compile with frozen")
    agree(optimized(sample), model(sample))


@pytest.mark.full
def test_package() -> None:
    model = Layer()
    call = {"ids": torch.randint(0, 50, (2, 6)), "mask": torch.ones(2, 6, dtype=torch.bool)}
    optimized = optimize(model, sample_input=call, graph="package", dtype=torch.bfloat16)
    assert explain(optimized).step("graph").reason.startswith("package: an AOTInductor package")
    found, expected = optimized(**call), model(**call)
    agree(found["hidden"], expected["hidden"], 0.1)
    agree(found["pooled"][0], expected["pooled"][0], 0.1)
    assert found["pooled"][1] is None
    longer = {name: torch.cat((value, value)) for name, value in call.items()}
    with pytest.raises(PackageInputError):
        optimized(**longer)


@pytest.mark.full
def test_fastest_form_is_kept() -> None:
    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, measure=True)
    timings = {one.candidate: one for one in explain(optimized).timings}
    assert set(timings) == {"input", "none", "compile_cpp", "compile"}
    kept = [one for one in timings.values() if one.kept]
    assert len(kept) == 1
    assert kept[0].median_s == min(one.median_s for one in timings.values())
    agree(optimized(SAMPLE), model(SAMPLE))
    applied = explain(optimized).step("conv_bn").outcome is Outcome.APPLIED
    assert applied == (kept[0].candidate != "input")


def test_measuring_without_compiling() -> None:
    model = Small()
    optimized = optimize(model, sample_input=SAMPLE, measure=True, graph="none")
    timings = explain(optimized).timings
    assert {one.candidate for one in timings} == {"input", "none"}
    agree(optimized(SAMPLE), model(SAMPLE))
    assert " ms a call (kept)" in str(explain(optimized))


def test_input_that_is_the_fastest_is_returned_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is scripted: the input takes 1 ms, everything else 2."""
    monkeypatch.setattr(
        "xruntime.optimization.inference.median_times",
        lambda candidates: {name: 1e-3 if name == "input" else 2e-3 for name in candidates},
    )
    model = Small()
    before = snapshot(model)
    optimized = optimize(model, sample_input=SAMPLE, measure=True, graph="none", inplace=True)
    assert optimized is model
    assert snapshot(model) == before
    assert not any(step.outcome is Outcome.APPLIED for step in explain(optimized).steps)
    assert "the input is the fastest" in explain(optimized).step("conv_bn").reason


def test_inner_hooks_keep_the_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    seen: list[Tensor] = []
    model[0].register_forward_hook(lambda _module, _args, output: seen.append(output))
    sample = torch.randn(2, 4)
    optimized = optimize(model, sample_input=sample)
    assert explain(optimized).step("graph").reason.startswith("0 has hooks")
    seen.clear()
    optimized(sample)
    assert len(seen) == 1
    with pytest.raises(OptimizationError, match=r"graph='compile': 0 has hooks.*graph='none'"):
        optimize(model, sample_input=sample, graph="compile")


def test_what_torch_cannot_export() -> None:
    class Breaking(nn.Module):
        """torch.export refuses Python that depends on values."""

        def forward(self, values: Tensor) -> Tensor:
            return values + 1 if values.sum() > 0 else values - 1

    model = Breaking().eval()
    before = snapshot(model)
    with pytest.raises(OptimizationError, match=r"graph='package': Breaking cannot be compiled"):
        optimize(model, sample_input=torch.randn(3, 3), graph="package")
    assert snapshot(model) == before


@pytest.mark.long
def test_calls_that_cannot_be_compiled_later_are_reported() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    optimized = optimize(model, sample_input=torch.randn(2, 4))
    other = torch.randn(3, 4)
    with (
        torch._dynamo.config.patch(recompile_limit=1),
        pytest.warns(SlowCallWarning, match=r"computed without compiled code.*more shapes"),
    ):
        output = optimized(other)
    agree(output, model(other))
    agree(optimized(torch.ones(2, 4)), model(torch.ones(2, 4)))


@pytest.mark.full
def test_threads_share_compiled_code() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout()).eval()
    optimized = optimize(model, sample_input=torch.randn(2, 4))
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with team_of(1):
            for _ in range(50):
                values = torch.randn(2, 4, generator=generator)
                if not torch.allclose(optimized(values), model(values), atol=1e-5):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
