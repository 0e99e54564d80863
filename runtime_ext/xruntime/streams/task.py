# SPDX-License-Identifier: Apache-2.0
"""`Task`: runs a function or module in the background, on CPUs of its own.

with Task(model, CPUPool("4-7")) as task:
    future = task(batch)      # a concurrent.futures.Future
    other_work()
    print(future.result())
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from xruntime.threads.cpu_pool import CPUPool, checked_pool
from xruntime.threads.worker import TaskFuture, Worker

if TYPE_CHECKING:
    from xruntime.streams.batching import Batching
    from xruntime.streams.hints import MultiStreamModuleHint
    from xruntime.streams.stream_pool import Streams

P = ParamSpec("P")
T = TypeVar("T")


class Task(Generic[P, T]):
    """Calls `function` on a thread of its own, whose native team has one thread for each CPU of `pool`.

    Calls run one after another, in the order of submission, with the submitter's grad, inference and
    autocast modes and context variables. `pool` None: one CPU of each core that this process may use.
    With `pin_workers` each worker of the team runs on one CPU; the thread itself keeps all.

    `max_batch` and the hints let waiting calls run as one, as in `MultiStreamModule`; calls of other shapes may
    then be overtaken. A batch has the context variables of its first call. `describe()` says what was joined.

    Python code in `function` holds the GIL; native operators run in parallel with the caller's.

    Raises TypeError if `function` cannot be called, CPUPoolError if `pool` is no pool, BatchError for
    an impossible `max_batch`, and AffinityRefusedError, SecondRuntimeError or KernelsUnavailableError if the thread cannot be set up.
    """

    def __init__(
        self,
        function: Callable[P, T],
        pool: CPUPool | None = None,
        *,
        pin_workers: bool = False,
        max_batch: int = 1,
        input_split_hint: MultiStreamModuleHint | None = None,
        output_concat_hint: MultiStreamModuleHint | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(
                f"a Task needs a function or module that can be called, not {type(function).__name__}"
            )
        self.function = function
        self.pool = CPUPool(smt=False) if pool is None else checked_pool(pool)
        self._name = f"Task({getattr(function, '__name__', type(function).__name__)})"
        self._batching: Batching | None = None
        self._thread: Worker | Streams
        self._submit: Callable[[tuple[Any, ...], dict[str, Any]], TaskFuture[T]]
        if max_batch == 1 and not isinstance(max_batch, bool):
            worker = Worker(self.pool.core_ids, name=self._name, pin_workers=pin_workers)
            self._thread, self._submit = worker, partial(worker.submit, function)
            return
        # Imported here: most tasks do without.
        from xruntime.streams.batching import Batching
        from xruntime.streams.stream_pool import Streams

        self._batching = Batching(function, max_batch, input_split_hint, output_concat_hint)
        streams = Streams(
            function,
            (self.pool,),
            pin_workers=pin_workers,
            queue_length=math.inf,
            batching=self._batching,
        )
        self._thread = streams
        self._submit = lambda args, kwargs: streams.submit(*args, **kwargs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[T]:
        """Submit a call; return a future at once. Raises ClosedError."""
        return self._submit(args, kwargs)

    submit = __call__

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Submit a call and wait for its result, or raise its exception."""
        return self._submit(args, kwargs).result()

    def close(self, *, wait: bool = True, cancel_pending: bool = False) -> None:
        """Refuse further calls; with `wait`, return when those submitted are done.

        `cancel_pending` cancels those that have not begun. Closing again does nothing.
        """
        self._thread.close(wait=wait, cancel_pending=cancel_pending)

    def describe(self) -> str:
        """Describe the task, its CPUs and what was joined, in a few lines."""
        joined = () if self._batching is None else self._batching.described()
        return "\n".join((f"{self._name} on CPUs {self.pool}", *(f"  {line}" for line in joined)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel_pending=kind is not None)

    def __repr__(self) -> str:
        return f"<{self._name} on CPUs {self.pool}>"
