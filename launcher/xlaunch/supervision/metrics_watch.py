# SPDX-License-Identifier: Apache-2.0
"""Measures instances while they run: the start barrier, and the numbers that they print or report.

Exists under `--metric` only. The supervisor hands over what it relays; log files, and the FIFOs that
XLAUNCH_METRICS names, are read here.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import time

from xlaunch.files import make_temporary, remove_temporary, temporary_path
from xlaunch.metrics.barrier import Barrier
from xlaunch.metrics.collector import Collector
from xlaunch.metrics.live import LiveStart, LiveWriter
from xlaunch.metrics.metric_lines import parse_metrics
from xlaunch.output.destinations import READ_SIZE, STREAMS, log_path
from xlaunch.output.relay import Chunk
from xlaunch.report import Report
from xlaunch.supervision.instance_run import InstanceRun
from xlaunch.supervision.run_state import Part, RunState
from xlaunch.text import name_numbers, number

DETAILS_INTERVAL_S = 1.0
"""Minimum time between updates of the metrics that `xlaunch ps` shows."""
LOG_INTERVAL_S = 0.1
"""Polling interval of log files, and so the resolution of the times of values in them."""

MAX_BYTES_AT_ONCE = 64 * READ_SIZE
"""Maximum size to read from one log file before signals are handled again."""


def choose_directory() -> str:
    """A new name for the private directory of the FIFOs of one run."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = os.path.isabs(runtime) and os.access(runtime, os.W_OK | os.X_OK)
    base = runtime if usable else os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a new name in it
    return temporary_path("xlaunch-fifos", base)


class MetricsWatch(Part):
    """The measuring of one run, for its report and for the record of the launch."""

    reads_output = True

    def __init__(self, run: RunState, directory: str | None, live: LiveWriter | None) -> None:
        """`directory`: created for FIFOs. `live`: gets each value."""
        self._run = run
        self._log_directory = None if run.asked.relays_logs else run.asked.log_dir
        self._directory = directory
        self._live = live
        indices = [instance.index for instance in run.plan.instances]
        metrics = parse_metrics(run.asked.metric)
        self._collector = Collector(metrics, indices, began=time.monotonic(), live=live)
        self._ends: dict[int, float] = {}
        self._pipes: dict[int, int] = {}
        self._pipe_paths: dict[int, str] = {}
        self._barrier: Barrier | None = None
        self._look_cost_s = 0.0
        self._lock: int | None = None
        """Held while the directory is in use."""
        self._logs: dict[tuple[int, str], int] = {}
        self._logs_due = time.monotonic()
        self._details_due = math.inf if run.lease is None else run.started
        if directory is not None:
            self._make_channels(directory, indices)
        self._set_due()

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
                self._run.poll.register(pipe, select.POLLIN)
        except OSError as error:
            self._barrier = None
            self._run.messages.warn(
                f"no start barrier: cannot make FIFOs in {directory!r} ({error.strerror})"
            )

    def _set_due(self) -> None:
        logs_due = self._logs_due if self._logs else math.inf
        barrier_due = math.inf if self._barrier is None else self._barrier.due
        self.due = min(logs_due, barrier_due, self._details_due)

    def variables(self, index: int) -> dict[str, str]:
        """The variables that name an instance's barrier and its FIFO for metrics."""
        variables = {}
        if self._barrier is not None:
            variables["XLAUNCH_BARRIER"] = self._barrier.paths[index]
        if index in self._pipe_paths:
            variables["XLAUNCH_METRICS"] = self._pipe_paths[index]
        return variables

    def started(self, run: InstanceRun) -> None:
        index = run.instance.index
        if self._live is not None:
            self._live.write(LiveStart(index, run.started))
        if self._barrier is not None:
            self._barrier.back(index)
        if self._log_directory is not None:
            for stream in STREAMS:
                self._logs.setdefault((index, stream), 0)
        self._set_due()

    def ended(self, run: InstanceRun) -> None:
        index = run.instance.index
        self._read_logs(index)
        for descriptor, owner in self._pipes.items():
            if owner == index:
                self.handle(descriptor)
        self._collector.finish(index, time.monotonic())
        self._ends.setdefault(index, time.monotonic())
        if self._barrier is not None:
            self._barrier.gone(index)

    def release(self) -> None:
        """Open the barrier for good."""
        if self._barrier is not None:
            self._barrier.release(time.monotonic())

    def feed(self, chunk: Chunk) -> None:
        self._collector.feed(chunk.index, chunk.stream, chunk.data, time.monotonic())

    def owns(self, descriptor: int) -> bool:
        return descriptor in self._pipes

    def handle(self, descriptor: int) -> None:
        """Read what an instance reported through its FIFO."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, READ_SIZE)
            self.feed(Chunk(self._pipes[descriptor], "metrics", data))

    def look(self, now: float) -> None:
        """Look at the barrier and log files that are due, and write what `xlaunch ps` shows."""
        if self._logs and now >= self._logs_due:
            self._read_logs()
            self._logs_due = time.monotonic() + LOG_INTERVAL_S
        if self._barrier is not None and now >= self._barrier.due:
            spent = time.thread_time()
            self._barrier.look(now, self._collector.past_first, self._look_cost_s)
            self._look_cost_s = time.thread_time() - spent
            if overdue := self._barrier.overdue:
                self._barrier.overdue = []
                missing = name_numbers("instance", overdue)
                self._run.messages.warn(
                    f"start barrier opened without {missing}, which did not come"
                )
        if now >= self._details_due:
            self._details_due = now + DETAILS_INTERVAL_S
            if latest := self._collector.latest:
                values = [f"{name} {number(value)}" for name, value in latest.items()]
                self._run.record(metric=", ".join(values))
        self._set_due()

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
                        self.feed(Chunk(index, stream, data))
                finally:
                    os.close(descriptor)
            self._logs[index, stream] = position

    def finish(self) -> None:
        """Read the rest of files and FIFOs at the end."""
        for descriptor in self._pipes:
            self._run.poll.unregister(descriptor)
            with contextlib.suppress(BlockingIOError):
                while data := os.read(descriptor, READ_SIZE):
                    self.feed(Chunk(self._pipes[descriptor], "metrics", data))
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
        self._run.messages.warn(self._collector.unseen())

    def add_to(self, report: Report) -> Report:
        barrier = self._barrier
        released_at = barrier.released_at if barrier is not None and barrier.came else None
        by_instance, totals = self._collector.sum_up(self._ends, released_at)
        instances = [
            instance._replace(metrics=by_instance.get(instance.index, ()))
            for instance in report.instances
        ]
        return report._replace(
            instances=tuple(instances),
            metrics=totals,
            series=self._collector.raw(),
            lines_seen=self._collector.lines_seen,
        )
