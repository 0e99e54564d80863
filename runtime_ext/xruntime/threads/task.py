# SPDX-License-Identifier: Apache-2.0
"""`Task`: runs a function or module in the background, on CPUs of its own.

with Task(model, CPUPool("4-7")) as task:
    future = task(batch)      # a concurrent.futures.Future
    other_work()
    print(future.result())
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, Self, TypeVar

from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.worker import TaskFuture, Worker

P = ParamSpec("P")
T = TypeVar("T")


class Task(Generic[P, T]):
    """Calls `function` on a thread of its own, whose native team has one thread for each CPU of `pool`.

    Calls run one after another, in the order of submission, with the submitter's grad, inference and
    autocast modes and context variables. `pool` None: one CPU of each core that this process may use.
    With `pin_workers` each worker of the team runs on one CPU; the thread itself keeps all.

    Python code in `function` holds the GIL; native operators run in parallel with the caller's.

    Raises TypeError if `function` cannot be called, and AffinityRefusedError, SecondRuntimeError
    or KernelsUnavailableError if the thread cannot be set up.
    """

    def __init__(
        self,
        function: Callable[P, T],
        pool: CPUPool | None = None,
        *,
        pin_workers: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(
                f"a Task needs a function or module that can be called, not {type(function).__name__}"
            )
        self.function = function
        self.pool = CPUPool(smt=False) if pool is None else pool
        name = getattr(function, "__name__", type(function).__name__)
        self._worker = Worker(
            self.pool.core_ids, len(self.pool), name=f"Task({name})", pin_workers=pin_workers
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[T]:
        """Submit a call; return a future at once. Raises ClosedError."""
        return self._worker.submit(self.function, args, kwargs)

    submit = __call__

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Submit a call and wait for its result, or raise its exception."""
        return self._worker.submit(self.function, args, kwargs).result()

    def close(self, *, wait: bool = True, cancel_pending: bool = False) -> None:
        """Refuse further calls; with `wait`, return when those submitted are done.

        `cancel_pending` cancels those that have not begun. Closing again does nothing.
        """
        self._worker.close(wait=wait, cancel_pending=cancel_pending)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel_pending=kind is not None)

    def __repr__(self) -> str:
        return f"<{self._worker.name} on CPUs {self.pool}>"
