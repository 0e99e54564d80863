# SPDX-License-Identifier: Apache-2.0
"""What the supervisor and its parts share: the instances, the state of the run, and its output."""

from __future__ import annotations

import select
import time
from typing import Any

from xlaunch.claims import record_details
from xlaunch.output.messages import Messages
from xlaunch.output.relay import Relay
from xlaunch.report import Report
from xlaunch.supervision.instance_run import InstanceRun, describe_escape, reports_of
from xlaunch.supervision.instance_start import NOT_BOUND
from xlaunch.supervision.job import Job
from xlaunch.supervision.restarts import Restarts
from xlaunch.supervision.sampling import Sampler
from xlaunch.supervision.states import State
from xlaunch.text import counted


class RunState:
    """One run of a plan."""

    def __init__(self, job: Job) -> None:
        self.plan = job.plan
        self.asked = job.run
        self.poll = select.poll()
        self.relay = Relay(job.plan, job.run, self.poll)
        warnings = (*job.plan.warnings, *job.environment.warnings)
        self.messages = Messages(self.relay, warnings, quiet=not job.table)
        self.sampler = Sampler()
        self.state = State.RUNNING
        self.started = time.monotonic()
        self.running: dict[int, InstanceRun] = {}
        """By PID."""
        self.ended: list[InstanceRun] = []
        """In the order of their ends."""
        self.restarts = Restarts(job.run.max_restarts)
        self.helpers: set[int] = set()
        """PIDs of children that are no instances: commands of probes, for example."""
        self.lease = job.lease
        """The record of the launch, if it has one."""

    def all_runs(self) -> list[InstanceRun]:
        """All runs of all instances: those that run, then those that have ended."""
        return [*self.running.values(), *self.ended]

    def last_run(self, position: int) -> InstanceRun | None:
        """The last run of the instance at `position` of the plan."""
        runs = [*self.ended, *self.running.values()]
        return next((run for run in reversed(runs) if run.position == position), None)

    def report(self, exit_code: int, reason: str | None, argv: tuple[str, ...]) -> Report:
        """The report on all instances, which have ended. `reason`: of the first failure."""
        instances = reports_of(self.ended)
        warnings = self.messages.warnings
        bound = self.plan.bound and not any(text.startswith(NOT_BOUND) for text in warnings)
        for instance in instances if bound else ():
            self.messages.warn(describe_escape(instance))
        return Report(
            exit_code=exit_code,
            reason=reason or f"{counted(len(instances), 'instance')} succeeded",
            wall_s=time.monotonic() - self.started,
            count=self.plan.count,
            instances=instances,
            warnings=tuple(warnings),
            argv=argv,
        )

    def record(self, **details: Any) -> None:
        """Write details of the launch into its record, for `xlaunch ps`."""
        if self.lease is not None and (changed := self.lease._replace(**details)) != self.lease:
            self.lease = changed
            record_details(changed)
