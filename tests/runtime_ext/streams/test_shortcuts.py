# SPDX-License-Identifier: Apache-2.0
"""Compiled code that is called past torch's guards: when it is, and that it is the right one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.runtime_ext.streams.stream_threads import call_in_thread, call_in_threads
from tests.runtime_ext.streams.tiny_models import Holding, Images, Layer, Scaled, eager
from torch import Tensor, nn

from xruntime.errors import CompilationError
from xruntime.streams import shortcuts
from xruntime.streams.call_shapes import CallShape
from xruntime.streams.compiled import CompiledForStreams, compile_for_streams

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*"),
    pytest.mark.usefixtures("compiler"),
]


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guards are asked once, when code is made."""
    monkeypatch.setattr(shortcuts, "GUARDS_EVERY_S", 1e9)


def without_guards(compiled: CompiledForStreams, *args: Any, **kwargs: Any) -> Any:
    """A call that fails where it would ask torch's guards."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the guards were asked")

    entry = compiled._entry
    guarded, entry.guarded = entry.guarded, refuse
    try:
        return call_in_thread(lambda: compiled(*args, **kwargs), team=compiled.threads)
    finally:
        entry.guarded = guarded


@pytest.mark.usefixtures("for_ever")
def test_a_shape_that_is_known_asks_nothing() -> None:
    model, sample = Images(), torch.randn(4, 3, 24, 24)
    compiled = compile_for_streams(model, sample, threads=1)
    assert "guards are asked every" in compiled.describe()
    other = torch.randn(4, 3, 24, 24)
    result = without_guards(compiled, other)
    torch.testing.assert_close(result, eager(model, other), rtol=1e-4, atol=1e-5)
    # Sizes that share code: each is asked about once.
    for items in (5, 6, 7):
        batch = torch.randn(items, 3, 24, 24)
        call_in_thread(lambda batch=batch: compiled(batch), team=1)
        result = without_guards(compiled, batch)
        torch.testing.assert_close(result, eager(model, batch), rtol=1e-4, atol=1e-5)
    assert compiled._graphs == 2


@pytest.mark.usefixtures("for_ever")
def test_nests_are_given_back_as_they_were() -> None:
    sample = {"ids": torch.randint(0, 50, (4, 12)), "mask": torch.ones(4, 12) > 0}
    model = Layer()
    compiled = compile_for_streams(model, sample, threads=1, dtype=torch.bfloat16)
    result, expected = without_guards(compiled, **sample), eager(model, **sample)
    assert result.keys() == expected.keys()
    assert result["pooled"][1] is None
    torch.testing.assert_close(
        result["pooled"][0].float(), expected["pooled"][0], rtol=0.1, atol=0.1
    )


@pytest.mark.usefixtures("for_ever")
def test_modules_of_one_class_have_code_of_their_own() -> None:
    sample = torch.randn(3, 4)
    models = [Scaled() for _ in range(12)]  # more than torch keeps for one piece of code
    made = [compile_for_streams(model, (sample, 2.0), threads=1) for model in models]
    for model, compiled in zip(models, made, strict=True):
        torch.testing.assert_close(without_guards(compiled, sample, 2.0), eager(model, sample, 2.0))
    # That sizes varied in calls of one says nothing of the others.
    for values in (torch.randn(5, 4), torch.randn(6, 4)):
        call_in_thread(lambda values=values: made[0](values, 2.0), team=1)
    assert made[0]._graphs == 2
    another = compile_for_streams(Scaled(), (torch.randn(7, 4), 2.0), threads=1)
    call_in_thread(lambda: another(sample, 2.0), team=1)
    assert another._graphs == 2


class Difference(nn.Module):
    """Of two tensors, or of a tensor and itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.eval()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.linear(left) - self.linear(right)


