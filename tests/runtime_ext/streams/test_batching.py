# SPDX-License-Identifier: Apache-2.0
"""Waiting calls that run as one give each caller what its call alone would have given."""

from __future__ import annotations

import copy
import gc
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch
from tests.runtime_ext.stream_threads import in_threads
from tests.runtime_ext.streams.calls import Pair
from torch import Tensor

from xruntime.errors import BatchError, ClosedError
from xruntime.streams.batching import Batching, batch_sizes
from xruntime.streams.compiled_module import CompiledForStreams, compile_for_streams
from xruntime.streams.hints import MultiStreamModuleHint as Hint
from xruntime.streams.multi_stream_module import MultiStreamModule
from xruntime.streams.task import Task
from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.worker import Submission, TaskFuture, submission_of

pytestmark = [
    pytest.mark.usefixtures("nothing_stays_changed"),
    pytest.mark.filterwarnings("ignore::xruntime.errors.GILWarning"),
]

WAIT_S = 60.0


class Gated(torch.nn.Module):
    """Calls a function; the first call waits until `gate` is set, so that others queue up behind it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.entered, self.gate = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        """The size of the first tensor of each call, at its first dimension."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        first = next(it for it in (*args, *kwargs.values()) if isinstance(it, Tensor))
        self.sizes.append(first.shape[0])
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        return self.function(*args, **kwargs)


def behind(
    module: Gated, streams: MultiStreamModule | Task, blocker: Any, calls: list[Any]
) -> list[TaskFuture[Any]]:
    """Submit `calls` (a tensor, or a dict of keywords) while the call of `blocker` runs; let it go on."""
    first = _submit(streams, blocker)
    assert module.entered.wait(WAIT_S)
    futures = [_submit(streams, call) for call in calls]
    module.gate.set()
    first.result(WAIT_S)
    return futures


def _submit(streams: MultiStreamModule | Task, call: Any) -> TaskFuture[Any]:
    return streams.submit(**call) if isinstance(call, dict) else streams.submit(call)


@pytest.fixture
def rows() -> list[Tensor]:
    return [torch.randn(1, 6) for _ in range(8)]


@pytest.fixture(autouse=True)
def judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of a shape and size is compared, and what it takes here is no reason to give batches up."""
    monkeypatch.setattr("xruntime.streams.batching.COMPARED_BATCHES", 1)
    monkeypatch.setattr("xruntime.streams.batching.WORTHWHILE", math.inf)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def one_stream(module: Callable[..., Any], pool: CPUPool, **options: Any) -> MultiStreamModule:
    return MultiStreamModule(module, 1, pool, max_batch=4, **options)


def test_waiting_calls_run_as_one_and_each_gets_its_own_result(rows, first: CPUPool) -> None:
    layer = torch.nn.Linear(6, 3)
    module = Gated(layer)
    with one_stream(module, first) as streams:
        futures = behind(module, streams, rows[0], rows)
        results = [future.result(WAIT_S) for future in futures]
        # The first batch of four is compared with four single calls, and the second is not.
        assert module.sizes == [1, 4, 1, 1, 1, 1, 4]
        assert "1 of 1, 0 of 2, 2 of 4" in streams.describe()
    for row, result in zip(rows, results, strict=True):
        torch.testing.assert_close(result, layer(row))
        # Nothing of the others' results is behind it.
        assert result.untyped_storage().nbytes() == result.nbytes


def test_a_call_that_finds_a_free_stream_runs_alone(rows, first: CPUPool) -> None:
    module = Gated(torch.neg)
    module.gate.set()
    with one_stream(module, first) as streams:
        for row in rows:
            assert torch.equal(streams.submit(row).result(WAIT_S), -row)
    assert module.sizes == [1] * len(rows)


def test_batches_that_are_no_faster_are_given_up(
    first: CPUPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of each size are compared. A module takes the square of its rows, or the same for all."""
    monkeypatch.setattr("xruntime.streams.batching.COMPARED_BATCHES", 3)
    monkeypatch.setattr("xruntime.streams.batching.WORTHWHILE", 0.97)

    def slow(values: Tensor) -> Tensor:
        time.sleep(0.005 * values.shape[0] ** power)
        return -values

    sizes = {}
    for power in (2.0, 0.0):
        module = Gated(slow)
        rows = [torch.randn(1, 6) for _ in range(17)]
        with one_stream(module, first, queue_length=8) as streams:
            for row, result in zip(rows, behind(module, streams, rows[0], rows), strict=True):
                assert torch.equal(result.result(WAIT_S), -row)
            said = streams.describe()
            sizes[power] = module.sizes
        assert ("calls run alone: a batch of 4 takes" in said) == (power > 0)
    assert sizes[2.0][:16] == [1, *(4, 1, 1, 1, 1) * 3]
    assert 4 not in sizes[2.0][16:]
    assert sizes[0.0] == [1, *(4, 1, 1, 1, 1) * 3, 4, 1]


