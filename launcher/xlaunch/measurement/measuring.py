# SPDX-License-Identifier: Apache-2.0
"""Measuring instances while they run: the start barrier, and the numbers that they print or report.

Exists only under `--metric`. The supervisor hands on what it relays; log files and the FIFOs that
XLAUNCH_METRICS names are read here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import tempfile
import time
from collections.abc import Callable

from xlaunch.measurement.barrier import Barrier
from xlaunch.measurement.live import LiveWriter
from xlaunch.measurement.metric_lines import Metric, parse_metric
from xlaunch.measurement.metrics import Collector, Measured
from xlaunch.output.logs import STREAMS, log_path
from xlaunch.output.tagged_lines import READ_SIZE
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import Request

LOG_INTERVAL_S = 0.1
"""Between looks at log files; the times of values in them are as exact as that."""

MOST_AT_ONCE = 64 * READ_SIZE
"""Bytes of one log file that are read in one look, so that signals are heard in between."""


Note = Callable[[str], None]
"""Takes one line for the user."""


def metrics_of(request: Request) -> tuple[Metric, ...]:
    """What `--metric` asks for, each once. Raises `UsageError`."""
    return tuple([parse_metric(text) for text in dict.fromkeys(request.metric)])


def make_folder() -> str:
    """A new private folder for FIFOs. Raises OSError."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = os.path.isabs(runtime) and os.access(runtime, os.W_OK | os.X_OK)
    return tempfile.mkdtemp(prefix="xlaunch-", dir=runtime if usable else None)


def remove_folder(folder: str) -> None:
    """Remove a folder of FIFOs, if it is there."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


class Measuring:
    """The measuring of one run. `poll` is the supervisor's."""

    def __init__(
        self,
        plan: Plan,
        folder: str | None,
        live: LiveWriter | None,
        poll: select.poll,
        note: Note,
    ) -> None:
        """`folder`: for FIFOs; None where none could be made. `live`: is told of all as it comes."""
        self._plan = plan
        self._poll = poll
        self._note = note
        self._live = live
        indices = [instance.index for instance in plan.instances]
        self._collector = Collector(
            metrics_of(plan.request), indices, began=time.monotonic(), live=live
        )
        self._ends: dict[int, float] = {}
        self._pipes: dict[int, int] = {}
        self._pipe_paths: dict[int, str] = {}
        self._barrier: Barrier | None = None
        self._look_cost_s = 0.0
        self._logs: dict[tuple[int, str], int] = {}
        self._logs_due = time.monotonic()
        if folder is not None:
            self._make_channels(folder, indices)

    def _make_channels(self, folder: str, indices: list[int]) -> None:
        try:
            self._barrier = Barrier(folder, indices, time.monotonic())
            for index in indices:
                path = os.path.join(folder, f"metrics-{index}")
                os.mkfifo(path, 0o600)
                # For writing too: so there is never an end of file, and no writer waits for us.
                pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self._pipes[pipe] = index
                self._pipe_paths[index] = path
                self._poll.register(pipe, select.POLLIN)
        except OSError as error:
            self._barrier = None
            self._note(f"no start barrier: cannot make FIFOs in {folder!r} ({error.strerror})")

    def variables(self, index: int) -> dict[str, str]:
        """What an instance gets to find the barrier, and to report to."""
        found = {}
        if self._barrier is not None:
            found["XLAUNCH_BARRIER"] = self._barrier.path(index)
        if index in self._pipe_paths:
            found["XLAUNCH_METRICS"] = self._pipe_paths[index]
        return found

    def started(self, index: int, now: float) -> None:
        """An instance runs, for the first time or anew, since `now`."""
        if self._live is not None:
            self._live.started(index, now)
        if self._barrier is not None:
            self._barrier.back(index)
        if self._plan.request.log_dir is not None:
            for stream in STREAMS:
                self._logs.setdefault((index, stream), 0)

    def ended(self, index: int) -> None:
        """An instance has ended, for good or to be started anew. What it wrote was handed on."""
        self._read_logs(index)
        for descriptor, owner in self._pipes.items():
            if owner == index:
                self.read(descriptor)
        self._collector.finish(index, time.monotonic())
        self._ends.setdefault(index, time.monotonic())
        if self._barrier is not None:
            self._barrier.gone(index)

    def release(self) -> None:
        """Hold nobody any more: the run is ending."""
        if self._barrier is not None:
            self._barrier.release(time.monotonic())

    def feed(self, index: int, stream: str, data: bytes) -> None:
        """Take what an instance wrote to a stream that is relayed."""
        self._collector.feed(index, stream, data, time.monotonic())

    def owns(self, descriptor: int) -> bool:
        """Whether `read` is to be called when poll() reports this descriptor."""
        return descriptor in self._pipes

    def read(self, descriptor: int) -> None:
        """Take what an instance reported."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, READ_SIZE)
            self.feed(self._pipes[descriptor], "metrics", data)

    @property
    def due(self) -> float:
        """When `look` wants to be called."""
        times = [self._logs_due] if self._logs else []
        times += [self._barrier.due] if self._barrier is not None else []
        return min(times, default=float("inf"))

    def look(self) -> None:
        """Look at the barrier and at log files, if it is time."""
        now = time.monotonic()
        if self._logs and now >= self._logs_due:
            self._read_logs()
            self._logs_due = time.monotonic() + LOG_INTERVAL_S
        if self._barrier is not None and now >= self._barrier.due:
            spent = time.thread_time()
            self._barrier.look(now, self._collector.past_first, self._look_cost_s)
            self._look_cost_s = time.thread_time() - spent
            if self._barrier.overdue:
                listed = ", ".join(map(str, self._barrier.overdue))
                self._barrier.overdue = []
                self._note(f"start barrier opened without instance {listed}, which did not come")

    def _read_logs(self, only: int | None = None) -> None:
        folder = self._plan.request.log_dir
        for (index, stream), read in self._logs.items():
            if folder is None or only not in (None, index):
                continue
            position = read
            with contextlib.suppress(OSError):
                descriptor = os.open(log_path(folder, index, stream), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    end = position + MOST_AT_ONCE
                    while position < end and (data := os.pread(descriptor, READ_SIZE, position)):
                        position += len(data)
                        self.feed(index, stream, data)
                finally:
                    os.close(descriptor)
            self._logs[index, stream] = position

    def finish(self) -> None:
        """Take what is left in files and FIFOs; every instance has ended."""
        for descriptor in self._pipes:
            self._poll.unregister(descriptor)
            with contextlib.suppress(BlockingIOError):
                while data := os.read(descriptor, READ_SIZE):
                    self.feed(self._pipes[descriptor], "metrics", data)
            os.close(descriptor)
        self._pipes.clear()
        before = None
        while before != self._logs:
            before = dict(self._logs)
            self._read_logs()
        for index in self._ends:
            self._collector.finish(index, time.monotonic())
        unseen = self._collector.unseen()
        if unseen is not None:
            self._note(unseen)

    def results(self) -> Measured:
        """The metrics of each instance and over all, once finished."""
        barrier = self._barrier
        released_at = barrier.released_at if barrier is not None and barrier.came else None
        by_instance, totals = self._collector.sum_up(self._ends, released_at)
        return Measured(by_instance, totals, self._collector.raw(), self._collector.lines_seen)


Measure = Callable[[select.poll, Note], Measuring]
"""Begins to measure a run, with its supervisor's poll and voice."""


def measure_of(plan: Plan, folder: str | None, live: LiveWriter | None) -> Measure:
    """How `plan` is measured; the rest is as `Measuring` has it."""
    return functools.partial(Measuring, plan, folder, live)
