# SPDX-License-Identifier: Apache-2.0
"""The state of a run as a JSON document, for `xlaunch ps RUN`, probes and exporters.

docs/supervision.md lists the fields.
"""

from __future__ import annotations

import time
from typing import Any

from xlaunch.machine.limits import ControlGroups, read_counters, read_cpu_quota
from xlaunch.machine.processes import TICKS_PER_SECOND, descendants, read_process
from xlaunch.machine.tree import Tree
from xlaunch.supervision.instance_run import InstanceRun
from xlaunch.supervision.replacements import ACTIVE, Replacements
from xlaunch.supervision.run_state import RunState
from xlaunch.supervision.sampling import MAX_PAUSE_S, SHARE_OF_ONE_CPU

SCHEMA_VERSION = 1
MIN_AGE_S = 1.0
"""Processes are looked at again after this time, or later where that costs more than half a percent of a CPU."""


class StateDocument:
    """Describes a run whenever it is asked."""

    def __init__(self, run: RunState, replacements: Replacements) -> None:
        self._run = run
        self._replacements = replacements
        self._usage: dict[int, tuple[float, int]] = {}
        """CPU seconds and resident bytes of each running instance, by its PID."""
        self._usage_due = 0.0
        self._tree = Tree("/")
        self._groups = ControlGroups(self._tree)

    def describe(self) -> dict[str, Any]:
        """The document."""
        now = time.monotonic()
        self._look(now)
        run = self._run
        instances = [self._instance(position, now) for position in range(len(run.plan.instances))]
        ready = sum(one["ready"] for one in instances)
        return {
            "schema_version": SCHEMA_VERSION,
            "pid": None if run.lease is None else run.lease.pid,
            "program": None if run.lease is None else run.lease.program,
            "state": run.state.value,
            "ready": run.state in ACTIVE and ready > 0 and 2 * ready >= len(instances),
            "age_s": round(now - run.started, 3),
            "restarting": self._replacements.waiting,
            "restart_problem": self._replacements.problem,
            "cgroup": self._cgroup(),
            "instances": instances,
        }

    def _look(self, now: float) -> None:
        running = self._run.running
        if now < self._usage_due and self._usage.keys() >= running.keys():
            return
        spent = time.thread_time()
        self._usage = {pid: _usage(pid) for pid in running}
        cost_s = time.thread_time() - spent
        self._usage_due = now + min(max(MIN_AGE_S, cost_s / SHARE_OF_ONE_CPU), MAX_PAUSE_S)

    def _instance(self, position: int, now: float) -> dict[str, Any]:
        instance = self._run.plan.instances[position]
        runs = [run for run in self._run.ended if run.position == position]
        last = self._run.last_run(position)
        lives = last is not None and last.ended is None
        cpu_s, rss_bytes = self._usage.get(last.pid, (0.0, 0)) if last and lives else (0.0, 0)
        state = self._state(position, last)
        started = [run.started for run in self._run.running.values() if run is last]
        return {
            "index": instance.index,
            "pid": last.pid if last and lives else None,
            "state": state,
            "ready": state in ("running", "ready"),
            "cpus": list(instance.cpus) if self._run.plan.bound else [],
            "cpu_s": round(sum(run.cpu_s for run in runs) + cpu_s, 3),
            "rss_bytes": rss_bytes,
            "restarts": max(0, len(runs) + lives - 1),
            "age_s": round(now - started[0], 3) if started else None,
            "exit_code": runs[-1].exit_code if runs else None,
            "failed_probes": last.failed_probes if last else 0,
            "probe_problem": (last.probe_problem if last else "") or None,
        }

    def _state(self, position: int, last: InstanceRun | None) -> str:
        if last is None:
            return "ended"
        if last.ended is not None:
            waits = self._run.restarts.is_waiting(position)
            is_well = last.exit_code == 0 and last.ended_for is None
            return "waiting" if waits else "ended" if is_well else "failed"
        if last.ended_for is not None or self._run.state not in ACTIVE:
            return "suspended" if self._run.state.value == "stopped" else "ending"
        if last.is_ready is None:
            return "running"
        if last.is_ready:
            return "ready"
        return "unhealthy" if last.failed_probes or last.was_ready else "starting"

    def _cgroup(self) -> dict[str, Any] | None:
        """The group whose CPU quota is the tightest, else the innermost with counters."""
        levels = [group for found in self._groups.enclosing("cpu") for group in found]
        quotas = {group.directory: read_cpu_quota(self._tree, group) for group in levels}
        levels.sort(key=lambda group: quotas[group.directory] or float("inf"))
        for group in levels:
            path = group.file("cpu", "stat") if group.prefixed else f"{group.directory}/cpu.stat"
            counters = read_counters(self._tree, path)
            quota = quotas[group.directory]
            if quota is not None or "nr_periods" in counters:
                throttled_s = counters.get("throttled_usec", 0) / 1e6
                throttled_s += counters.get("throttled_time", 0) / 1e9  # version 1
                return {
                    "path": group.directory,
                    "cpu_limit": quota,
                    "periods": counters.get("nr_periods", 0),
                    "throttled_periods": counters.get("nr_throttled", 0),
                    "throttled_s": round(throttled_s, 3),
                }
        return None


def _usage(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of an instance's process and its descendants."""
    found = [status for one in (pid, *descendants(pid)) if (status := read_process(one))]
    ticks = sum(status.cpu_ticks + status.children_ticks for status in found)
    return ticks / TICKS_PER_SECOND, sum(status.rss_bytes for status in found)