def test_results_of_map_are_in_order(two: CPUPool) -> None:
    rows = [torch.full((1, 3), float(number)) for number in range(200)]
    with MultiStreamModule(lambda x: x * 2, 2, two, max_batch=8) as streams:
        answers = list(streams.map(rows))
    assert [answer[0, 0].item() for answer in answers] == [2.0 * n for n in range(200)]


def waiting_calls(batching: Batching, calls: list[Any]) -> deque[Submission]:
    made = [submission_of(abs, (call,), {}) for call in calls]
    return deque(call._replace(group=batching.group_of(call)) for call in made)


@pytest.mark.parametrize(
    ("waiting", "streams", "taken"),
    [
        (1, 1, 1),
        (3, 1, 2),
        (5, 1, 4),
        (9, 1, 6),
        (16, 16, 1),
        (17, 16, 2),
        (40, 16, 2),
        (64, 16, 4),
    ],
)
def test_a_stream_takes_its_share_of_what_waits(waiting: int, streams: int, taken: int) -> None:
    batching = Batching(abs, 6, None, None)
    calls = waiting_calls(batching, [torch.zeros(1, 2)] * waiting)
    assert batch_sizes(6) == (1, 2, 4, 6)
    assert len(batching.take(calls, streams)) == taken
    assert len(calls) == waiting - taken


def test_only_calls_of_one_shape_and_mode_are_joined() -> None:
    table = torch.zeros(4)
    batching = Batching(abs, 4, Hint(0, scale=None), None)

    def call(shape: tuple[int, ...] = (1, 3), dtype: torch.dtype = torch.float32, **kwargs: Any):
        return submission_of(abs, (torch.zeros(shape, dtype=dtype),), {"scale": 1, **kwargs})

    with torch.inference_mode():
        inference = call()
    with torch.autocast("cpu", torch.bfloat16):
        autocast = call()
    groups = [
        batching.group_of(it)
        for it in (
            *(call(), inference, autocast, call((1, 4)), call((2, 3)), call(dtype=torch.float64)),
            *(call(scale=2), call(scale=1.0), call(scale=True), call(scale=torch.zeros(4))),
            *(call(scale=table), call(scale=[table, 1]), call(scale=[table, 2]), call(more=None)),
            call(scale=-0.0),
            call(scale=0.0),
        )
    ]
    assert None not in groups
    assert len(set(groups)) == len(groups)
    assert batching.group_of(call(scale=[table, 2])) == groups[12]
    assert batching.reasons == []


def test_calls_of_another_shape_keep_their_place(rows, first: CPUPool) -> None:
    module = Gated(torch.neg)
    wide = torch.ones(1, 9)
    with one_stream(module, first, check=False) as streams:
        futures = behind(module, streams, rows[0], [rows[1], wide, *rows[2:6], wide])
        for future, row in zip(futures, [rows[1], wide, *rows[2:6], wide], strict=True):
            assert torch.equal(future.result(WAIT_S), -row)
    assert module.sizes == [1, 4, 2, 1]


def test_keywords_hints_and_nests(first: CPUPool) -> None:
    def compute(*, x: Tensor, columns: Tensor, table: Tensor, name: str) -> dict[str, Any]:
        pair = Pair(x @ table, [columns * 2, name])
        return {"pair": pair, "name": name, "table": table}

    table = torch.randn(6, 2)
    module = Gated(compute)
    calls = [
        {"x": torch.randn(2, 6), "columns": torch.randn(3, 2), "table": table, "name": "a"}
        for _ in range(4)
    ]
    with one_stream(
        module,
        first,
        input_split_hint=Hint(x=0, columns=1, table=None),
        output_concat_hint=Hint(pair=(0, (1, None)), name=None, table=None),
    ) as streams:
        futures = behind(module, streams, calls[0], calls)
        results = [future.result(WAIT_S) for future in futures]
        again = behind(module, streams, calls[0], calls)
        results += [future.result(WAIT_S) for future in again]
        assert "run alone" not in streams.describe()
    assert 8 in module.sizes
    for call, result in zip(calls * 2, results, strict=True):
        alone = compute(**call)
        assert type(result["pair"]) is Pair
        torch.testing.assert_close(result["pair"].left, alone["pair"].left)
        assert torch.equal(result["pair"].right[0], alone["pair"].right[0])
        assert result["pair"].right[1] == "a"
        assert torch.equal(result["table"], table)


