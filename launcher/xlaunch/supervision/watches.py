# SPDX-License-Identifier: Apache-2.0
"""The parts of the supervisor: those that watch metrics, GPUs and other work on its CPUs; what a service needs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from xlaunch.environment import Environment
from xlaunch.machine.processes import TICKS_PER_SECOND, descendants
from xlaunch.output.relay import Chunk
from xlaunch.report import Report
from xlaunch.supervision.instance_run import InstanceRun
from xlaunch.supervision.other_work import Occupancy, StolenTime
from xlaunch.supervision.run_state import Job, Part, Replacements, RunState
from xlaunch.supervision.states import State

if TYPE_CHECKING:
    from xlaunch.metrics.live import LiveWriter

DETAILS_INTERVAL_S = 1.0
"""Minimum time between updates of the metrics that `xlaunch ps` shows."""


def make_parts(job: Job, run: RunState, replacements: Replacements) -> list[Part]:
    """The parts that `job` needs from its start, with `replacements`."""
    parts: list[Part] = [StolenTimeWatch(run)]
    if job.others_run:
        parts.append(OtherWorkWatch(run))
    if job.run.metric or job.live is not None:
        parts.append(MetricsWatch(run, job.fifo_directory, job.live))
    if job.run.verify_device:
        parts.append(DevicesWatch(run, job.environment, live_line=job.live_line))
    parts.append(replacements)
    if job.run.health is not None:
        from xlaunch.supervision.health import Health

        parts.append(Health(run, replacements, job.run.health))
    return parts


def make_late_parts(run: RunState, replacements: Replacements) -> list[Part]:
    """The parts that no instance needs, for a run that goes on."""
    from xlaunch.supervision.exporter_process import start_exporter
    from xlaunch.supervision.state_socket import open_state_socket

    return [*open_state_socket(run, replacements), *start_exporter(run)]


class MetricsWatch(Part):
    """Hands output to the measuring, and its values to the report and the record of the launch."""

    reads_output = True

    def __init__(self, run: RunState, fifo_directory: str | None, live: LiveWriter | None) -> None:
        """For `fifo_directory` and `live` see `Measuring`."""
        from xlaunch.metrics.measuring import Measuring

        self._run = run
        self._measuring = Measuring(run.plan, run.asked, fifo_directory, live, run.poll)
        self._details_due = math.inf if run.lease is None else run.started
        run.messages.warn(self._measuring.problem)
        self._set_due()

    def _set_due(self) -> None:
        self.due = min(self._measuring.due, self._details_due)

    def variables(self, index: int) -> dict[str, str]:
        return self._measuring.variables(index)

    def started(self, run: InstanceRun) -> None:
        self._measuring.started(run.instance.index, run.started)
        self._set_due()

    def ended(self, run: InstanceRun) -> None:
        self._measuring.ended(run.instance.index)
        self._set_due()

    def feed(self, chunk: Chunk) -> None:
        self._measuring.feed(*chunk)

    def look(self, now: float) -> None:
        self._run.messages.warn(self._measuring.look())
        if now >= self._details_due:
            self._details_due = now + DETAILS_INTERVAL_S
            if latest := self._measuring.latest():
                self._run.record(metric=latest)
        self._set_due()

    def owns(self, descriptor: int) -> bool:
        return self._measuring.owns(descriptor)

    def handle(self, descriptor: int) -> None:
        self._measuring.read(descriptor)

    def release(self) -> None:
        self._measuring.release()
        self._set_due()

    def finish(self) -> None:
        self._run.messages.warn(self._measuring.finish())

    def add_to(self, report: Report) -> Report:
        measured = self._measuring.results()
        instances = [
            one._replace(metrics=measured.by_instance.get(one.index, ()))
            for one in report.instances
        ]
        return report._replace(
            instances=tuple(instances),
            metrics=measured.totals,
            series=measured.series,
            lines_seen=measured.lines_seen,
        )


class DevicesWatch(Part):
    """Samples GPUs (`--verify-device`)."""

    reads_output = True

    def __init__(self, run: RunState, environment: Environment, *, live_line: bool) -> None:
        """`live_line`: show on a terminal what the devices do."""
        from xlaunch.report.device_watch import DeviceWatch

        self._run, self._live_line = run, live_line
        instances = run.plan.instances
        variables = dict(next(iter(environment.variables), {}))
        if own := [gpu for instance in instances for gpu in instance.gpus]:
            variables[own[0].variable] = ",".join([gpu.name for gpu in own])
        cpus = {cpu for instance in instances for cpu in instance.cpus}
        self._devices = DeviceWatch(run.started, len(cpus), variables)
        self.due = self._devices.due

    def feed(self, chunk: Chunk) -> None:
        if chunk.stream == "err":
            self._devices.messages.feed(chunk.index, chunk.data)

    def look(self, now: float) -> None:
        # While the run is suspended nothing counts, and the shell has the terminal.
        if self._run.state is State.STOPPED or not self._run.running:
            self._devices.skip(now)
        else:
            self._devices.look(now, descendants(os.getpid()))
            if self._live_line:
                self._run.relay.show_live(f"xlaunch: {self._devices.live_line()}")
        self.due = self._devices.due

    def add_to(self, report: Report) -> Report:
        return report._replace(devices=self._devices.report())


class StolenTimeWatch(Part):
    """Warns about time that the host of a virtual machine gave to other machines."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._stolen = StolenTime({cpu for one in run.plan.instances for cpu in one.cpus})

    def finish(self) -> None:
        self._run.messages.warn(self._stolen.describe())


class OtherWorkWatch(Part):
    """Warns about CPUs that other processes keep busy: what the run did not use itself."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        cpus: Iterable[int] = {cpu for one in run.plan.instances for cpu in one.cpus}
        plan = run.plan
        self._occupancy = Occupancy(cpus, run.started, bound=plan.bound, others=plan.idle_cpus)
        self.due = self._occupancy.due

    def look(self, now: float, *, at_end: bool = False) -> None:
        self._run.sampler.look()
        # Where the supervisor ran is not known: count it on every CPU.
        supervisor = round(time.process_time() * TICKS_PER_SECOND)
        runs, cpus = self._run.all_runs(), self._occupancy.cpus
        own = {cpu: supervisor + sum(run.ticks_on(cpu) for run in runs) for cpu in cpus}
        pids = {os.getppid(), os.getpid(), *descendants(os.getpid())}
        self._run.messages.warn(self._occupancy.look(now, own, pids, at_end=at_end))
        self.due = self._occupancy.due

    def finish(self) -> None:
        self.look(time.monotonic(), at_end=True)
