# SPDX-License-Identifier: Apache-2.0
"""What the supervisor and its parts share: the launch, the state of its run, and restarts after failures or by request."""

from __future__ import annotations

import math
import select
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from xlaunch.claims import record_details
from xlaunch.environment import Environment
from xlaunch.output.relay import Chunk, Messages, Relay
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import FIRST_DELAY_S, MAX, MAX_DELAY_S, Max, RestartLimit, RunRequest
from xlaunch.report import Report
from xlaunch.supervision.instance_run import InstanceRun, Sampler, describe_escape, reports_of
from xlaunch.supervision.instance_start import NOT_BOUND
from xlaunch.supervision.signalling import send
from xlaunch.supervision.states import State
from xlaunch.text import counted, name_numbers

if TYPE_CHECKING:
    from xlaunch.leases import Lease
    from xlaunch.metrics.live import LiveWriter


class Part:
    """What the supervisor does beside starting and ending instances. It calls these methods, of which none blocks."""

    due: float = math.inf
    """When to call `look`, on the clock of `time.monotonic()`."""
    reads_output = False
    """Whether `feed` must have all output of an instance before `ended` is called."""

    def variables(self, index: int) -> dict[str, str]:
        """The variables that instance `index` gets besides its own."""
        return {}

    def started(self, run: InstanceRun) -> None:
        """An instance was started or restarted."""

    def ended(self, run: InstanceRun) -> None:
        """An instance has ended, whether or not it will be restarted."""

    def feed(self, chunk: Chunk) -> None:
        """An instance wrote to a relayed stream."""

    def look(self, now: float) -> None:
        """`due` has come."""

    def owns(self, descriptor: int) -> bool:
        """Whether `handle` is to be called when poll() reports this descriptor."""
        return False

    def handle(self, descriptor: int) -> None:
        """poll() has reported a descriptor of this part."""

    def reap(self, pid: int) -> None:
        """A child in `RunState.helpers` has ended; reap it if it is of this part."""

    def release(self) -> None:
        """The instances were asked to end; called again on each further signal."""

    def finish(self) -> None:
        """The last process has ended, and all output was fed."""

    def add_to(self, report: Report) -> Report:
        """The report with what this part knows, after `finish`."""
        return report


class Job(NamedTuple):
    """One launch, as the keeper hands it to the supervisor."""

    plan: Plan
    environment: Environment
    run: RunRequest
    table: bool
    """Print warnings, and the report as a table."""
    explain: bool = False
    """Explain the columns of the table."""
    live_line: bool = False
    """Show on a terminal what sampled devices do."""
    live: LiveWriter | None = None
    """Receives metric values as they come in."""
    report_descriptor: int | None = None
    """Where the pickled report goes."""
    fifo_directory: str | None = None
    """Where to make FIFOs for metrics."""
    others_run: bool = False
    """Other processes were runnable before the start."""
    lease: Lease | None = None
    """The record of this launch, where the command line has made one."""


DEFAULT_LIMIT = RestartLimit(3)
"""Of one instance without `--max-restarts`."""

STEADY_S = 60.0
"""After a run of at least this length, the delay starts at `FIRST_DELAY_S` again."""


class Restart(NamedTuple):
    number: int
    """Its number among the restarts of this instance within the window of its limit, from 1."""
    limit: int | Max
    delay_s: float

    def describe(self) -> str:
        """**Ex.:** ``restart 1 of 3 in 1 s``."""
        limit = "" if self.limit is MAX else f" of {self.limit}"
        return f"restart {self.number}{limit} in {self.delay_s:g} s"


class Restarts:
    """Counts restarts and keeps delays, by the position of each instance in the plan."""

    def __init__(self, limit: RestartLimit | int | Max | None) -> None:
        """`limit`: maximum restarts of one instance; None: `DEFAULT_LIMIT`."""
        self._limit = RestartLimit(limit) if isinstance(limit, int) else limit or DEFAULT_LIMIT
        self._granted: dict[int, list[float]] = {}
        """When the restarts of each instance that count were granted."""
        self._delays: dict[int, float] = {}
        self._due: dict[int, float] = {}
        self._replaced: set[int] = set()
        """Positions in `_due` that have no delay and do not count."""

    @property
    def waiting(self) -> bool:
        """Whether some instance waits for its restart."""
        return bool(self._due)

    @property
    def all_delayed(self) -> bool:
        """Whether some wait, and each for the end of its delay."""
        return bool(self._due) and not self._replaced

    @property
    def next_at(self) -> float:
        """When the next restart is due; infinity when none is pending."""
        return min(self._due.values(), default=float("inf"))

    def count(self, position: int) -> int:
        """Restarts of an instance after failures so far, a pending one included."""
        return len(self._granted.get(position, ()))

    def grant(self, position: int, *, ran_s: float, now: float) -> Restart | None:
        """Schedule the restart of an instance that failed after `ran_s`.

        None when its restarts within the window are used up. The delay doubles, up to `MAX_DELAY_S`.
        """
        granted = self._granted.setdefault(position, [])
        limit, window_s = (MAX, math.inf) if self._limit is MAX else self._limit
        number = 1 + sum(at >= now - window_s for at in granted)
        if limit is not MAX and number > limit:
            return None
        before = self._delays.get(position)
        delay_s = FIRST_DELAY_S
        if before is not None and ran_s <= STEADY_S:
            delay_s = min(2 * before, MAX_DELAY_S)
        granted.append(now)
        self._delays[position] = delay_s
        self._due[position] = now + delay_s
        return Restart(number, limit, delay_s)

    def replace(self, position: int, now: float) -> None:
        """Schedule the start of an instance that was ended on purpose: at once, and not counted."""
        self._due[position] = now
        self._replaced.add(position)

    def due(self, now: float) -> list[int]:
        """Positions whose delay is over, the earliest first."""
        return sorted((p for p, at in self._due.items() if at <= now), key=lambda p: self._due[p])

    def is_waiting(self, position: int) -> bool:
        """Whether an instance waits for its restart."""
        return position in self._due

    def postpone(self, position: int, until: float) -> None:
        """Delay a pending restart further."""
        self._due[position] = until

    def take(self, position: int) -> None:
        """Note that a pending restart happens now."""
        del self._due[position]
        self._replaced.discard(position)

    def cancel(self) -> list[int]:
        """Cancel pending restarts; return their positions."""
        dropped = list(self._due)
        self._due.clear()
        for position in dropped:
            if position not in self._replaced:
                self._granted[position].pop()
        self._replaced.clear()
        return dropped


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