def test_a_call_that_fails_does_not_fail_the_others(first: CPUPool) -> None:
    table = torch.randn(5, 3)
    module = Gated(lambda ids: torch.nn.functional.embedding(ids, table))
    good = [torch.tensor([number]) for number in range(4)]
    with one_stream(module, first) as streams:
        for future in behind(module, streams, good[0], good):
            future.result(WAIT_S)
        module.entered.clear()
        module.gate.clear()
        ids = [good[1], torch.tensor([99]), good[2], good[3], *good]
        futures = behind(module, streams, good[0], ids)
        with pytest.raises(IndexError):
            futures.pop(1).result(WAIT_S)
        del ids[1]
        for number, future in zip(ids, futures, strict=True):
            assert torch.equal(future.result(WAIT_S), table[number])
        # It was the call, so batches go on.
        assert module.sizes[-6:] == [4, 1, 1, 1, 1, 4]
        assert "run alone" not in streams.describe()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x - x.sum(0, keepdim=True), "output differs by more than rounding"),
        (lambda x: x.reshape(1, 6), "a batch of 4 fails, and single calls do not: RuntimeError"),
        (lambda x: x.sum(0), "4 items gave a result of 6"),
        (lambda x: (x, len(x)), "returns other values beside the tensors"),
        (lambda x: (x, x.sum()), "the largest difference"),
        (lambda x: x.add_(1), "single calls do"),
        (lambda x: x[:1].expand(len(x), 6) + 0, "the largest difference"),
        (lambda x: None, "nothing to split"),
        (lambda x: (x, object()), "returns other values beside the tensors"),
    ],
)
def test_modules_whose_calls_cannot_be_joined(
    rows, first: CPUPool, function: Callable[[Tensor], Any], reason: str
) -> None:
    module = Gated(function)
    rows = rows[:4]
    with one_stream(module, first) as streams:
        calls = [row.clone() for row in rows]
        futures = behind(module, streams, rows[0].clone(), calls)
        for row, call, future in zip(rows, calls, futures, strict=True):
            alone = row.clone()
            expected, result = function(alone), future.result(WAIT_S)
            if isinstance(expected, tuple):
                expected, result = expected[0], result[0]
            assert (result is None) is (expected is None)
            if expected is not None:
                torch.testing.assert_close(result, expected)
            assert torch.equal(call, alone)
        assert reason in streams.describe()
        # Four are not joined any more.
        module.entered.clear()
        module.gate.clear()
        for future in behind(module, streams, rows[0].clone(), calls):
            future.result(WAIT_S)
    assert module.sizes.count(4) == 1


def test_calls_that_autograd_records(rows, first: CPUPool) -> None:
    layer = torch.nn.Linear(6, 2)
    module = Gated(layer)
    with torch.enable_grad(), one_stream(module, first) as streams:
        results = [it.result(WAIT_S) for it in behind(module, streams, rows[0], rows[:4])]
        for result in results:
            result.sum().backward()
        assert "autograd records the call" in streams.describe()
    torch.testing.assert_close(layer.weight.grad, torch.cat(rows[:4]).sum(0).expand(2, 6))


def test_a_batch_norm_in_training_mode_sees_single_calls(rows, first: CPUPool) -> None:
    norm = torch.nn.Sequential(torch.nn.BatchNorm1d(6))
    rows = [torch.randn(2, 6) for _ in range(4)]
    gate, entered = threading.Event(), threading.Event()
    reference = copy.deepcopy(norm)

    def wait(*_: object) -> None:
        entered.set()
        assert gate.wait(WAIT_S)

    norm.register_forward_pre_hook(wait)
    with Task(norm, first, max_batch=4) as task:
        futures = [task(row) for row in rows[:1]]
        assert entered.wait(WAIT_S)
        futures += [task(row) for row in rows[1:]]
        gate.set()
        for row, future in zip(rows, futures, strict=True):
            torch.testing.assert_close(future.result(WAIT_S), reference(row))
        assert "BatchNorm1d '0' is in training mode" in task.describe()
    torch.testing.assert_close(norm[0].running_mean, reference[0].running_mean)