@pytest.mark.usefixtures("for_ever")
def test_a_tensor_that_is_given_twice_is_a_case_of_its_own() -> None:
    model, left, right = Difference(), torch.randn(3, 4), torch.randn(3, 4)
    compiled = compile_for_streams(model, (left, left), threads=1)
    assert without_guards(compiled, right, right).abs().max() == 0
    for _ in range(2):
        result = call_in_thread(lambda: compiled(left, right), team=1)
        torch.testing.assert_close(result, eager(model, left, right))
    assert without_guards(compiled, left, left).abs().max() == 0


@pytest.mark.usefixtures("for_ever")
def test_settings_of_torch_are_asked_at_each_call() -> None:
    model, sample = Scaled(), torch.randn(3, 4)
    compiled = compile_for_streams(model, (sample, 2.0), threads=1)
    without_guards(compiled, sample, 2.0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for _ in range(2):
            with pytest.raises(CompilationError, match="would have to be compiled again"):
                call_in_thread(lambda: compiled(sample, 2.0), team=1)
    finally:
        torch.set_default_dtype(before)
    call_in_thread(lambda: compiled(sample, 2.0), team=1)
    without_guards(compiled, sample, 2.0)


def test_a_change_of_the_module_stays_an_error_once_it_was_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, sample = Scaled(), torch.randn(3, 4)
    compiled = compile_for_streams(model, (sample, 2.0), threads=1)
    monkeypatch.setattr(shortcuts, "GUARDS_EVERY_S", 1e9)
    (shortcut,) = compiled._seen.values()
    assert shortcut is not None
    model.negate = True
    shortcut._due_s = 0.0
    for _ in range(3):
        with pytest.raises(CompilationError, match="compiled again"):
            call_in_thread(lambda: compiled(sample, 2.0), team=1)
    model.negate = False
    call_in_thread(lambda: compiled(sample, 2.0), team=1)
    without_guards(compiled, sample, 2.0)


@pytest.mark.usefixtures("for_ever")
@pytest.mark.filterwarnings("ignore::xruntime.errors.InterpreterLockWarning")
@pytest.mark.parametrize("case", ["weights that may change", "graph break"])
def test_what_is_not_known_is_always_asked_about(case: str) -> None:
    sample = torch.randn(3, 4)
    if case == "graph break":
        compiled = compile_for_streams(Holding(), sample, threads=1)
    else:
        compiled = compile_for_streams(nn.Linear(4, 4).eval(), sample, threads=1, freezing=False)
    assert "guards are asked at each call" in compiled.describe()
    with pytest.raises(AssertionError, match="the guards were asked"):
        without_guards(compiled, sample)


def test_many_threads_on_the_way_between_shortcut_and_guards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, sample = Images(), torch.randn(4, 3, 24, 24)
    compiled = compile_for_streams(model, sample, threads=1)
    expected = eager(model, sample)
    monkeypatch.setattr(shortcuts, "GUARDS_EVERY_S", 1e-3)

    def often() -> list[Tensor]:
        return [compiled(sample) for _ in range(50)]

    for results in call_in_threads(often, 8, team=1):
        for result in results:
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_keys_of_calls() -> None:
    def key(*values: Any) -> tuple[Any, ...]:
        shape = CallShape()
        for value in values:
            shape.plain(value)
        return shape.key()

    one, other = torch.zeros(2, 3), torch.ones(2, 3)
    assert key(one, [other, 2]) == key(other, [one, 2])
    assert key(one, other) != key(one, one)
    assert key(one, one) == key(other, other)
    different = [one.to("meta"), one.double(), torch.zeros(3, 2).T, torch.zeros(2, 4), (one,)]
    assert len({key(one), *map(key, different)}) == 1 + len(different)
    assert key(1) != key(True)
    assert key(object()) != key(object())


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("__compiled_fn_1()", True),
        ("print()", False),
        ("__compiled_fn_1(); __compiled_fn_2()", False),
        ("__compiled_fn_1(); __resume_at_20_3()", False),
    ],
)
def test_code_is_whole_that_calls_one_graph_and_nothing_after_a_break(
    text: str, is_whole: bool
) -> None:
    assert shortcuts._is_whole(compile(text, "made", "exec")) == is_whole
