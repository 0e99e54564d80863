# SPDX-License-Identifier: Apache-2.0
"""A supervised run beside its caller: what `xlaunch.launch` and `xlaunch.start` use.

The keeper changes what a process does with signals and orphans, so it is a process of its own
here, never the caller's: a notebook or a program with many threads may call these.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from xlaunch.children import HOME, without_current_directory
from xlaunch.errors import XLaunchError
from xlaunch.report import Report

if TYPE_CHECKING:
    from xlaunch.metrics.live import Live
    from xlaunch.supervision.run_state import Job


KILL_INTERVAL_S = 0.1


class RunningLaunch:
    """A run that `xlaunch.start` has started. As a context manager it is killed at the end of the block."""

    def __init__(
        self, job: Job, *, stdout: int | None, stderr: int | None, mark: str | None
    ) -> None:
        """The arguments are those of `xlaunch.start`."""
        from xlaunch.metrics.live import LiveReader
        from xlaunch.metrics.metric_lines import parse_metrics

        parse_metrics(job.run.metric)  # raises UsageError here, before anything starts
        self._closed = False
        self._live = LiveReader(os.memfd_create("xlaunch-live"))
        try:
            streams = (subprocess.DEVNULL, stdout, stderr)
            self._keeper = KeeperProcess(job, live=(self._live.descriptor, mark), streams=streams)
        except BaseException:
            self._live.close()
            raise

    def fileno(self) -> int:
        """A descriptor that becomes readable when the run is ending: then call `wait`."""
        return self._keeper.descriptor

    def live(self) -> list[Live]:
        """Values since the last call, in order. Beyond a limit on their size, later ones are dropped."""
        return list(self._live.read())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the run, at most `timeout_s`; return whether it has ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(self, select.POLLIN)
        while not self._keeper.ended:
            remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not poll.poll(None if remaining_s is None else 1000 * remaining_s):
                return False
            self._keeper.receive()
        return True

    def report(self) -> Report:
        """Wait for the end of the run, and return its report. Raises `XLaunchError` if there is none."""
        return self._keeper.report()

    def end(self) -> None:
        """Ask every instance to end, and have it killed after the grace period; do not wait."""
        self._keeper.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill every process of the run, and wait for the last one."""
        # The second SIGINT kills. Two may arrive as one, so repeat until the run has ended.
        while not self._keeper.ended:
            self._keeper.process.send_signal(signal.SIGINT)
            self.wait(KILL_INTERVAL_S)

    def __enter__(self) -> RunningLaunch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.kill()
        finally:
            self._keeper.close()
            self._live.close()


class KeeperProcess:
    """The keeper of one run as a child process, and the pipe for its report."""

    def __init__(
        self,
        job: Job,
        *,
        live: tuple[int, str | None] | None = None,
        streams: tuple[int | None, int | None, int | None] | None = None,
    ) -> None:
        """`live`: the file for metric values, and the mark of the lines that it also gets.

        `streams`: its standard streams, in a process group of its own; None: the caller's.
        """
        data = pickle.dumps((job, live))
        self.descriptor, report_out = os.pipe()
        job_in, job_out = os.pipe()
        numbers = [str(number) for number in (os.getpid(), job_in, report_out)]
        stdin, stdout, stderr = streams or (None, None, None)
        try:
            self.process = subprocess.Popen(
                # The child must find this very package, wherever the caller found it.
                (sys.executable, "-P", "-c", _CHILD, HOME, *numbers),
                env=without_current_directory(os.environ),
                pass_fds=(job_in, report_out, *([live[0]] if live else ())),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                process_group=None if streams is None else 0,
            )
        except BaseException:
            os.close(self.descriptor)
            os.close(job_out)
            raise
        finally:
            os.close(job_in)
            os.close(report_out)
        self._data = b""
        self.ended = False
        with contextlib.suppress(BrokenPipeError), open(job_out, "wb") as stream:
            stream.write(data)

    def receive(self) -> None:
        """Wait for a part of the report, and read it."""
        data = os.read(self.descriptor, 1 << 20)
        self._data += data
        if not data:
            self.process.wait()
            self.ended = True

    def drain(self) -> None:
        """Wait for the end of the run, and read the report, which the keeper waits to write."""
        while not self.ended:
            self.receive()

    def report(self) -> Report:
        """Wait for the report. Raises `XLaunchError` when there is none."""
        self.drain()
        if not self._data:
            code = self.process.returncode
            raise XLaunchError(f"the run left no report; its keeper ended with {code}")
        # From our own child, through our own pipe.
        report: Report = pickle.loads(self._data)  # noqa: S301
        return report

    def interrupt(self) -> None:
        """Forward a SIGINT of this process, and each further one, until the run has ended."""
        while not self.ended:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(KeyboardInterrupt):
                self.drain()

    def close(self) -> None:
        """End the run if it has not ended, and close the pipe."""
        if self.process.poll() is None:
            self.process.terminate()
            self.drain()
        os.close(self.descriptor)


_CHILD = """
import sys
home, *numbers = sys.argv[1:]
sys.path.insert(0, home)
from xlaunch.supervision.keeper_client import serve
sys.exit(serve(*map(int, numbers)))
"""


def serve(caller: int, job_descriptor: int, report_descriptor: int) -> int:
    """Act as the keeper of one run for `launch` or `start`; return the exit code for this process.

    `caller`: the PID of the process that called them.
    """
    from xlaunch.supervision.keeper import keep
    from xlaunch.supervision.syscalls import die_with_parent

    die_with_parent(signal.SIGTERM)
    if os.getppid() != caller:
        return 128 + signal.SIGTERM  # it ended before the request above
    with open(job_descriptor, "rb") as stream:
        job, watched = pickle.loads(stream.read())  # noqa: S301 - our parent's
    os.set_inheritable(report_descriptor, False)
    live = None
    if watched is not None:
        from xlaunch.metrics.live import LiveWriter

        live = LiveWriter(*watched)
        os.set_inheritable(watched[0], False)
    job.environment.caches.hold()
    return keep(job._replace(live=live, report_descriptor=report_descriptor), caller=caller)
