# SPDX-License-Identifier: Apache-2.0
"""Instances that the supervisor itself ends and starts again: by request, or for their health.

At most one at a time: the next is ended only when the new run of the last one is ready.
"""

from __future__ import annotations

import math
import signal
import time
from collections import deque

from xlaunch.machine.cpu_list import name_numbers
from xlaunch.supervision.instance_run import InstanceRun
from xlaunch.supervision.part import Part
from xlaunch.supervision.run_state import RunState
from xlaunch.supervision.signalling import send
from xlaunch.supervision.states import State

SETTLED_S = 2.0
"""Without `--health`, an instance is ready when it has run for so long."""
LOOK_INTERVAL_S = 0.1
ACTIVE = (State.RUNNING, State.WAITING, State.SIGNALLED)
"""States in which instances are replaced."""


class Replacements(Part):
    """Ends instances, one at a time, and follows each until its new run is ready."""

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
            left = [self._run.plan.instances[at].index for at in self._queue]
            self._queue.clear()
            self.problem += f"; {name_numbers('instance', left)} not restarted"
            self._run.messages.warn(self.problem)
