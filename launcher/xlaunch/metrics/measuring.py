# SPDX-License-Identifier: Apache-2.0
"""Measuring instances while they run: the start barrier, and the numbers that they print or report.

Exists under `--metric` only. The supervisor hands over what it relays; log files, and the FIFOs that
XLAUNCH_METRICS names, are read here.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterable

from xlaunch.files import make_temporary, remove_temporary, temporary_path
from xlaunch.machine.cpu_list import name_numbers
from xlaunch.metrics.collector import Collector, Measured
from xlaunch.metrics.live import LiveStart, LiveWriter
from xlaunch.metrics.metric_lines import Metric, parse_metric
from xlaunch.output.destinations import READ_SIZE, STREAMS, log_path
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import RunRequest
from xlaunch.text import number

MAX_HOLD_S = 600.0
FIRST_INTERVAL_S = 0.02
LATER_INTERVAL_S = 0.2
"""Polling intervals, while the barrier is closed and once it is open."""
SHARE_OF_ONE_CPU = 0.0025

LOG_INTERVAL_S = 0.1
"""Polling interval of log files, and so the resolution of the times of values in them."""

MAX_BYTES_AT_ONCE = 64 * READ_SIZE
"""Maximum size to read from one log file before signals are handled again."""


def metrics_of(run: RunRequest) -> tuple[Metric, ...]:
    """The metrics of `--metric`, each once. Raises `UsageError`."""
    return tuple([parse_metric(text) for text in dict.fromkeys(run.metric)])


def choose_directory() -> str:
    """A new name for the private directory of the FIFOs of one run."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = os.path.isabs(runtime) and os.access(runtime, os.W_OK | os.X_OK)
    base = runtime if usable else os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a new name in it
    return temporary_path("xlaunch-fifos", base)


class Barrier:
    """The start barrier: one FIFO per instance. Call `look` at the time `due`.

    An instance reaches the barrier when it reads the file that XLAUNCH_BARRIER names to its end, which
    takes one line in any language: ``open(os.environ["XLAUNCH_BARRIER"]).read()``. Each instance has a
    FIFO of its own. Opening it for reading blocks until there is a writer, and opening it for writing
    without blocking succeeds only when there is a reader (see fifo(7)). So one attempt to open it for
    writing shows whether the instance has come, and closing that writer releases it.

    The barrier does not wait for an instance that has ended or that has printed a metric, and so is past
    its warm-up, nor longer than `MAX_HOLD_S` after the first instance has come. Once open it stays open,
    for restarted instances and second reads too.
    """

    def __init__(self, directory: str, indices: Iterable[int], now: float) -> None:
        """Make the FIFOs in `directory`. Raises OSError."""
        self.paths = {index: os.path.join(directory, f"barrier-{index}") for index in indices}
        """The values of XLAUNCH_BARRIER."""
        for path in self.paths.values():
            os.mkfifo(path, 0o600)
        self._held: dict[int, int] = {}
        self._gone: set[int] = set()
        self._first_came: float | None = None
        self.came = False
        """Whether some instance has reached the barrier."""
        self._interval = FIRST_INTERVAL_S
        self.due = now
        self.released_at: float | None = None
        """When it opened; None while it is closed."""
        self.overdue: list[int] = []
        """The instances that had not arrived when it opened after `MAX_HOLD_S`."""

    def look(self, now: float, past_first: Iterable[int], cost_s: float) -> None:
        """Look which instances have arrived, and open the barrier when all have.

        `past_first`: instances that have printed a value. `cost_s`: CPU time of the last look.
        """
        for index, path in self.paths.items():
            if index not in self._held:
                self._try_open(index, path, now)
        if self.released_at is None and self._held:
            missing = self.paths.keys() - self._held.keys() - self._gone - set(past_first)
            assert self._first_came is not None
            if not missing:
                self.release(now)
            elif now >= self._first_came + MAX_HOLD_S:
                self.overdue = sorted(missing)
                self.release(now)
        self.due = now + max(self._interval, cost_s / SHARE_OF_ONE_CPU)

    def gone(self, index: int) -> None:
        """Do not wait for an instance that has ended."""
        self._gone.add(index)
        descriptor = self._held.pop(index, None)
        if descriptor is not None:
            os.close(descriptor)

    def back(self, index: int) -> None:
        """Wait again for an instance that was restarted."""
        self._gone.discard(index)

    def release(self, now: float) -> None:
        """Open the barrier for good."""
        if self.released_at is None:
            self.released_at = now
        self._interval = LATER_INTERVAL_S
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def _try_open(self, index: int, path: str, now: float) -> None:
        with contextlib.suppress(OSError):  # ENXIO: there is no reader
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if self.released_at is not None:
                os.close(descriptor)
                return
            self._held[index] = descriptor
            self.came = True
            if self._first_came is None:
                self._first_came = now


