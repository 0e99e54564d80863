# SPDX-License-Identifier: Apache-2.0
"""MultiStreamModule: a batch over streams gives what the module alone gives."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import warnings
import weakref

import pytest
import torch
from tests.runtime_ext.stream_threads import in_a_thread, in_threads
from tests.runtime_ext.teams import Team, read_team

from xruntime.errors import BatchError, ClosedError, CPUPoolError, GILWarning, StreamCountError
from xruntime.native import TIMED_OUT
from xruntime.streams.hints import MultiStreamModuleHint as Hint
from xruntime.streams.multi_stream_module import MultiStreamModule
from xruntime.streams.stream_count import StreamCountSearch
from xruntime.streams.stream_pool import Streams
from xruntime.threads.cpu_pool import CPUPool, get_default_num_streams

# Most modules here are eager, and what is warned of has a test of its own.
pytestmark = [
    pytest.mark.usefixtures("nothing_stays_changed"),
    pytest.mark.filterwarnings("ignore::xruntime.errors.GILWarning"),
]


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.head = torch.nn.Linear(288, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().flatten(1))


class Called(torch.nn.Module):
    """Calls a function, so that a test can write its module in a line."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


@pytest.fixture
def network() -> Network:
    return Network().eval()


def batch_of(items: int) -> torch.Tensor:
    return torch.rand(items, 3, 8, 8, generator=torch.Generator().manual_seed(items))


