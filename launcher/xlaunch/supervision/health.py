# SPDX-License-Identifier: Apache-2.0
"""The health of instances (`--health`): all are asked in rounds, and one that does not answer is ended.

A round in which more than half of several instances fail does not count: what they share, or this
machine, is the cause, and to end them would help nobody. Nothing counts while the run is suspended,
nor when the supervisor itself was stopped.
"""

from __future__ import annotations

import time

from xlaunch.environment.variables import words_of
from xlaunch.errors import UsageError
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import OnFailure
from xlaunch.supervision.instance_run import InstanceRun
from xlaunch.supervision.probes import Probe, Target, target_of
from xlaunch.supervision.run_state import ACTIVE, Part, Replacements, RunState
from xlaunch.text import counted, name_numbers

START_INTERVAL_S = 1.0
"""Longest time between two probes of an instance that never answered."""
GAP_S = 2.0
"""When a look is later than that, the supervisor was stopped, or had no CPU: probes in flight do not count."""


def targets_of(plan: Plan, health: str) -> dict[int, Target]:
    """What is asked of each instance, by its position in the plan. Raises `UsageError`."""
    try:
        return {at: target_of(health, words_of(plan, own)) for at, own in enumerate(plan.instances)}
    except UsageError as error:
        raise UsageError(f"--health {error}") from None


class _Check:
    """The probes of one run of an instance."""

    def __init__(self, run: InstanceRun) -> None:
        self.run = run
        self.probe: Probe | None = None
        self.descriptor: int | None = None
        """Of the probe, while poll() watches it."""
        self.next_at = run.started
        """When to ask next, until the first good answer."""
        self.counts = False
        """Whether it takes part in the round that is under way."""


class Health(Part):
    """Asks instances, notes in their runs what they answer, and ends those that do not."""

    def __init__(self, run: RunState, replacements: Replacements, health: str) -> None:
        self._run, self._asked, self._replacements = run, run.asked, replacements
        self._targets = targets_of(run.plan, health)
        self._checks: dict[int, _Check] = {}
        self._killed: dict[int, Probe] = {}
        """Commands that were killed and not yet reaped, by their PIDs."""
        self._round_at = run.started
        self._expected = run.started
        """When `look` was to be called at the latest."""
        self._is_most = False
        """Whether more than half failed in the last round."""

    def started(self, run: InstanceRun) -> None:
        run.is_ready = False
        self._checks[run.position] = _Check(run)
        self.due = 0.0

    def ended(self, run: InstanceRun) -> None:
        run.is_ready = False
        self._drop(self._checks.pop(run.position))

    def owns(self, descriptor: int) -> bool:
        return any(check.descriptor == descriptor for check in self._checks.values())

    def handle(self, descriptor: int) -> None:
        self.due = 0.0

    def reap(self, pid: int) -> None:
        self.due = 0.0
        for check in self._checks.values():
            if check.probe is not None and check.probe.pid == pid:
                self._advance(check, time.monotonic())
        if pid in self._killed:
            self._killed.pop(pid).reap()
            self._run.helpers.discard(pid)

    def look(self, now: float) -> None:
        """Follow the probes, judge a round that is complete, and ask those whose turn it is."""
        late = now > self._expected + GAP_S
        if late or self._run.state not in ACTIVE:
            for check in self._checks.values():
                self._drop(check)
                check.next_at = now + START_INTERVAL_S
            self._round_at = now + self._asked.health_interval_s
        else:
            for check in self._checks.values():
                self._advance(check, now)
            self._judge_round()
            self._ask(now)
        times = [check.probe.deadline for check in self._checks.values() if check.probe]
        times += [check.next_at for check in self._checks.values() if self._is_starting(check, now)]
        self._expected = self.due = min([self._round_at, *times])

    def release(self) -> None:
        for check in self._checks.values():
            self._drop(check)

    def finish(self) -> None:
        for pid, probe in self._killed.items():
            probe.close()
            self._run.helpers.discard(pid)

    # Asking.

    def _is_starting(self, check: _Check, now: float) -> bool:
        """Whether its failures do not count yet."""
        return not check.run.was_ready and now < check.run.started + self._asked.health_start_s

    def _ask(self, now: float) -> None:
        begins_round = now >= self._round_at and not any(
            check.counts for check in self._checks.values()
        )
        if begins_round:
            self._round_at = now + self._asked.health_interval_s
        for check in self._checks.values():
            if check.probe is not None or check.run.ended_for is not None:
                continue
            if self._is_starting(check, now):
                if now < check.next_at:
                    continue
                check.next_at = now + min(START_INTERVAL_S, self._asked.health_interval_s)
            elif begins_round:
                check.counts = True
            else:
                continue
            timeout_s = self._asked.health_timeout_s
            check.probe = Probe(self._targets[check.run.position], now + timeout_s, timeout_s)
            if check.probe.pid is not None:
                self._run.helpers.add(check.probe.pid)
            self._advance(check, now)
        self._judge_round()

    def _advance(self, check: _Check, now: float) -> None:
        """Go on with a probe, and note its answer when it is there."""
        probe = check.probe
        if probe is None:
            return
        pid = probe.pid
        is_answered = probe.advance(now)
        if pid is not None and probe.pid is None:
            self._run.helpers.discard(pid)
        if not is_answered:
            if probe.descriptor is not None:
                check.descriptor = probe.descriptor
                self._run.poll.register(probe.descriptor, probe.events)
            return
        counts = check.counts
        self._drop(check)
        check.counts = counts
        check.run.probe_problem = probe.problem or ""
        check.run.is_ready = not probe.problem and check.run.ended_for is None
        check.run.was_ready |= check.run.is_ready

    def _drop(self, check: _Check) -> None:
        """Give a probe up, if there is one; its round goes on without this instance."""
        probe, check.probe, check.counts = check.probe, None, False
        if check.descriptor is not None:
            self._run.poll.unregister(check.descriptor)
            check.descriptor = None
        if probe is not None:
            probe.cancel()
            if probe.pid is not None:
                self._killed[probe.pid] = probe

    # Judging.

    def _judge_round(self) -> None:
        """When all have answered: count failures, and end the instance with the most."""
        members = [check for check in self._checks.values() if check.counts]
        if not members or any(check.probe is not None for check in members):
            return
        for check in members:
            check.counts = False
        failed = [check for check in members if check.run.probe_problem]
        is_most = len(members) > 1 and 2 * len(failed) > len(members)
        if is_most != self._is_most:
            self._is_most = is_most
            self._run.messages.say(_describe_most(len(failed), failed or members, is_most=is_most))
        if is_most:
            return
        for check in members:
            check.run.failed_probes = check.run.failed_probes + 1 if check in failed else 0
        if not failed:
            return
        worst = max(failed, key=lambda check: check.run.failed_probes).run
        if worst.failed_probes < self._asked.health_failures:
            return
        if self._replacements.may_end(worst):
            target = self._targets[worst.position].text
            why = (
                f"{counted(worst.failed_probes, 'probe')} in a row failed "
                f"({target}: {worst.probe_problem})"
            )
            replaced = self._asked.failure_rule is OnFailure.RESTART
            self._replacements.end(worst, why, replaced=replaced)


def _describe_most(count: int, checks: list[_Check], *, is_most: bool) -> str:
    if not is_most:
        return "at most half of the instances fail their probes now"
    names = name_numbers("instance", [check.run.instance.index for check in checks])
    return (
        f"{names} failed {'its probe' if count == 1 else 'their probes'} ({checks[0].run.probe_problem}): "
        "more than half, so none is ended, and the run is not ready"
    )