class Measuring:
    """The measuring of one run."""

    def __init__(
        self,
        plan: Plan,
        run: RunRequest,
        directory: str | None,
        live: LiveWriter | None,
        poll: select.poll,
    ) -> None:
        """`directory`: created for FIFOs. `live`: gets each value. `poll`: the supervisor's."""
        self._log_directory = None if run.relays_logs else run.log_dir
        self._directory = directory
        self._poll = poll
        self._live = live
        indices = [instance.index for instance in plan.instances]
        self._collector = Collector(metrics_of(run), indices, began=time.monotonic(), live=live)
        self._ends: dict[int, float] = {}
        self._pipes: dict[int, int] = {}
        self._pipe_paths: dict[int, str] = {}
        self._barrier: Barrier | None = None
        self._look_cost_s = 0.0
        self._lock: int | None = None
        """Held while the directory is in use."""
        self._logs: dict[tuple[int, str], int] = {}
        self._logs_due = time.monotonic()
        self.problem: str | None = None
        """Why there is no start barrier."""
        if directory is not None:
            self._make_channels(directory, indices)

    def _make_channels(self, directory: str, indices: list[int]) -> None:
        try:
            self._lock = make_temporary(directory)
            self._barrier = Barrier(directory, indices, time.monotonic())
            for index in indices:
                path = os.path.join(directory, f"metrics-{index}")
                os.mkfifo(path, 0o600)
                # Also for writing: so there is never an end of file, and no writer waits for us.
                pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self._pipes[pipe] = index
                self._pipe_paths[index] = path
                self._poll.register(pipe, select.POLLIN)
        except OSError as error:
            self._barrier = None
            self.problem = (
                f"no start barrier: cannot make FIFOs in {directory!r} ({error.strerror})"
            )

    def variables(self, index: int) -> dict[str, str]:
        """The variables that name an instance's barrier and its FIFO for metrics."""
        variables = {}
        if self._barrier is not None:
            variables["XLAUNCH_BARRIER"] = self._barrier.paths[index]
        if index in self._pipe_paths:
            variables["XLAUNCH_METRICS"] = self._pipe_paths[index]
        return variables

    def started(self, index: int, now: float) -> None:
        """Note that an instance was started or restarted at `now`."""
        if self._live is not None:
            self._live.write(LiveStart(index, now))
        if self._barrier is not None:
            self._barrier.back(index)
        if self._log_directory is not None:
            for stream in STREAMS:
                self._logs.setdefault((index, stream), 0)

    def ended(self, index: int) -> None:
        """Note that an instance has ended, restarted or not. Its output was passed on before."""
        self._read_logs(index)
        for descriptor, owner in self._pipes.items():
            if owner == index:
                self.read(descriptor)
        self._collector.finish(index, time.monotonic())
        self._ends.setdefault(index, time.monotonic())
        if self._barrier is not None:
            self._barrier.gone(index)

    def release(self) -> None:
        """Open the barrier for good: the run is ending."""
        if self._barrier is not None:
            self._barrier.release(time.monotonic())

    def feed(self, index: int, stream: str, data: bytes) -> None:
        """Process what an instance wrote to a relayed stream."""
        self._collector.feed(index, stream, data, time.monotonic())

    def owns(self, descriptor: int) -> bool:
        """Whether `read` must be called when poll() reports this descriptor."""
        return descriptor in self._pipes

    def read(self, descriptor: int) -> None:
        """Read what an instance reported through its FIFO."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, READ_SIZE)
            self.feed(self._pipes[descriptor], "metrics", data)

    @property
    def due(self) -> float:
        """When `look` must be called next."""
        times = [self._logs_due] if self._logs else []
        times += [self._barrier.due] if self._barrier is not None else []
        return min(times, default=float("inf"))

    def look(self) -> str | None:
        """Look at the barrier and log files that are due; return a warning about the barrier."""
        now = time.monotonic()
        if self._logs and now >= self._logs_due:
            self._read_logs()
            self._logs_due = time.monotonic() + LOG_INTERVAL_S
        if self._barrier is not None and now >= self._barrier.due:
            spent = time.thread_time()
            self._barrier.look(now, self._collector.past_first, self._look_cost_s)
            self._look_cost_s = time.thread_time() - spent
            overdue, self._barrier.overdue = self._barrier.overdue, []
            if overdue:
                missing = name_numbers("instance", overdue)
                return f"start barrier opened without {missing}, which did not come"
        return None

    def _read_logs(self, only: int | None = None) -> None:
        directory = self._log_directory
        for (index, stream), read in self._logs.items():
            if directory is None or only not in (None, index):
                continue
            position = read
            with contextlib.suppress(OSError):
                descriptor = os.open(log_path(directory, index, stream), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    end = position + MAX_BYTES_AT_ONCE
                    while position < end and (data := os.pread(descriptor, READ_SIZE, position)):
                        position += len(data)
                        self.feed(index, stream, data)
                finally:
                    os.close(descriptor)
            self._logs[index, stream] = position

    def finish(self) -> str | None:
        """Read the rest of files and FIFOs at the end; return a warning about missing metrics."""
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
        if self._directory is not None:
            remove_temporary(self._directory)
        if self._lock is not None:
            os.close(self._lock)
        return self._collector.unseen()

    def latest(self) -> str:
        """The last value of each metric. **Ex.:** ``"images/s 120.5"``."""
        return ", ".join([f"{name} {number(it)}" for name, it in self._collector.latest.items()])

    def results(self) -> Measured:
        """The metrics of each instance and over all, once finished."""
        barrier = self._barrier
        released_at = barrier.released_at if barrier is not None and barrier.came else None
        by_instance, totals = self._collector.sum_up(self._ends, released_at)
        return Measured(by_instance, totals, self._collector.raw(), self._collector.lines_seen)