@pytest.mark.parametrize("streams", [1, 2, 3, 64])
def test_result_is_the_modules_own(network, two: CPUPool, streams: int) -> None:
    with MultiStreamModule(network, streams, two, oversubscribe=True) as multi:
        assert multi.get_stream_number() == streams
        for items in (1, 2, 3, 4, 7, 16, 64, 200):
            batch = batch_of(items)
            torch.testing.assert_close(multi(batch), network(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_script_module_in_parts_and_joined(network, two: CPUPool, dtype: torch.dtype) -> None:
    batch = batch_of(4).to(dtype)
    scripted = torch.jit.freeze(torch.jit.trace(network.to(dtype), batch))
    with (
        MultiStreamModule(scripted, 2, two) as joined,
        MultiStreamModule(scripted, 2, two, concat_output=False) as parts,
    ):
        torch.testing.assert_close(joined(batch), network(batch))
        assert len(parts(batch)) == 2
        assert torch.equal(torch.cat(parts(batch)), joined(batch))


def test_one_stream_that_is_not_joined_gives_a_list_of_one(network, two: CPUPool) -> None:
    with MultiStreamModule(network, 1, two, concat_output=False) as multi:
        outputs = multi(batch_of(2))
        assert isinstance(outputs, list)
        torch.testing.assert_close(outputs, [network(batch_of(2))])


def test_keywords_in_and_a_dict_out(network, two: CPUPool) -> None:
    """test_round_trips.py has the other forms of calls."""
    module = Called(lambda *, x, scale: {"y": network(x) * scale, "scale": scale})
    batch = batch_of(5)
    with MultiStreamModule(
        module, 2, two, True, Hint(x=0, scale=None), Hint(y=0, scale=None)
    ) as multi:
        assert f"2 streams on CPUs {two}" in repr(multi)
        output = multi(x=batch, scale=2)
        torch.testing.assert_close(output["y"], network(batch) * 2)
        assert output["scale"] == 2


@pytest.mark.parametrize("word", ["auto", "AUTO"])
def test_automatic_number_begins_with_one_a_core(network, first, two, word: str) -> None:
    for pool in (first, two):
        with MultiStreamModule(network, word, pool) as multi:
            assert multi.get_stream_number() == get_default_num_streams(pool)


def test_automatic_number_is_measured_and_kept(network, two: CPUPool) -> None:
    with MultiStreamModule(network, "auto", two) as multi:
        small, large = batch_of(1), batch_of(8)
        torch.testing.assert_close(multi(small), network(small))
        assert "not decided" in multi.describe()
        for _ in range(6):
            torch.testing.assert_close(multi(large), network(large))
        text = multi.describe()
        assert "not decided" not in text
        rates = {n: float(text.split(f"rate with {n}: ")[1].split()[0]) for n in (1, 2)}
        assert multi.num_streams == max(rates, key=rates.__getitem__)
        torch.testing.assert_close(multi(large), network(large))


def test_automatic_number_is_found_on_batches_too_small_for_the_largest(
    network, two: CPUPool
) -> None:
    with MultiStreamModule(network, "auto", two) as multi:
        for _ in range(6):
            torch.testing.assert_close(multi(batch_of(1)), network(batch_of(1)))
        assert "not decided" not in multi.describe()
        assert multi.num_streams == 1


def test_of_the_numbers_that_small_batches_fill_the_fastest_is_kept() -> None:
    search = StreamCountSearch((8, 4, 2, 1))
    seconds = {4: 3.0, 2: 1.0, 1: 2.0}
    tried = []
    while search.best is None:
        count = search.next_count(4)
        if count is not None:
            search.record(count, 4, seconds[count])
        tried.append(count)
    assert tried == [4] * 3 + [2] * 3 + [1] * 3 + [None] * 3
    assert search.best == 2


@pytest.mark.parametrize("inside", [False, True])
def test_kind_of_the_result_does_not_depend_on_the_batch(two: CPUPool, inside: bool) -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(inside):
            return x + 1

    with MultiStreamModule(compute, 2, two) as multi:
        for mode in (torch.inference_mode, torch.enable_grad):
            with mode():
                assert [multi(torch.zeros(n)).is_inference() for n in (1, 2)] == [inside] * 2


def test_single_calls_go_on_while_the_number_is_found(network, two: CPUPool) -> None:
    answered: list[int] = []
    with MultiStreamModule(network, "auto", two) as multi:
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                answered.append(multi.submit(batch_of(1)).result(60).shape[0])

        server = threading.Thread(target=serve)
        server.start()
        for _ in range(6):
            multi(batch_of(8))
        stop.set()
        server.join(60)
        assert "not decided" not in multi.describe()
        assert [answer.shape for answer in multi.map([batch_of(1)])] == [(1, 4)]
    assert set(answered) == {1}


def test_more_streams_than_cores_become_one_a_core_and_say_so(network, two: CPUPool) -> None:
    with pytest.warns(UserWarning, match="num_streams=5 is more than the 2 cores"):
        multi = MultiStreamModule(network, 5, two)
    with multi:
        assert multi.get_stream_number() == 2
        torch.testing.assert_close(multi(batch_of(5)), network(batch_of(5)))


def test_streams_run_on_disjoint_cpus_with_teams_of_their_own(two: CPUPool) -> None:
    meet = threading.Barrier(2)

    def look(x: torch.Tensor) -> Team:
        meet.wait(60)  # both are inside at once, so they are two threads
        return read_team()

    with MultiStreamModule(Called(look), 2, two, concat_output=False) as multi:
        for _ in range(3):
            expected = [Team(1, [[cpu]]) for cpu in two.core_ids]
            assert multi(torch.zeros(2)) == expected
    with MultiStreamModule(Called(lambda x: read_team()), 1, two, concat_output=False) as multi:
        assert multi(torch.zeros(2)) == [Team(2, [two.core_ids] * 2)]


def test_calls_from_many_threads_at_once_keep_apart(network, two: CPUPool) -> None:
    def work(items: int) -> None:
        batch = batch_of(items)
        expected = network(batch)
        for _ in range(20):
            torch.testing.assert_close(multi(batch), expected)

    with MultiStreamModule(network, 2, two) as multi:
        in_threads(work, range(1, 9))


def test_no_batch_is_kept(network, two: CPUPool) -> None:
    with MultiStreamModule(network, 2, two) as multi:
        batch = batch_of(4)
        output = multi(batch)
        traces = [weakref.ref(batch), weakref.ref(output)]
        del batch, output
        multi(batch_of(2))
        gc.collect()
        assert [trace() for trace in traces] == [None, None]


def test_weights_are_shared_and_gradients_flow(two: CPUPool) -> None:
    layer = torch.nn.Linear(3, 1)
    with MultiStreamModule(layer, 2, two) as multi:
        assert [p.data_ptr() for p in multi.parameters()] == [
            p.data_ptr() for p in layer.parameters()
        ]
        multi(torch.ones(4, 3)).sum().backward()
    torch.testing.assert_close(layer.weight.grad, torch.full((1, 3), 4.0))


def test_exception_names_its_stream_and_leaves_the_rest_usable(two: CPUPool) -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        if x[0] == 1:
            raise KeyError("no")
        return x

    with MultiStreamModule(Called(fail), 2, two) as multi:
        with pytest.raises(KeyError) as caught:
            multi(torch.tensor([0.0, 1.0]))
        assert caught.value.__notes__ == ["(raised in stream 1 of 2)"]
        assert torch.equal(multi(torch.zeros(4)), torch.zeros(4))


def test_batches_that_do_not_fit_are_refused_before_anything_runs(network, two: CPUPool) -> None:
    calls: list[int] = []
    module = Called(lambda x, y: calls.append(1))
    with MultiStreamModule(module, 2, two) as multi, pytest.raises(BatchError):
        multi(torch.zeros(2), torch.zeros(3))
    assert calls == []


@pytest.mark.parametrize("layer", [torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)])
def test_layers_that_train_are_refused(two: CPUPool, layer: torch.nn.Module) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), layer)
    batch = torch.rand(4, 3)
    with MultiStreamModule(model, 2, two) as multi:
        for call in (multi, multi.submit):
            with pytest.raises(BatchError, match=r"'1' is in training mode.*\.eval\(\)"):
                call(batch)
        model.eval()
        torch.testing.assert_close(multi(batch), model(batch))
        torch.testing.assert_close(multi.submit(batch).result(60), model(batch))


