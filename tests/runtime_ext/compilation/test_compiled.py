# SPDX-License-Identifier: Apache-2.0
"""Modules that are really compiled, called as streams call them, and asked for what they refuse.

Compiling takes seconds, so that tests share what is compiled; none leaves it in another state.
"""

from __future__ import annotations

import copy
import logging
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from tests.runtime_ext.stream_threads import (
    call_in_thread,
    call_in_threads,
    count_of_a_new_thread,
)
from tests.runtime_ext.tiny_models import (
    Images,
    Layer,
    Scaled,
    eager,
)
from torch import nn

from xruntime.compilation.call_shapes import CallShape
from xruntime.compilation.gil import CallableKind, kind_of
from xruntime.errors import (
    CompilationError,
    StreamCountError,
    ThreadCountError,
)
from xruntime.streams.compiled_module import CompiledForStreams, compile_for_streams
from xruntime.streams.multi_stream_module import MultiStreamModule
from xruntime.threads.cpu_pool import CPUPool

pytestmark = [
    # `test_short_compilation` is among the short ones.
    pytest.mark.long,
    pytest.mark.usefixtures("compiler"),
]

ITEMS = 4


class Made(NamedTuple):
    model: nn.Module
    sample: Any
    compiled: CompiledForStreams
    log: list[str]


@pytest.fixture(scope="module")
def images(compiler: None) -> Made:
    """Compiled for one thread. The counts of this and of new threads are as they were."""
    torch.manual_seed(0)
    model, sample = Images(), torch.randn(ITEMS, 3, 24, 24)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("xruntime")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    before = torch.get_num_threads(), count_of_a_new_thread()
    try:
        compiled = compile_for_streams(model, sample, threads=1)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert (torch.get_num_threads(), count_of_a_new_thread()) == before
    return Made(model, sample, compiled, lines)


@pytest.fixture(scope="module")
def layer(compiler: None) -> Made:
    """Compiled for two threads, in bfloat16, with a batch that may vary, called by keywords."""
    torch.manual_seed(0)
    sample = {"ids": torch.randint(0, 50, (ITEMS, 12)), "mask": torch.ones(ITEMS, 12) > 0}
    sample["mask"][1, 8:] = False
    model = Layer()
    compiled = compile_for_streams(model, sample, threads=2, dtype=torch.bfloat16, dynamic=True)
    return Made(model, sample, compiled, [])