def test_cancelled_calls_are_not_made(rows, first: CPUPool) -> None:
    made: list[float] = []
    module = Gated(lambda x: made.extend(x[:, 0].tolist()) or -x)
    rows = [torch.full((1, 2), float(number)) for number in range(6)]
    with one_stream(module, first, check=False) as streams:
        blocker = streams.submit(rows[0])
        assert module.entered.wait(WAIT_S)
        futures = [streams.submit(row) for row in rows[1:]]
        assert futures[1].cancel()
        module.gate.set()
        blocker.result(WAIT_S)
        with pytest.raises(CancelledError):
            futures[1].result(WAIT_S)
        assert [it.result(WAIT_S)[0, 0].item() for it in futures if not it.cancelled()] == [
            *(-1.0, -3.0, -4.0, -5.0)
        ]
    assert made == [0.0, 1.0, 3.0, 4.0, 5.0]


def test_a_call_cancelled_when_its_batch_is_chosen() -> None:
    """Between the choice and the beginning of the batch; the rest runs as smaller batches."""
    batching = Batching(torch.neg, 4, None, None, check=False)
    calls = [submission_of(torch.neg, (torch.ones(1),), {}) for _ in range(4)]
    calls = [call._replace(group=batching.group_of(call)) for call in calls]
    together = batching.together([*calls])
    assert calls[2].future.cancel()
    together.context.run(together.function, *together.args)
    assert [call.future.cancelled() for call in calls] == [False, False, True, False]
    for call in (calls[0], calls[1], calls[3]):
        assert call.future.result(0).tolist() == [-1.0]


def test_closing_finishes_what_was_accepted(rows, first: CPUPool) -> None:
    module = Gated(torch.neg)
    streams = one_stream(module, first)
    futures = behind(module, streams, rows[0], rows)
    streams.close()
    assert all(future.done() for future in futures)
    with pytest.raises(ClosedError):
        streams.submit(rows[0])


def test_leaving_by_an_exception_cancels_what_waits(rows, first: CPUPool) -> None:
    module = Gated(torch.neg)
    streams = one_stream(module, first)
    futures = [streams.submit(rows[0])]
    assert module.entered.wait(WAIT_S)
    futures += [streams.submit(row) for row in rows[:4]]
    futures[1].add_done_callback(lambda _: module.gate.set())
    with pytest.raises(KeyError), streams:
        raise KeyError
    assert [future.cancelled() for future in futures] == [False, True, True, True, True]


def test_submitters_wait_for_room_of_whole_batches(rows, first: CPUPool) -> None:
    module = Gated(torch.neg)
    with one_stream(module, first, queue_length=1) as streams:
        blocker = streams.submit(rows[0])
        assert module.entered.wait(WAIT_S)
        futures = [streams.submit(row) for row in rows[:4]]
        more: list[TaskFuture[Any]] = []
        submitters = [
            threading.Thread(target=lambda row=row: more.append(streams.submit(row)))
            for row in rows[4:]
        ]
        for submitter in submitters:
            submitter.start()
        submitters[0].join(0.05)
        assert more == []
        module.gate.set()
        for submitter in submitters:
            submitter.join(WAIT_S)
        for future in (blocker, *futures, *more):
            future.result(WAIT_S)
    assert len(more) == 4
    assert module.sizes[1] == 4


def test_a_task_joins_calls_too(rows, two: CPUPool) -> None:
    layer = torch.nn.Linear(6, 3)
    module = Gated(layer)
    with Task(module, two, max_batch=8) as task:
        for row, future in zip(rows, behind(module, task, rows[0], rows), strict=True):
            torch.testing.assert_close(future.get(WAIT_S), layer(row))
        assert task.run_sync(rows[0]).shape == (1, 3)
        assert task.describe().startswith(f"Task(Gated) on CPUs {two}\n")
        assert "1 of 8" in task.describe()
    with pytest.raises(ClosedError):
        task(rows[0])
    assert module.sizes[:2] == [1, 8]


