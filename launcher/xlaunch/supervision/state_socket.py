# SPDX-License-Identifier: Apache-2.0
"""The socket of a run, which answers its user: see `xlaunch.report.run_client`; and the state that it tells.

It is in this user's private directory, and the record of the launch names it. Nothing here blocks.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import socket
import struct
import time
from typing import Any

from xlaunch.errors import XLaunchError
from xlaunch.files import names_in, runtime_directory
from xlaunch.machine.limits import ControlGroups, read_counters, read_cpu_quota
from xlaunch.machine.processes import TICKS_PER_SECOND
from xlaunch.machine.tree import Tree
from xlaunch.report.run_client import RESTART, STATE, short_name
from xlaunch.supervision.instance_run import InstanceRun
from xlaunch.supervision.run_state import ACTIVE, Part, Replacements, RunState

SCHEMA_VERSION = 1


class StateDocument:
    """The state of a run for `xlaunch ps RUN`, probes and exporters: docs/supervision.md lists the fields."""

    def __init__(self, run: RunState, replacements: Replacements) -> None:
        self._run = run
        self._replacements = replacements
        self._tree = Tree("/")
        self._groups = ControlGroups(self._tree)

    def describe(self) -> dict[str, Any]:
        now = time.monotonic()
        self._run.sampler.refresh()
        run = self._run
        instances = [self._instance(position, now) for position in range(len(run.plan.instances))]
        ready = sum(instance["ready"] for instance in instances)
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

    def _instance(self, position: int, now: float) -> dict[str, Any]:
        instance = self._run.plan.instances[position]
        runs = [run for run in self._run.ended if run.position == position]
        last = self._run.last_run(position)
        lives = last is not None and last.ended is None
        ticks, rss_bytes = (
            (last.samples.ticks, last.samples.rss_bytes) if last and lives else (0, 0)
        )
        state = self._state(position, last)
        started = [run.started for run in self._run.running.values() if run is last]
        return {
            "index": instance.index,
            "pid": last.pid if last and lives else None,
            "state": state,
            "ready": state in ("running", "ready"),
            "cpus": list(instance.cpus) if self._run.plan.bound else [],
            "cpu_s": round(sum(run.cpu_s for run in runs) + ticks / TICKS_PER_SECOND, 3),
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
        levels = self._groups.all_enclosing("cpu")
        quotas = {group.directory: read_cpu_quota(self._tree, group) for group in levels}
        levels.sort(key=lambda group: quotas[group.directory] or float("inf"))
        for group in levels:
            counters = read_counters(self._tree, f"{group.directory}/cpu.stat")
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


DIRECTORY = "xlaunch-runs"
SUFFIX = ".socket"
MAX_CONNECTIONS = 16
MAX_REQUEST_BYTES = 64
CONNECTION_S = 5.0
"""Longest life of a connection."""
_KIND = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
_NAME = re.compile(rf"\d+-\d+-\d+{re.escape(SUFFIX)}", re.ASCII)


class _Connection:
    """A caller."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.deadline = time.monotonic() + CONNECTION_S
        self.request = b""
        self.answer = b""


