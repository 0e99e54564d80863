# SPDX-License-Identifier: Apache-2.0
"""The process that exports metrics for Prometheus: started with the socket of a run, and ended with the run."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from importlib.util import find_spec

from xlaunch.children import HOME, PATH, without_current_directory
from xlaunch.errors import UsageError
from xlaunch.files import OutputKind, check_output
from xlaunch.planning.request import RunRequest
from xlaunch.supervision.run_state import Part, RunState
from xlaunch.text import format_cpu_list

END_S = 2.0
"""How long the process may take to end."""
METRICS_FILE = OutputKind(
    "a file of xlaunch's metrics", lambda head: head.startswith(b"# HELP xlaunch_")
)


def check_exporter(run: RunRequest) -> None:
    """Raise `UsageError` if metrics cannot be exported as asked."""
    if find_spec("prometheus_client") is None:
        raise UsageError(
            "--prometheus-file and --prometheus-port need a package: pip install 'xlaunch[prometheus]'"
        )
    if run.prometheus_file is not None:
        check_output(run.prometheus_file, METRICS_FILE, option="--prometheus-file", force=run.force)
    if run.prometheus_port is not None:
        import socket

        if not 0 < run.prometheus_port < 1 << 16:
            raise UsageError(
                f"--prometheus-port {run.prometheus_port} is not a port from 1 to 65535"
            )
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", run.prometheus_port))
            except OSError as error:
                raise UsageError(
                    f"--prometheus-port {run.prometheus_port}: {error.strerror}; name another port"
                ) from None


def start_exporter(run: RunState) -> list[Part]:
    """The exporter that was asked for, if the run has a socket; else a warning."""
    if not run.asked.exports_metrics:
        return []
    why = "the run has no socket"
    if run.lease is not None and run.lease.socket:
        try:
            return [ExporterProcess(run, run.lease.socket)]
        except OSError as error:
            why = str(error)
    run.messages.warn(f"metrics are not exported: {why}")
    return []


class ExporterProcess(Part):
    """Starts it, says when it has ended by itself, and ends it with the run."""

    def __init__(self, run: RunState, socket: str) -> None:
        """`socket`: the path of the run's. Raises OSError."""
        self._run = run
        asked, words = run.asked, [sys.executable, "-P", "-m", "xlaunch.report.exporter", socket]
        if asked.prometheus_file is not None:
            words += ["--file", os.path.abspath(asked.prometheus_file)]
        if asked.prometheus_port is not None:
            words += ["--port", str(asked.prometheus_port)]
        if run.plan.bound and (free := os.sched_getaffinity(0).difference(run.plan.used_cpus)):
            words += ["--cpus", format_cpu_list(free)]
        environment = without_current_directory(os.environ)
        paths = [HOME, *filter(None, [environment.get(PATH)])]
        self._pid: int | None = os.posix_spawn(
            words[0],
            words,
            {**environment, PATH: os.pathsep.join(paths)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, 2, 1),
            ],
            setpgroup=0,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
        run.helpers.add(self._pid)

    def reap(self, pid: int) -> None:
        if pid != self._pid:
            return
        _, status = os.waitpid(pid, 0)
        self._run.helpers.discard(pid)
        self._pid = None
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        self._run.messages.warn(f"metrics are no longer exported: the exporter has ended {how}")

    def finish(self) -> None:
        pid, self._pid = self._pid, None
        if pid is None:
            return
        deadline = time.monotonic() + END_S
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGTERM)
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
        self._run.helpers.discard(pid)