@pytest.fixture
def compiled(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """The number of graphs that the test has compiled so far, by the log."""
    caplog.set_level(logging.INFO, logger="xruntime")
    return lambda: sum(
        bool(re.match(r"compiled |\w+: compiled graph ", it)) for it in caplog.messages
    )


@pytest.fixture
def nothing_compiled(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is compiled in the test."""
    caplog.set_level(logging.INFO, logger="xruntime")
    yield
    assert not [record for record in caplog.get_records("call") if record.name == "xruntime"]


def test_eight_threads_at_once_compute_what_the_eager_module_does(
    images: Made, nothing_compiled: None
) -> None:
    expected = eager(images.model, images.sample)
    results = call_in_threads(lambda: images.compiled(images.sample), 8, team=1)
    assert len(results) == 8
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_what_was_seen_is_told(images: Made) -> None:
    evidence = images.compiled.evidence
    assert evidence.graphs == 1
    assert evidence.difference.allowed
    assert 0 <= evidence.difference.absolute < 1e-4
    assert evidence.call_s > 0
    text = images.compiled.describe()
    assert "Images, compiled for streams of 1 thread" in text
    assert f"torch {torch.__version__}, weights frozen" in text
    assert "in one graph" in text
    assert images.log[0] == "compiling Images for streams of 1 thread; this may take a minute"
    assert images.log[1].startswith("Images: compiled graph 1, ")


def test_it_is_a_module_in_eval_mode_with_the_weights(images: Made) -> None:
    compiled = images.compiled
    assert isinstance(compiled, nn.Module)
    assert compiled.threads == 1
    assert not compiled.training
    assert compiled.eval() is compiled
    assert dict(compiled.named_parameters()).keys() == {
        f"model.{name}" for name, _ in images.model.named_parameters()
    }
    assert kind_of(compiled) is CallableKind.COMPILED_FOR_STREAMS
    assert not kind_of(compiled).holds_gil


def test_thread_with_another_count_is_refused(images: Made, nothing_compiled: None) -> None:
    with pytest.raises(
        ThreadCountError, match="streams of 1 thread and called in a thread that has 3"
    ):
        call_in_thread(lambda: images.compiled(images.sample), team=3)


MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_the_caller_do_not_matter(images: Made, nothing_compiled: None, mode: str) -> None:
    def call() -> torch.Tensor:
        with MODES[mode]():
            result: torch.Tensor = images.compiled(images.sample)
            assert torch.is_inference_mode_enabled() == (mode == "inference")
            return result

    result = call_in_thread(call, team=1)
    assert result.is_inference()
    assert result.dtype is torch.float32
    torch.testing.assert_close(result, eager(images.model, images.sample), rtol=1e-4, atol=1e-5)


def made_in_inference_mode(sample: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return sample.clone()


def test_the_same_values_in_another_tensor_compile_nothing(
    images: Made, nothing_compiled: None
) -> None:
    sample = images.sample
    for tensor in (
        made_in_inference_mode(sample),
        sample.clone().requires_grad_(),
        nn.Parameter(sample.clone()),
        torch.cat((sample, sample))[ITEMS:],
    ):
        result = call_in_thread(lambda tensor=tensor: images.compiled(tensor), team=1)
        torch.testing.assert_close(result, eager(images.model, sample), rtol=1e-4, atol=1e-5)


def test_new_batch_sizes_are_compiled_once_by_one_thread(
    images: Made, compiled: Callable[[], int]
) -> None:
    for items in (ITEMS + 1, ITEMS + 2):
        batch = torch.randn(items, 3, 24, 24)
        expected = eager(images.model, batch)
        for result in call_in_threads(lambda batch=batch: images.compiled(batch), 4, team=1):
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    # The first made code for both.
    assert compiled() == 1
    batch = torch.randn(1, 3, 24, 24)
    assert images.compiled.prepare(batch) is images.compiled
    graphs = compiled()
    result = call_in_thread(lambda: images.compiled(batch), team=1)
    torch.testing.assert_close(result, eager(images.model, batch), rtol=1e-4, atol=1e-5)
    assert compiled() == graphs


def test_where_a_part_lies_in_its_batch_does_not_matter(
    images: Made, compiled: Callable[[], int]
) -> None:
    batch = torch.randn(30, 3, 24, 24)
    graphs = []
    for part in (batch[20:], batch[:10], batch[1:11], batch[10:20].clone()):
        result = call_in_thread(lambda part=part: images.compiled(part), team=1)
        torch.testing.assert_close(result, eager(images.model, part), rtol=1e-4, atol=1e-5)
        graphs.append(compiled())
    assert len(set(graphs)) == 1


def test_other_reasons_to_compile_are_errors(images: Made, nothing_compiled: None) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(CompilationError, match="would have to be compiled again"):
            call_in_thread(lambda: images.compiled(images.sample), team=1)
    finally:
        torch.set_default_dtype(before)
    call_in_thread(lambda: images.compiled(images.sample), team=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda compiled: compiled.train(),
        lambda compiled: compiled.half(),
        lambda compiled: compiled.compile(),
        lambda compiled: compiled.to("meta"),
        lambda compiled: compiled.load_state_dict({}),
        copy.deepcopy,
        pickle.dumps,
    ],
)
def test_it_cannot_be_changed(images: Made, change: Callable[[CompiledForStreams], Any]) -> None:
    with pytest.raises(CompilationError, match="compile it again"):
        change(images.compiled)
    assert not images.compiled.training


def test_streams_of_uneven_parts(images: Made, two: CPUPool) -> None:
    batch = torch.randn(2 * ITEMS + 1, 3, 24, 24)
    with MultiStreamModule(images.compiled, 2, two) as streams:
        result = streams(batch)
    torch.testing.assert_close(result, eager(images.model, batch), rtol=1e-4, atol=1e-5)


def test_streams_have_the_threads_that_code_was_made_for(layer: Made, two: CPUPool) -> None:
    with MultiStreamModule(layer.compiled, "auto", two) as streams:
        assert streams.num_streams == 1
        assert f"CPUs {two}, 2 threads" in streams.describe()
    with pytest.raises(StreamCountError, match=r"compiled for 2 threads.*room for at most 1"):
        MultiStreamModule(layer.compiled, 2, two)


def test_keywords_autocast_and_sizes_that_vary(layer: Made, nothing_compiled: None) -> None:
    compiled, sample = layer.compiled, layer.sample
    assert "autocast to bfloat16, dimension 0 may vary" in compiled.describe()
    assert compiled.evidence.difference.tolerance == 5e-2
    for items in (ITEMS, 2, 3, 7):
        batch = {name: torch.cat((value, value))[:items] for name, value in sample.items()}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = eager(layer.model, **batch)
        for result in call_in_threads(lambda batch=batch: compiled(**batch), 2, team=2):
            assert result.keys() == expected.keys()
            assert result["pooled"][1] is None
            for left, right in ((result["hidden"], expected["hidden"]),):
                torch.testing.assert_close(left.float(), right.float(), rtol=0.05, atol=0.1)


def test_numbers_that_change_are_compiled_for_and_then_no_longer(
    compiler: None, compiled: Callable[[], int]
) -> None:
    model, values = Scaled(), torch.randn(3, 4)
    module = compile_for_streams(model, (values, 2.0), threads=1)

    def check(scale: float) -> None:
        for result in call_in_threads(lambda: module(values, scale), 2, team=1):
            torch.testing.assert_close(result, eager(model, values, scale))

    for scale in (2.5, 3.5):
        check(scale)
    graphs = compiled()
    for scale in (4.5, 5.5, 6.5):
        check(scale)
    assert compiled() == graphs


def test_after_a_change_it_is_compiled_anew_when_asked_for(compiler: None) -> None:
    model, sample = Scaled(), torch.randn(3, 4)  # as before: its code was kept
    compiled = compile_for_streams(model, (sample, 2.0), threads=1)
    before = eager(model, sample, 2.0)

    def result() -> torch.Tensor:
        return call_in_thread(lambda: compiled(sample, 2.0), team=1)

    model.negate = True
    torch.testing.assert_close(result(), before)
    with pytest.raises(CompilationError, match=r"computes something else.*call prepare\(\)"):
        compiled.check()
    for _ in range(2):
        # Without a sample, and with one of a shape that there is code for.
        compiled.prepare(*[(sample, 2.0)] * (not model.negate))
        torch.testing.assert_close(result(), eager(model, sample, 2.0))
        assert compiled.check((sample, 2.0)).allowed
        model.negate = False


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Output(OrderedDict[str, torch.Tensor]):
    """Like transformers' ModelOutput."""


class Pairs(nn.Module):
    def forward(self, pair: Pair, more: Output, way: object) -> torch.Tensor:
        return pair.left * pair.right + more["bias"]


class Way:
    """A class that nobody here knows."""


def test_nests_of_other_classes_compile_once(compiler: None, compiled: Callable[[], int]) -> None:
    whole = torch.randn(4, 3)

    def arguments(part: slice) -> tuple[Any, ...]:
        return Pair(whole[part], whole[part]), Output(bias=whole[part]), Way()

    module = compile_for_streams(Pairs().eval(), arguments(slice(0, 2)), threads=1)
    for part in (slice(2, 4), slice(1, 3)):
        result = call_in_thread(lambda part=part: module(*arguments(part)), team=1)
        torch.testing.assert_close(result, whole[part] ** 2 + whole[part])
    assert compiled() == 1


def test_keys_of_calls() -> None:
    def key(*values: Any) -> tuple[Any, ...]:
        shape = CallShape()
        for value in values:
            shape.plain(value)
        return shape.key()

    one, other = torch.zeros(2, 3), torch.ones(2, 3)
    assert key(one, [other, 2]) == key(other, [one, 2])
    assert key(Pair(one, other)) == key(Pair(other, one)) != key((one, other))
    assert key(Output(a=one)) == key(Output(a=other)) != key(Output(b=one))
    assert key(one, other) != key(one, one)
    assert key(one, one) == key(other, other)
    different = [one.to("meta"), one.double(), torch.zeros(3, 2).T, torch.zeros(2, 4), (one,)]
    assert len({key(one), *map(key, different)}) == 1 + len(different)
    assert key(1) != key(True)
    assert key(Way()) != key(Way())


def test_modules_of_one_class_have_code_of_their_own(compiler: None) -> None:
    sample = torch.randn(3, 4)
    models = [Scaled() for _ in range(2)]
    # More than torch, which compiles without freezing, would keep for one piece of code.
    options = {"threads": 1, "freezing": False}
    with torch._dynamo.config.patch(recompile_limit=1):
        made = [compile_for_streams(model, (sample, 2.0), **options) for model in models]
    for model, compiled in zip(models, made, strict=True):
        result = call_in_thread(lambda compiled=compiled: compiled(sample, 2.0), team=1)
        torch.testing.assert_close(result, eager(model, sample, 2.0))


class Gap(nn.Module):
    """Of two tensors, or of a tensor and itself."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left.sin() - right.sin()


def test_a_tensor_that_is_given_twice_is_a_case_of_its_own(compiler: None) -> None:
    left, right = torch.randn(3, 4), torch.randn(3, 4)
    compiled = compile_for_streams(Gap().eval(), (left, left), threads=1)
    for pair in ((left, right), (right, right), (left, right)):
        result = call_in_thread(lambda pair=pair: compiled(*pair), team=1)
        torch.testing.assert_close(result, pair[0].sin() - pair[1].sin())


def test_weights_are_constants_of_the_code(images: Made) -> None:
    """Else convolutions would neither be packed nor fused: half the speed, and nothing would tell."""
    model, sample = Images(), images.sample  # with the weights of `images`, whose code was kept
    kept, followed = (
        compile_for_streams(model, sample, threads=1, freezing=freezing)
        for freezing in (True, False)
    )
    before = call_in_thread(lambda: kept(sample), team=1)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(2.0)
    torch.testing.assert_close(call_in_thread(lambda: kept(sample), team=1), before)
    assert call_in_thread(lambda: followed(sample), team=1).unique().tolist() == [2.0]


def test_marking_sizes_leaves_the_samples_tensors_alone(layer: Made) -> None:
    assert not any("dynamo" in name for value in layer.sample.values() for name in vars(value))