def test_calls_of_many_threads(two: CPUPool) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

    def client(seed: int) -> None:
        rows = torch.randn(40, 1, 6, generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            futures = [streams.submit(row) for row in rows]
            for row, future in zip(rows, futures, strict=True):
                torch.testing.assert_close(future.result(WAIT_S), network(row))

    with MultiStreamModule(network, 2, two, max_batch=4) as streams:
        in_threads(client, range(8))


def test_nothing_of_a_batch_is_kept(first: CPUPool) -> None:
    module = Gated(torch.neg)
    rows = [torch.ones(1, 3) for _ in range(4)]
    gone = [weakref.ref(row) for row in rows]
    with one_stream(module, first) as streams:
        futures = behind(module, streams, torch.ones(1, 3), rows)
        gone += [weakref.ref(future.result(WAIT_S)) for future in futures]
        del rows, futures
        streams.submit(torch.ones(1, 3)).result(WAIT_S)
        gc.collect()
        assert [it() for it in gone] == [None] * 8


def test_an_exception_keeps_no_other_call(first: CPUPool) -> None:
    def compute(x: Tensor) -> Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return x + 1

    module = Gated(compute)
    rows = [torch.full((1, 3), float(number)) for number in (1, -1, 2, 3)]
    gone = [weakref.ref(row) for row in rows]
    with one_stream(module, first) as streams:
        futures = behind(module, streams, torch.ones(1, 3), rows)
        error = futures[1].exception(WAIT_S)
        assert [futures[at].result(WAIT_S)[0, 0].item() for at in (0, 2, 3)] == [2, 3, 4]
        streams.submit(torch.ones(1, 3)).result(WAIT_S)
        del rows, futures
        gc.collect()
        assert isinstance(error, ValueError)
        # The traceback refers to the call that failed.
        assert [it() is None for it in gone] == [True, False, True, True]


def test_a_comparison_that_fails_leaves_no_call_without_an_outcome(
    rows, first: CPUPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("xruntime.streams.batching.copied", no_memory)
    module = Gated(torch.neg)
    with one_stream(module, first) as streams:
        for future in behind(module, streams, rows[0], rows[:4]):
            assert isinstance(future.exception(WAIT_S), MemoryError)
        assert torch.equal(streams.submit(rows[0]).result(WAIT_S), -rows[0])


def test_copies_join_calls_of_their_own(rows, first: CPUPool) -> None:
    with MultiStreamModule(torch.nn.Linear(6, 2), 1, first, max_batch=2) as streams:
        streams.submit(rows[0]).result(WAIT_S)
        with copy.deepcopy(streams) as other:
            assert "batches so far: 0 of 1, 0 of 2" in other.describe()
            assert torch.equal(
                other.submit(rows[1]).result(WAIT_S), streams.submit(rows[1]).result(WAIT_S)
            )


@pytest.fixture(scope="module")
def compiled(compiler: None) -> CompiledForStreams:
    """Compiled for single items, and then for two and more by the streams that join calls."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    ).eval()
    options = {"cpp_cache_precompile_headers": False}
    return compile_for_streams(model, torch.randn(1, 6), threads=1, options=options)


@pytest.mark.long
def test_compiled_modules_are_compiled_for_batches_when_streams_are_made(
    compiled: CompiledForStreams, two: CPUPool
) -> None:
    rows = torch.randn(100, 1, 6)
    for _ in range(2):
        with MultiStreamModule(compiled, 2, two, max_batch=4) as streams:
            graphs = compiled.describe().split("for all shapes: ")[1]
            answers = list(streams.map(rows))
            assert compiled.describe().split("for all shapes: ")[1] == graphs
            text = streams.describe()
        # One library for single items, and one for batches of any size.
        assert graphs == "2"
        assert "run alone" not in text
        assert not text.endswith(" 0 of 4")
        for row, answer in zip(rows, answers, strict=True):
            torch.testing.assert_close(answer, compiled.eager(row))
    # After a change of the module all code is made again when it is needed.
    with torch.no_grad():
        compiled.model[0].weight.zero_()
    compiled.prepare()
    with MultiStreamModule(compiled, 2, two, max_batch=4) as streams:
        for row, answer in zip(rows, streams.map(rows), strict=True):
            torch.testing.assert_close(answer, compiled.eager(row))
        assert "run alone" not in streams.describe()


@pytest.mark.long
def test_calls_of_a_shape_that_was_not_prepared_run_alone(
    compiled: CompiledForStreams, two: CPUPool
) -> None:
    rows = torch.randn(12, 3, 6)
    with MultiStreamModule(compiled, 2, two, max_batch=2) as streams:
        for row, answer in zip(rows, streams.map(rows), strict=True):
            torch.testing.assert_close(answer, compiled.eager(row))
        assert "compiled for the shapes of the samples only" in streams.describe()


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "4", None])
def test_numbers_that_are_no_size_of_a_batch(first: CPUPool, number: Any) -> None:
    with pytest.raises(BatchError, match=r"max_batch=.*at least 1"):
        MultiStreamModule(abs, 1, first, max_batch=number)
    with pytest.raises(BatchError, match=r"max_batch=.*at least 1"):
        Task(abs, first, max_batch=number)
