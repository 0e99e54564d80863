# SPDX-License-Identifier: Apache-2.0
"""`MultiStreamModule`: splits batches over streams that share one copy of the weights.

model = MultiStreamModule(compiled, num_streams=16, cpu_pool=CPUPool(node=0))
output = model(batch)                   # split over 16 streams, joined again
for answer in model.map(requests): ...  # or one whole request for each stream
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self

import torch

from xlaunch.text import counted, plural
from xruntime.aoti.package import StreamPackage
from xruntime.compilation.gil import gil_enabled, kind_of
from xruntime.errors import ClosedError, GILWarning, StreamCountError
from xruntime.pytrees import tensor_leaves
from xruntime.streams.batching import Batching
from xruntime.streams.compiled_module import CompiledForStreams
from xruntime.streams.hints import MultiStreamModuleHint
from xruntime.streams.joining import join
from xruntime.streams.splitting import count_items, even_sizes, split
from xruntime.streams.stream_count import StreamCountSearch, counts_to_try
from xruntime.streams.stream_pool import QUEUE_LENGTH, Streams, ordered_results
from xruntime.streams.whole_batch import (
    compare,
    copied,
    eager_original,
    training_dependent,
    training_error,
)
from xruntime.threads.cpu_pool import CPUPool, checked_pool, get_default_num_streams
from xruntime.threads.worker import TaskFuture

AUTO: Final = "auto"


class MultiStreamModule(torch.nn.Module):
    """Splits each batch over streams, calls `model` in each with its part, joins the results.

    A stream is a host thread with an OpenMP team of its own on its share of `cpu_pool` (None: one CPU
    of each core that this process may use). Many threads may call the module at once.

    num_streams
        A number, or "auto": the first batches try several numbers, the fastest is kept, and
        `describe()` shows the rates; numbers above the items of a batch are not tried. More streams
        than cores become one for each core, with a warning; `oversubscribe` allows them. Cores that are
        left over go to the first streams, except for modules that were compiled for a number of threads.
    concat_output
        False: return the list of the parts' outputs instead of joining them.
    input_split_hint, output_concat_hint
        The dimension of each tensor that holds the batch (see MultiStreamModuleHint). None: the first
        of every tensor.
    pin_workers
        Run each worker of a stream's team on one CPU.
    queue_length
        The number of calls of `submit` and `map`, or batches of `max_batch` calls, that wait for each stream
        before the caller does.
    check
        Compare the first batch that is split without hints, and the first whose tensors have other numbers of
        dimensions, with a call of the eager module on all of it: without a hint the batch's dimension is a
        guess. Packages have no eager module. With
        `max_batch`, also compare the first three batches of waiting calls of each shape and size with single calls:
        their results, and their time.
    max_batch
        Maximum number of waiting calls of `submit` and `map` that run as one call: those of equal shapes,
        dtypes and other values, joined along the batch dimension. Each gets its own part of the result. A
        stream that becomes free takes its share of what waits, and a call that finds a free stream runs at
        once. A module that was compiled for streams is compiled for batches of its samples here. Calls that
        cannot be joined run alone; `describe()` says why. If a batch fails, its calls are made one by one.

    Streams take over the caller's grad, inference and autocast modes. Streams of an eager module compute
    the right result but wait for each other in Python: one GILWarning says so and names the remedy,
    `compile_for_streams`.

    Raises StreamCountError for an impossible number, CPUPoolError if `cpu_pool` is no pool, BatchError for
    an impossible `max_batch`, TypeError for a model that cannot be called. A call raises BatchError if the
    module cannot be split: a batch norm or dropout is in training mode, arguments or outputs do not fit, or
    the first comparison fails.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        num_streams: int | str = AUTO,
        cpu_pool: CPUPool | None = None,
        concat_output: bool = True,
        input_split_hint: MultiStreamModuleHint | None = None,
        output_concat_hint: MultiStreamModuleHint | None = None,
        *,
        pin_workers: bool = False,
        oversubscribe: bool = False,
        queue_length: int = QUEUE_LENGTH,
        check: bool = True,
        max_batch: int = 1,
    ) -> None:
        super().__init__()
        if not callable(model):
            raise TypeError(
                f"MultiStreamModule needs a module that can be called, not {type(model).__name__}"
            )
        _check_hint("input_split_hint", input_split_hint)
        _check_hint("output_concat_hint", output_concat_hint)
        self.model = model
        self.cpu_pool = CPUPool(smt=False) if cpu_pool is None else checked_pool(cpu_pool)
        self.concat_output = concat_output
        self.input_split_hint = input_split_hint
        self.output_concat_hint = output_concat_hint
        self._kind = kind_of(model)
        self._training_dependent = training_dependent(model)
        guesses = input_split_hint is None or output_concat_hint is None
        self._compares = check and concat_output and guesses
        """Whether the first batch of each form is compared with the whole."""

        self._compared: set[tuple[Any, ...]] = set()
        """The forms: which arguments are tensors, and their numbers of dimensions."""

        self._pin_workers = pin_workers
        self._queue_length = queue_length
        self._oversubscribe = oversubscribe
        self._search_lock = threading.RLock()
        """Held while a batch is measured."""
        self._search: StreamCountSearch | None = None
        self._rates: dict[int, float] = {}
        """Measured items per second, by the number of streams."""
        count = self._checked_count(num_streams)
        self._warn_of_the_gil(count)
        self._max_batch, self._check = max_batch, check
        self._batching = self._new_batching()
        self._streams = self._start(count)

    @property
    def num_streams(self) -> int:
        """The number of streams; under "auto", the number that the next batch is tried on."""
        return len(self._streams)

    def get_stream_number(self) -> int:
        """The same as `num_streams`, under the name in Intel's extension for PyTorch."""
        return self.num_streams

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model on all streams with the parts of the arguments; return the joined outputs.

        A batch with fewer items than streams uses that many streams. An exception of a stream is
        raised when all have ended.
        """
        self._refuse_training()
        if self._compares:
            return self._compared_call(args, kwargs)
        return self._split_call(args, kwargs)

    def _split_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._search is not None:
            with self._search_lock:
                if self._search is not None:
                    return self._measured_call(self._search, args, kwargs)
        return self._call(self._streams, args, kwargs)

    def _compared_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model, and compare the result with that of the whole batch if it is split."""
        form = tuple([(path, tensor.dim()) for path, tensor in tensor_leaves((args, kwargs))])
        if form in self._compared:
            return self._split_call(args, kwargs)
        original = eager_original(self.model)
        items = count_items(args, kwargs, self.input_split_hint)
        if original is None or min(items, len(self._streams)) < 2:
            return self._split_call(args, kwargs)
        call = copied((args, kwargs))
        result = self._split_call(args, kwargs)
        compare(self.model, original, call, result)
        self._compared.add(form)
        return result

    def _refuse_training(self) -> None:
        for name, layer in self._training_dependent:
            if layer.training:
                raise training_error(name, layer)

    def submit(self, /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Call the model with these arguments, unsplit, on the next free stream; return a future.

        Waits while the queue is full. Raises ClosedError, and BatchError for a module in training mode.
        """
        self._refuse_training()
        while True:
            streams = self._streams
            try:
                return streams.submit(*args, **kwargs)
            except ClosedError:
                # The measurement of a batch may have replaced the streams meanwhile.
                if streams is self._streams:
                    raise

    def map(self, calls: Iterable[Any]) -> Iterator[Any]:
        """Call the model with each item of `calls`, unsplit, on all streams; yield results in order."""
        return ordered_results(self.submit, calls, self._streams.room)

    def close(self) -> None:
        """Refuse further calls; return when those accepted are done."""
        self._streams.close()

    def describe(self) -> str:
        """Describe the streams, their CPUs and the measured rates, in a few lines."""
        pools = self._streams.pools
        lines = [f"{counted(len(pools), 'stream')} of {self._kind.value}"]
        lines += [
            f"  stream {index}: {plural(len(pool), 'CPU')} {pool}, {counted(len(pool), 'thread')}"
            for index, pool in enumerate(pools)
        ]
        if self._search is not None:
            lines.append(
                "  the number is not decided: the next batches with an item for each stream are measured"
            )
        if self._compares and eager_original(self.model) is None:
            lines.append(
                "  not compared with a whole batch, because there is no eager module: without a hint,"
                " dimension 0 of every tensor is the batch"
            )
        lines += [f"  rate with {count}: {rate:.1f} items/s" for count, rate in self._rates.items()]
        if self._batching is not None:
            lines += [f"  {line}" for line in self._batching.described()]
        return "\n".join(lines)

    def extra_repr(self) -> str:
        """The text that torch prints beside the model. **Ex.:** ``2 streams on CPUs 0-7``."""
        return f"{counted(self.num_streams, 'stream')} on CPUs {self.cpu_pool}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._streams.close(cancel_pending=kind is not None)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has threads and locks of its own.
        state = self.__dict__.copy()
        del state["_search_lock"], state["_streams"], state["_batching"]
        return state | {"_count": self.num_streams}

    def __setstate__(self, state: dict[str, Any]) -> None:
        count = state.pop("_count")
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch has no types there
        self._search_lock = threading.RLock()
        self._batching = self._new_batching()
        self._streams = self._start(count)

    def _new_batching(self) -> Batching | None:
        if self._max_batch == 1 and not isinstance(self._max_batch, bool):
            return None
        hints = self.input_split_hint, self.output_concat_hint
        return Batching(self.model, self._max_batch, *hints, check=self._check)

    def _checked_count(self, asked: int | str) -> int:
        """Return the number to start with; set up the search under "auto"."""
        cores = self.cpu_pool.core_count
        fixed, runners = _fixed_threads(self.model), _runners(self.model)
        if isinstance(asked, str) and asked.lower() == AUTO:
            limit = get_default_num_streams(self.cpu_pool)
            if fixed is not None or runners is not None:
                return max(1, min(limit // (fixed or 1), runners or limit))
            counts = counts_to_try(limit)
            if len(counts) > 1:
                self._search = StreamCountSearch(counts)
            return limit
        if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
            raise StreamCountError(
                f'num_streams={asked!r}: allowed are 1 to {cores}, the cores of the pool, or "auto"'
            )
        if runners is not None and asked > runners:
            raise StreamCountError(
                f"num_streams={asked} is more than the {runners} calls that the package runs at a time:"
                f" load it by load_package(path, runners={asked})"
            )
        if asked > cores and not self._oversubscribe:
            warnings.warn(
                f"num_streams={asked} is more than the {cores} cores of the pool, so {cores} are used;"
                " oversubscribe=True lets streams share cores",
                stacklevel=3,
            )
            return cores
        return asked

    def _start(self, count: int) -> Streams:
        return Streams(
            self.model,
            self._shares(count),
            pin_workers=self._pin_workers,
            queue_length=self._queue_length,
            batching=self._batching,
        )

    def _shares(self, count: int) -> tuple[CPUPool, ...]:
        cores = self.cpu_pool.per_core()
        fixed = _fixed_threads(self.model)
        if count > len(cores):
            shares = tuple(cores[index % len(cores)] for index in range(count))
        else:
            # Compiled code is for one number of threads, so cores that are left over stay idle.
            shares = self.cpu_pool.split(count, equal=fixed is not None)
        if fixed is None:
            return shares
        if len(shares[0]) < fixed:
            raise StreamCountError(
                f"num_streams={count} gives streams of {len(shares[0])} CPUs, and the module was"
                f" compiled for {fixed} threads: this pool of {len(self.cpu_pool)} CPUs has room for at"
                f" most {len(self.cpu_pool) // fixed} streams. Use fewer streams, or compile for fewer threads"
            )
        return tuple(_first_cpus(share, fixed) for share in shares)

    def _call(self, streams: Streams, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hint = self.input_split_hint
        parts = split(args, kwargs, hint, len(streams))
        outputs = streams.call_each(parts)
        sizes = None
        if self.concat_output and self.output_concat_hint is None and len(parts) > 1:
            # Without a hint, only its size shows whether an output holds the batch.
            sizes = even_sizes(count_items(args, kwargs, hint), len(parts))
        return join(outputs, self.output_concat_hint, self.concat_output, sizes=sizes)

    def _measured_call(
        self, search: StreamCountSearch, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        items = count_items(args, kwargs, self.input_split_hint)
        count = search.next_count(items)
        if count is not None:
            self._use_streams(count)
        began = time.perf_counter()
        result = self._call(self._streams, args, kwargs)
        if count is not None:
            search.record(count, items, time.perf_counter() - began)
            self._rates = search.measured
        if search.best is not None:
            self._use_streams(search.best)
            self._search = None
        return result

    def _use_streams(self, count: int) -> None:
        if count != len(self._streams):
            before, self._streams = self._streams, self._start(count)
            before.close()

    def _warn_of_the_gil(self, count: int) -> None:
        if count == 1 or not self._kind.holds_gil or not gil_enabled():
            return
        warnings.warn(
            f"{count} streams call {self._kind.value}, which holds the GIL while it runs Python, so the"
            " streams wait for each other. Remedy: xruntime.compile_for_streams(model, sample), which"
            " compiles it to run without the GIL",
            GILWarning,
            stacklevel=3,
        )


def _fixed_threads(model: object) -> int | None:
    """The number of threads that a model was compiled for; None if it takes any number."""
    return model.threads if isinstance(model, (CompiledForStreams, StreamPackage)) else None


def _runners(model: object) -> int | None:
    """The number of calls that a model can run at a time; None without a limit."""
    return model.runners if isinstance(model, StreamPackage) else None


def _first_cpus(pool: CPUPool, count: int) -> CPUPool:
    """The first `count` CPUs of a pool, spread over as many cores as possible."""
    by_sibling = sorted((rank, cpu) for core in pool.cores for rank, cpu in enumerate(core))
    return CPUPool([cpu for _, cpu in by_sibling[:count]], machine=pool.machine)


def _check_hint(name: str, hint: object) -> None:
    if hint is not None and not isinstance(hint, MultiStreamModuleHint):
        raise TypeError(
            f"{name}={hint!r}: it has to be a MultiStreamModuleHint, such as"
            " MultiStreamModuleHint(0), or None"
        )
