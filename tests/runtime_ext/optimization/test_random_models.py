# SPDX-License-Identifier: Apache-2.0
"""What callers of random models observe is what they observe of eager ones."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime_ext.optimization import random_models as models
from tests.runtime_ext.optimization.random_models import Call, Spec
from torch import Tensor

from xruntime.compilation.judge import TOLERANCES
from xruntime.errors import OptimizationError
from xruntime.optimization import SlowCallWarning, optimize
from xruntime.program_hook.interception import Interception

DTYPES = (None, torch.float32, torch.bfloat16)
FROZEN = ("weight", "hook", "shared")
"""What is returned is frozen: changes of its parts are not for these tests."""

MAX_CHECKS = 5
"""Maximum number of forward calls of a model beside the program's own, under the hook: three at the first call (one is
watched, one traced, one compared), one that compares other sizes, and one that raises."""


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowCallWarning)
        yield


def close(seen: Any, expected: Any, tolerance: float) -> bool:
    """Whether two nests of values agree."""
    if isinstance(expected, Tensor):
        if (
            not isinstance(seen, Tensor)
            or seen.dtype != expected.dtype
            or seen.shape != expected.shape
        ):
            return False
        gap = (seen.double() - expected.double()).abs().max().item()
        return gap <= tolerance * max(expected.double().abs().max().item(), 1e-3)
    if isinstance(expected, dict):
        return seen.keys() == expected.keys() and all(
            close(seen[key], expected[key], tolerance) for key in expected
        )
    if isinstance(expected, (tuple, list)):
        pairs = zip(seen, expected, strict=True)
        return len(seen) == len(expected) and all(close(a, b, tolerance) for a, b in pairs)
    return bool(seen == expected)


def agree(seen: models.Seen, expected: models.Seen, tolerance: float) -> None:
    assert seen.error == expected.error
    assert close(seen.outputs, expected.outputs, tolerance)
    assert close(seen.arguments, expected.arguments, tolerance)
    assert seen.aliases == expected.aliases
    assert torch.equal(seen.drawn, expected.drawn)


def compare_optimized(
    spec: Spec, calls: list[Call], dtype: torch.dtype | None, inplace: bool, **options: Any
) -> None:
    """`optimize` a model on the first call, change and call it."""
    (model, _), (eager, _) = models.made(spec), models.made(spec)
    before = models.state_of(eager)
    sample = calls[0].arguments(0)
    arguments = (sample[0].clone(), None if sample[1] is None else sample[1].clone())
    random_state = torch.get_rng_state()
    weights = {name: it.clone() for name, it in model.state_dict().items()}
    try:
        fast = optimize(model, sample_input=arguments, dtype=dtype, inplace=inplace, **options)
    except OptimizationError as error:
        raise AssertionError(f"refused: {error}") from error
    assert torch.equal(torch.get_rng_state(), random_state)
    assert close(arguments, sample, 0.0)
    assert close(models.state_of(fast), before, 0.0)
    if not inplace:
        assert close(models.state_of(model), before, 0.0)
        assert close(dict(model.state_dict()), weights, 0.0)
    tolerance = TOLERANCES[dtype or torch.float32]
    for number, drawn in enumerate(calls):
        call = drawn._replace(change=None) if drawn.change in FROZEN else drawn
        seen = models.observe(fast, call, number)
        expected = models.observe(eager, call, number)
        agree(seen, expected, tolerance)
        if options.get("graph") == "none":  # compiled code does not run the forward
            assert seen.forwards == expected.forwards
        assert close(models.state_of(fast), models.state_of(eager), tolerance)


def compare_hooked(spec: Spec, calls: list[Call], precision: str, **options: Any) -> None:
    """Call a model, whose calls `--optimize` intercepts."""
    interception = Interception(precision, wait=options.get("wait", False))
    (model, other), (eager, other_eager) = models.made(spec), models.made(spec)

    def hooked(called: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return interception.outermost(called, args, kwargs)

        return call

    # The hook sees the outermost calls: parts are called as they are.
    tolerance = TOLERANCES[torch.bfloat16 if precision == "bf16" else torch.float32]
    checks = 0
    for number, call in enumerate(calls):
        one, two = (model, eager) if number % 3 < 2 else (other, other_eager)
        seen = observe_through(hooked(one), one, call, number)
        expected = models.observe(two, call, number)
        agree(seen, expected, tolerance)
        checks += seen.forwards - expected.forwards
        assert seen.forwards >= expected.forwards
        assert close(models.state_of(one), models.state_of(two), tolerance)
    assert checks <= 2 * MAX_CHECKS


def observe_through(
    call_model: Callable[..., Any], model: Any, call: Call, number: int
) -> models.Seen:
    class Through:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return call_model(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(model, name, value)

    return models.observe(Through(), call, number)


def property_of(examples: int) -> Callable[[Any], Any]:
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=examples, suppress_health_check=checks)


some_calls = st.lists(models.calls, min_size=1, max_size=6)


def check_optimized(examples: int) -> None:
    @property_of(examples)
    @given(models.specs, some_calls, st.sampled_from(DTYPES), st.booleans())
    def run(spec: Spec, calls: list[Call], dtype: torch.dtype | None, inplace: bool) -> None:
        calls[0] = calls[0]._replace(fail=False)
        compare_optimized(spec, calls, dtype, inplace, graph="none")

    run()


def check_hooked(examples: int) -> None:
    @property_of(examples)
    @given(models.specs, some_calls, st.sampled_from(("fp32", "bf16")))
    def run(spec: Spec, calls: list[Call], precision: str) -> None:
        compare_hooked(spec, calls, precision)

    run()


def test_optimized_models_do_what_eager_ones_do() -> None:
    check_optimized(25)


def test_models_under_the_hook_do_what_eager_ones_do() -> None:
    check_hooked(25)


@pytest.mark.long
def test_many_optimized_models() -> None:
    check_optimized(500)


@pytest.mark.long
def test_many_models_under_the_hook() -> None:
    check_hooked(500)


def test_threads_that_call_one_model_under_the_hook() -> None:
    """Half of the calls fail; each thread sees what it would see of the eager model."""
    spec = Spec(("callable", "slot"), (), "none", "tensor", "half", joined=True, norm=True)
    (model, _), (eager, _) = models.made(spec), models.made(spec)
    interception = Interception("fp32", wait=False)
    wrong: list[str] = []

    def work(first: int) -> None:
        for number in range(first, first + 20):
            values, _ = Call(2 + number % 3, "strided", "none", False, "no_grad", None).arguments(
                number
            )
            with torch.no_grad():
                for fail in (False, True):
                    results = []
                    for call in (lambda *a: interception.outermost(model, a, {}), eager):
                        try:
                            results.append(call(values, None, fail))
                        except RuntimeError as error:
                            results.append(str(error))
                    if not close(results[0], results[1], 1e-3):
                        wrong.append(f"{number} {fail}")

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.full
def test_compiled_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may take a minute, for a compiler. Models are too small to be faster by it: the clock is scripted."""
    monkeypatch.setattr("xruntime.compilation.judge.Trial.is_faster", True)

    @property_of(30)
    @given(models.specs, some_calls, st.sampled_from(DTYPES))
    def run(spec: Spec, calls: list[Call], dtype: torch.dtype | None) -> None:
        calls[0] = calls[0]._replace(fail=False)
        compare_optimized(spec, calls, dtype, False, wait=True)

    run()
