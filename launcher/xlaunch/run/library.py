# SPDX-License-Identifier: Apache-2.0
"""`xlaunch.launch`: run a plan from any Python program and get its report as a value.

`xlaunch.start` does not wait: what instances measure is seen while they run, and they can be ended.

The keeper changes what a process does with signals and orphans, so it is a process of its own
here, never the caller's: a notebook or a program with many threads may call this.
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
from collections.abc import Mapping
from typing import TYPE_CHECKING

from xlaunch.environment import Environment, prepare_environment
from xlaunch.errors import XLaunchError
from xlaunch.planning.plan import Plan
from xlaunch.run import check_outputs
from xlaunch.run.report import Report

if TYPE_CHECKING:
    from xlaunch.run.live import Live, LiveReader


KILL_INTERVAL_S = 0.1


def launch(
    plan: Plan, *, environment: Mapping[str, str] | None = None, table: bool = False
) -> Report:
    """Run the instances of `plan`, supervised, and wait for the last process.

    `environment`: what the instances inherit; None: `os.environ`. `table`: print the report to
    standard error as the command line does. A failed instance is not an error here: see
    `Report.exit_code`. Raises `XLaunchError` when the run could not be started or was killed.
    """
    if sys.platform != "linux":
        from xlaunch.run.unbound import run_unbound

        reports: list[Report] = []
        run_unbound(plan, _prepare(plan, environment), table=table, deliver=reports.append)
        return reports[0]
    keeper = _Keeper(plan, environment, table=table)
    try:
        return keeper.report()
    except KeyboardInterrupt:
        keeper.interrupt()
        raise
    finally:
        keeper.close()


def start(
    plan: Plan,
    *,
    environment: Mapping[str, str] | Environment | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    mark: str | None = None,
) -> RunningLaunch:
    """Begin to run the instances of `plan`, supervised, off the caller's terminal.

    Standard input is empty, and Ctrl-C reaches the caller alone. It ends with the thread that called
    this, at the latest.

    environment
        What the instances inherit; None: `os.environ`. Or an `Environment`, and they get just that.
    stdout, stderr
        Where their output goes, as `subprocess.Popen` takes it, but for PIPE; None: where the
        caller's goes.
    mark
        Have `LiveLine`s of output that holds this text. Output is read along only where
        `Request.metric` asks for something.

    Raises `XLaunchError` when nothing could be started, and where the system is not Linux.
    """
    if sys.platform != "linux":
        raise XLaunchError(f"xlaunch.start needs Linux, this is {sys.platform}: use xlaunch.launch")
    from xlaunch.run.live import LiveReader
    from xlaunch.run.measuring import metrics_of

    names = tuple(metric.name for metric in metrics_of(plan.request))
    live = LiveReader(os.memfd_create("xlaunch-live"), names)
    try:
        outputs = (subprocess.DEVNULL, stdout, stderr)
        keeper = _Keeper(plan, environment, live=(live, mark), streams=outputs)
    except BaseException:
        live.close()
        raise
    return RunningLaunch(keeper, live)


class RunningLaunch:
    """A run that `start` has begun. As a context manager it is ended at the end of the block."""

    def __init__(self, keeper: _Keeper, live: LiveReader) -> None:
        self._keeper = keeper
        self._live = live
        self._closed = False

    def fileno(self) -> int:
        """A descriptor that becomes readable when the run is about to have ended: then `wait`."""
        return self._keeper.descriptor

    def live(self) -> list[Live]:
        """What instances measured since the last call, in order; of very many values the first."""
        return list(self._live.read())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything has ended, at most for `timeout_s`; whether it has."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(self, select.POLLIN)
        while not self._keeper.ended:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not poll.poll(None if left is None else 1000 * left):
                return False
            self._keeper.receive()
        return True

    def report(self) -> Report:
        """Wait until everything has ended, and tell how it went.

        Raises `XLaunchError` when the launcher itself was killed, or ended before it had begun.
        """
        return self._keeper.report()

    def end(self) -> None:
        """Have every instance asked to end, and killed after the grace period; does not wait."""
        self._keeper.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill everything at once, and wait for the last process."""
        # The second SIGINT kills. Two in one moment may arrive as one, so: until it is over.
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