SETTLED_S = 2.0
"""Without `--health`, an instance is ready when it has run for so long."""
LOOK_INTERVAL_S = 0.1
ACTIVE = (State.RUNNING, State.WAITING, State.SIGNALLED)
"""States in which instances are replaced."""


class Replacements(Part):
    """Ends instances and starts them again, by request or for their health.

    At most one at a time: the next is ended only when the new run of the last one is ready.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._queue: deque[int] = deque()
        """Positions that were requested and not begun."""
        self._current: InstanceRun | None = None
        """The run that was asked to end last, until its successor is ready."""
        self._kill_at = math.inf
        self.problem: str | None = None
        """Why the last request was given up."""

    def may_end(self, run: InstanceRun) -> bool:
        """Whether an instance may be ended for its health: no other one is being replaced."""
        return self._current is None or self._current.position == run.position

    @property
    def waiting(self) -> list[int]:
        """The instances, by their numbers, that a request has not replaced yet."""
        positions = [] if self._current is None else [self._current.position]
        return [self._run.plan.instances[at].index for at in [*positions, *self._queue]]

    def request(self) -> str | None:
        """Replace every instance; return why that cannot begin now, if so."""
        if self._run.state not in ACTIVE:
            return f"the run is {self._run.state.value}"
        if self._queue:
            return "its instances are being restarted already"
        self._queue.extend(sorted([run.position for run in self._run.running.values()]))
        self.problem, self.due = None, 0.0
        return None

    def end(self, run: InstanceRun, why: str, *, replaced: bool) -> None:
        """Ask an instance to end, and kill it after the grace period. `replaced`: start it again."""
        grace_s = self._run.asked.grace_s
        if self._current is not None:
            self._give_up(run, "did not become ready")
        run.ended_for, run.is_replaced, run.is_ready = why, replaced, run.is_ready and False
        self._current, self._kill_at = run, time.monotonic() + grace_s
        self.due = 0.0
        index = run.instance.index
        if send(run.pid, signal.SIGTERM):
            send(run.pid, signal.SIGCONT, group=True)  # a stopped program acts on SIGTERM then
            self._run.messages.say(
                f"instance {index}: {why}; SIGTERM sent, SIGKILL in {grace_s:g} s (--grace)"
            )
        else:
            run.ended_for, run.is_replaced = None, False
            self._give_up(run, f"(PID {run.pid}) runs as another user: it cannot be ended")
            self._run.messages.warn(self.problem)

    def look(self, now: float) -> None:
        """Kill one that does not end, and begin with the next when the last is ready."""
        if self._current is not None:
            self._follow(self._current, now)
        if self._current is None and self._queue and self._run.state in ACTIVE:
            run = self._run.last_run(self._queue.popleft())
            if run is not None and run.ended is None:
                self.end(run, "a restart was requested", replaced=True)
        self.due = now + LOOK_INTERVAL_S if self._current or self._queue else math.inf

    def release(self) -> None:
        self._queue.clear()

    def _follow(self, old: InstanceRun, now: float) -> None:
        new = self._run.last_run(old.position)
        if old.ended is None:
            if now >= self._kill_at:
                self._kill_at = math.inf
                send(old.pid, signal.SIGKILL)
        elif not old.is_replaced:
            self._current = None
        elif new is old or new is None:
            if not self._run.restarts.is_waiting(old.position):
                self._give_up(old, "was not started again")
        elif new.ended is not None:
            self._give_up(new, "ended before it was ready")
        elif now - new.started >= SETTLED_S if new.is_ready is None else new.is_ready:
            self._current = None

    def _give_up(self, run: InstanceRun, why: str) -> None:
        self._current = None
        self.problem = f"instance {run.instance.index} {why}"
        if self._queue:
            indices = [self._run.plan.instances[at].index for at in self._queue]
            self._queue.clear()
            self.problem += f"; {name_numbers('instance', indices)} not restarted"
            self._run.messages.warn(self.problem)