def test_a_wrong_guess_of_the_batch_is_found_on_the_first_call(two: CPUPool) -> None:
    # Steps come first and items second, as many of both: the sizes say nothing.
    sequences = torch.rand(4, 4, 3)
    module = Called(lambda x: x.cumsum(0))
    with MultiStreamModule(module, 2, two) as multi:
        for _ in range(2):
            with pytest.raises(BatchError, match=r"whole batch: .*input_split_hint.*check=False"):
                multi(sequences)
    with MultiStreamModule(module, 2, two, True, Hint(1), Hint(1)) as multi:
        torch.testing.assert_close(multi(sequences), module(sequences))
    with MultiStreamModule(module, 2, two, check=False) as multi:
        assert multi(sequences).shape == sequences.shape


def test_the_whole_is_compared_once_and_on_what_the_caller_gave(two: CPUPool) -> None:
    sizes: list[int] = []

    def double(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.shape[0])
        return x.mul_(2)

    with MultiStreamModule(Called(double), 2, two) as multi:
        for items in (1, 4, 4):
            x = torch.ones(items)
            assert multi(x).tolist() == x.tolist() == [2.0] * items
    assert sorted(sizes) == [1, 2, 2, 2, 2, 4]


def test_map_keeps_the_order_and_reads_no_further_than_needed(two: CPUPool) -> None:
    read: list[int] = []

    def requests():
        for number in range(1000):
            read.append(number)
            yield number

    with MultiStreamModule(Called(lambda n: n * n), 2, two, queue_length=1) as multi:
        answers = multi.map(requests())
        assert next(answers) == 0
        assert len(read) <= 2 * (1 + 1)
        assert list(answers) == [n * n for n in range(1, 1000)]