class StateSocket(Part):
    """Answers `state` and `restart`."""

    def __init__(self, run: RunState, replacements: Replacements) -> None:
        assert run.lease is not None
        self._run = run
        self._replacements = replacements
        self._document = StateDocument(run, replacements)
        self._connections: dict[int, _Connection] = {}
        self._listen_at = math.inf
        """When to listen again, after a time without descriptors."""
        directory = runtime_directory(DIRECTORY, os.environ)
        _remove_dead(directory)
        self._path = os.path.join(directory, f"{os.path.basename(run.lease.path)}{SUFFIX}")
        self._listener = socket.socket(socket.AF_UNIX, _KIND)
        try:
            with short_name(f"{self._path}.new") as short:
                self._listener.bind(short)
                os.chmod(short, 0o600)
                self._listener.listen(MAX_CONNECTIONS)
                os.rename(short, self._path)  # so nobody takes it for that of a run that was killed
        except OSError:
            self._listener.close()
            raise
        run.poll.register(self._listener.fileno(), select.POLLIN)
        run.record(socket=self._path)

    def owns(self, descriptor: int) -> bool:
        return descriptor == self._listener.fileno() or descriptor in self._connections

    def handle(self, descriptor: int) -> None:
        connection = self._connections.get(descriptor)
        if connection is None:
            self._accept()
            return
        try:
            if not connection.answer and not self._read_request(connection):
                return
            sent = connection.socket.send(connection.answer)
            connection.answer = connection.answer[sent:]
        except BlockingIOError:
            return
        except OSError:  # the caller is gone
            connection.answer = b""
        if connection.answer:
            self._run.poll.register(descriptor, select.POLLOUT)
        else:
            self._close(descriptor)

    def look(self, now: float) -> None:
        """Drop callers that are too slow."""
        for descriptor, connection in list(self._connections.items()):
            if now >= connection.deadline:
                self._close(descriptor)
        if now >= self._listen_at:
            self._listen_at = math.inf
            self._run.poll.register(self._listener.fileno(), select.POLLIN)
        self._set_due()

    def finish(self) -> None:
        for descriptor in list(self._connections):
            self._close(descriptor)
        if self._listen_at == math.inf:
            self._run.poll.unregister(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:  # the caller is gone already
            return
        except OSError:  # no more descriptors: poll() would report the caller again and again
            self._run.poll.unregister(self._listener.fileno())
            self._listen_at = time.monotonic() + CONNECTION_S
            self._set_due()
            return
        accepted.setblocking(False)
        credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, user, _ = struct.unpack("3i", credentials)
        if user not in (0, os.geteuid()) or len(self._connections) >= MAX_CONNECTIONS:
            accepted.close()
            return
        self._connections[accepted.fileno()] = _Connection(accepted)
        self._run.poll.register(accepted.fileno(), select.POLLIN)
        self._set_due()

    def _read_request(self, connection: _Connection) -> bool:
        """Read what is there; return whether there is an answer to send."""
        data = connection.socket.recv(MAX_REQUEST_BYTES)
        connection.request += data
        is_whole = b"\n" in connection.request or not data
        if is_whole or len(connection.request) >= MAX_REQUEST_BYTES:
            word = connection.request.partition(b"\n")[0].decode(errors="replace")
            connection.answer = json.dumps(self._answer(word)).encode()
        return bool(connection.answer)

    def _answer(self, word: str) -> dict[str, Any]:
        if word == RESTART:
            problem = self._replacements.request()
            return {"restarting": True} if problem is None else {"error": problem}
        if word == STATE:
            return self._document.describe()
        return {"error": f"{word!r} is not a request; the requests are {STATE} and {RESTART}"}

    def _close(self, descriptor: int) -> None:
        self._run.poll.unregister(descriptor)
        self._connections.pop(descriptor).socket.close()
        self._set_due()

    def _set_due(self) -> None:
        deadlines = [connection.deadline for connection in self._connections.values()]
        self.due = min([*deadlines, self._listen_at])


def _remove_dead(directory: str) -> None:
    """Remove the sockets of runs that were killed: nothing listens on them."""
    for name in [name for name in names_in(directory) if _NAME.fullmatch(name)]:
        with socket.socket(socket.AF_UNIX, _KIND) as probe:
            path = os.path.join(directory, name)
            with contextlib.suppress(OSError), short_name(path) as short:
                try:
                    probe.connect(short)
                except ConnectionRefusedError:
                    os.unlink(path)


def open_state_socket(run: RunState, replacements: Replacements) -> list[Part]:
    """The socket of a run that has a record; none where its directory cannot be made, or be private."""
    if run.lease is None or not run.lease.path:
        return []
    try:
        return [StateSocket(run, replacements)]
    except (OSError, XLaunchError):
        return []