class _Keeper:
    """The keeper of one run, a child process, and the pipe that its report comes through."""

    def __init__(
        self,
        plan: Plan,
        environment: Mapping[str, str] | Environment | None,
        *,
        table: bool = False,
        live: tuple[LiveReader, str | None] | None = None,
        streams: tuple[int | None, int | None, int | None] | None = None,
    ) -> None:
        """`streams`: of its own, and a process group with them; None: the caller's."""
        prepared = _prepare(plan, environment)
        watched = None if live is None else (live[0].descriptor, live[0].metrics, live[1])
        task = pickle.dumps((plan, prepared, table, watched))
        self.descriptor, report_out = os.pipe()
        task_in, task_out = os.pipe()
        numbers = [str(number) for number in (os.getpid(), task_in, report_out)]
        stdin, stdout, stderr = streams or (None, None, None)
        try:
            self.process = subprocess.Popen(
                # The child must find this very package, wherever the caller found it.
                (sys.executable, "-P", "-c", _CHILD, _HOME, *numbers),
                pass_fds=(task_in, report_out, *([live[0].descriptor] if live else ())),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                process_group=None if streams is None else 0,
            )
        except BaseException:
            os.close(self.descriptor)
            os.close(task_out)
            raise
        finally:
            os.close(task_in)
            os.close(report_out)
        self._data = b""
        self.ended = False
        with contextlib.suppress(BrokenPipeError), open(task_out, "wb") as stream:
            stream.write(task)

    def receive(self) -> None:
        """Read some of the report, waiting for it."""
        data = os.read(self.descriptor, 1 << 20)
        self._data += data
        if not data:
            self.process.wait()
            self.ended = True

    def drain(self) -> None:
        """Wait for the end; a report that nobody reads would hold it up."""
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
        """Pass on a SIGINT that this process had, and each that follows, until the run has ended."""
        while not self.ended:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(KeyboardInterrupt):
                self.drain()

    def close(self) -> None:
        """End the run if it still goes on, and give the pipe back."""
        if self.process.poll() is None:
            self.process.terminate()
            self.drain()
        os.close(self.descriptor)


def _prepare(plan: Plan, environment: Mapping[str, str] | Environment | None) -> Environment:
    if not isinstance(environment, Environment):
        inherited = os.environ if environment is None else environment
        environment = prepare_environment(plan, inherited, make_folders=True)
    check_outputs(plan)
    return environment


_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_CHILD = """
import sys
home, *numbers = sys.argv[1:]
sys.path.insert(0, home)
from xlaunch.run.library import serve
sys.exit(serve(*map(int, numbers)))
"""


def serve(caller: int, task_descriptor: int, report_descriptor: int) -> int:
    """Be the keeper of one run for `launch` or `start`; the exit code for this process.

    `caller`: the PID of the process that called them.
    """
    from xlaunch.run.supervised import run_supervised
    from xlaunch.run.syscalls import die_with_parent

    die_with_parent(signal.SIGTERM)
    if os.getppid() != caller:
        return 128 + signal.SIGTERM  # it ended before the request above
    with open(task_descriptor, "rb") as stream:
        plan, environment, table, watched = pickle.loads(stream.read())  # noqa: S301 - our parent's
    os.set_inheritable(report_descriptor, False)
    live = None
    if watched is not None:
        from xlaunch.run.live import LiveWriter

        live = LiveWriter(*watched)
        os.set_inheritable(watched[0], False)

    def deliver(report: Report) -> None:
        with open(report_descriptor, "wb", closefd=False) as stream:
            stream.write(pickle.dumps(report))

    return run_supervised(plan, environment, table=table, deliver=deliver, live=live, caller=caller)