def test_map_raises_where_the_result_would_come(two: CPUPool) -> None:
    with MultiStreamModule(Called(lambda n: 6 // n), 2, two) as multi:
        answers = multi.map([3, 2, 0, 1])
        assert [next(answers), next(answers)] == [2, 3]
        with pytest.raises(ZeroDivisionError):
            next(answers)
        assert list(multi.map([1])) == [6]


def test_submit_gives_whole_calls_to_free_streams_and_waits_when_full(two: CPUPool) -> None:
    release = threading.Event()
    began = threading.Semaphore(0)

    def work(number: int, *, plus: int = 0) -> int:
        began.release()
        assert release.wait(60)
        return number + plus

    with MultiStreamModule(Called(work), 2, two, queue_length=1) as multi:
        running = [multi.submit(1), multi.submit(2, plus=10)]
        for _ in running:
            assert began.acquire(timeout=60)
        waiting = [multi.submit(3), multi.submit(4)]
        more: list = []
        submitter = threading.Thread(target=lambda: more.append(multi.submit(5)))
        submitter.start()
        # Two run, two wait, and there is no room for a fifth.
        assert not began.acquire(timeout=0.05)
        assert more == []
        assert waiting[1].cancel()
        release.set()
        submitter.join(60)
        assert [future.result(60) for future in (*running, waiting[0], *more)] == [1, 12, 3, 5]


def test_batches_and_single_calls_share_the_streams(network, two: CPUPool) -> None:
    with MultiStreamModule(network, 2, two) as multi:
        futures = [multi.submit(batch_of(1)) for _ in range(4)]
        torch.testing.assert_close(multi(batch_of(6)), network(batch_of(6)))
        for future in futures:
            torch.testing.assert_close(future.result(), network(batch_of(1)))


def test_closing_finishes_what_was_accepted(two: CPUPool) -> None:
    done: list[int] = []
    multi = MultiStreamModule(Called(done.append), 2, two, queue_length=50)
    futures = [multi.submit(number) for number in range(100)]
    multi.close()
    assert all(future.done() for future in futures)
    assert sorted(done) == list(range(100))
    multi.close()
    with pytest.raises(ClosedError):
        multi.submit(1)
    with pytest.raises(ClosedError):
        multi(torch.zeros(2))


def test_a_callback_may_use_the_streams_that_cancel_its_call(two: CPUPool) -> None:
    release, refused = threading.Event(), []

    def again(_: object) -> None:
        with pytest.raises(ClosedError) as caught:
            multi.submit(0)
        refused.append(caught.value)

    multi = MultiStreamModule(lambda _: release.wait(60), 1, two)
    futures = [multi.submit(number) for number in range(3)]
    futures[-1].add_done_callback(again)
    threading.Timer(0.01, release.set).start()
    with pytest.raises(KeyError), multi:
        raise KeyError
    assert futures[-1].cancelled()
    assert len(refused) == 1


@pytest.mark.parametrize("whole", [False, True])
def test_a_call_may_close_its_own_streams(two: CPUPool, whole: bool) -> None:
    def close(x: torch.Tensor) -> torch.Tensor:
        multi.close()
        return x + 1

    multi = MultiStreamModule(close, 2, two)
    x = torch.zeros(2)
    result = in_a_thread(lambda: multi.submit(x).result(60) if whole else multi(x))
    assert result.tolist() == [1.0, 1.0]
    with pytest.raises(ClosedError):
        multi.submit(x)


def test_streams_nobody_holds_end_their_threads(network, two: CPUPool) -> None:
    before = set(threading.enumerate())
    multi = MultiStreamModule(network, 2, two)
    multi(batch_of(2))
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    del multi
    gc.collect()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()


def test_copies_have_streams_of_their_own(network, two: CPUPool) -> None:
    with MultiStreamModule(network, 2, two) as multi:
        other = copy.deepcopy(multi)
        multi.close()
        with other:
            torch.testing.assert_close(other(batch_of(3)), network(batch_of(3)))


def test_eager_modules_are_warned_of_once(network, two: CPUPool) -> None:
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        multi = MultiStreamModule(network, 2, two)
    assert [warning.category for warning in told] == [GILWarning] * has_lock
    assert all("compile_for_streams" in str(warning.message) for warning in told)
    with multi, warnings.catch_warnings():
        warnings.simplefilter("error")
        multi(batch_of(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MultiStreamModule(network, 1, two).close()


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "foo", None])
def test_numbers_of_streams_that_mean_nothing(network, two: CPUPool, count: object) -> None:
    with pytest.raises(
        StreamCountError, match=r'allowed are 1 to 2, the cores of the pool, or "auto"'
    ):
        MultiStreamModule(network, count, two)  # type: ignore[arg-type]


def test_hints_that_are_none(network, two: CPUPool) -> None:
    with pytest.raises(TypeError, match="input_split_hint=0: it has to be"):
        MultiStreamModule(network, 2, two, input_split_hint=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not int"):
        MultiStreamModule(3, 2, two)  # type: ignore[arg-type]
    with pytest.raises(CPUPoolError, match=r"\[0\] is not a CPUPool"):
        MultiStreamModule(network, 2, [0])  # type: ignore[arg-type]


def test_a_submitted_call_is_done_when_it_has_ended_and_not_before(first: CPUPool) -> None:
    entered, gate = threading.Event(), threading.Event()

    def call() -> None:
        entered.set()
        assert gate.wait(60)

    streams = Streams(call, (first,))
    future = streams.submit()
    assert entered.wait(60)
    mailbox = future.line.mailbox
    assert mailbox.wait(future.ticket, 0) == TIMED_OUT
    gate.set()
    assert mailbox.wait(future.ticket, 60_000_000) == 0
    assert future.result(60) is None
    streams.close()


def test_a_batch_with_other_dimensions_is_compared_again(two: CPUPool) -> None:
    """Attention over the last dimension but one, which is the first of a single sequence."""
    module = Called(lambda x: torch.softmax(x @ x.mT, -1) @ x).eval()
    with MultiStreamModule(module, 2, two) as multi:
        for _ in range(2):
            multi(torch.rand(2, 4, 3))
            with pytest.raises(BatchError, match=r"whole batch: .*input_split_hint"):
                multi(torch.rand(4, 3))
