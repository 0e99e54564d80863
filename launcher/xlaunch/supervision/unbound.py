# SPDX-License-Identifier: Apache-2.0
"""Run a plan where there is no Linux: no binding, no supervisor processes, what Python offers.

On macOS and Windows the launcher still sets thread counts and variables, runs the instances, ends
the others after a failure, and returns the same exit codes. It says that nothing is bound. What an
instance leaves running is not looked for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO

from xlaunch.environment import Environment, Program
from xlaunch.errors import XLaunchError
from xlaunch.output.logs import open_logs
from xlaunch.output.tagged_lines import READ_SIZE, LineTagger
from xlaunch.planning.plan import Instance, Plan
from xlaunch.planning.request import OnFailure
from xlaunch.report import InstanceReport, Report
from xlaunch.report.json_file import write_report_or_tell
from xlaunch.report.table import render_report
from xlaunch.supervision.signalling import signal_name
from xlaunch.supervision.start import exec_error

POLL_S = 0.05
DRAIN_S = 0.2
"""How long nothing may come from a pipe whose instance has ended, before it is left."""
TIMED_OUT = 124
OWN_FAULT = 125

UNBOUND = f"instances are not bound to CPUs: on {sys.platform} only their thread counts are set"


class _Child:
    """An instance and the threads that pass its output on."""

    def __init__(self, instance: Instance, process: subprocess.Popen[bytes]) -> None:
        self.instance = instance
        self.process = process
        self.started = time.monotonic()
        self.ended: float | None = None
        self.relays: list[_Relay] = []

    @property
    def exit_code(self) -> int:
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    def describe_failure(self) -> str:
        code = self.process.returncode
        if code < 0:
            return f"instance {self.instance.index} was ended by {signal_name(-code)}"
        return f"instance {self.instance.index} failed with exit code {code}"

    def report(self) -> InstanceReport:
        assert self.ended is not None
        code = self.process.returncode
        return InstanceReport(
            index=self.instance.index,
            pid=self.process.pid,
            cpus_asked=(),
            cpus_observed=(),
            numa_nodes=(),
            exit_code=self.exit_code,
            signal=signal_name(-code) if code < 0 else None,
            wall_s=self.ended - self.started,
            cpu_s=None,
            utilisation=None,
            peak_rss_bytes=None,
            context_switches=None,
            migrations=None,
            leftover_processes=0,
        )


class _Relay(threading.Thread):
    """Passes one stream of one instance on, by whole lines."""

    def __init__(self, source: IO[bytes], target: int, tag: str, lock: threading.Lock) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._target = target
        self._tagger = LineTagger(tag, terminal=False)
        self._lock = lock
        self._reads = 0
        self._reading = False

    def run(self) -> None:
        data = b"more"
        while data:
            self._reading = True
            data = os.read(self._source.fileno(), READ_SIZE)
            self._reading = False
            self._reads += 1
            self._write(self._tagger.feed(data) if data else self._tagger.finish())

    def drain(self) -> None:
        """Wait for the end of the stream, but not for a stranger who only holds it open."""
        while self.is_alive():
            reads = self._reads
            self.join(DRAIN_S)
            if self._reading and self._reads == reads:
                self._write(self._tagger.finish())
                return

    def _write(self, data: bytes) -> None:
        lines = memoryview(data)
        with self._lock, contextlib.suppress(OSError):  # nobody reads on
            while lines:
                lines = lines[os.write(self._target, lines) :]


class _Run:
    """The instances of one plan, from start to end. Use once."""

    def __init__(self, plan: Plan, environment: Environment) -> None:
        self._plan = plan
        self._request = plan.request
        self._environment = environment
        self._children: list[_Child] = []
        self._locks = {1: threading.Lock(), 2: threading.Lock()}
        self._told: list[int] = []
        """Signals to this process that are still to be handled."""
        self._kill_at: float | None = None
        """Set once everything was asked to end."""
        self._failure: tuple[int, str] | None = None

    def run(self) -> Report:
        started = time.monotonic()
        timeout_s = self._request.timeout_s
        timeout_at = None if timeout_s is None else started + timeout_s
        with _signals_noted(self._told):
            self._start_all()
            while self._running():
                time.sleep(POLL_S)
                self._look_for_ends()
                while self._told:
                    self._handle(self._told.pop(0))
                now = time.monotonic()
                if timeout_at is not None and now >= timeout_at and self._running():
                    timeout_at = None
                    self._fail(TIMED_OUT, f"timeout after {timeout_s:g} s")
                    self._end()
                if self._kill_at is not None and now >= self._kill_at:
                    self._kill()
        for child in self._children:
            for relay in child.relays:
                relay.drain()
        count = len(self._children)
        ended_well = f"{count} instance{'' if count == 1 else 's'} ended well"
        code, reason = self._failure or (0, ended_well)
        return Report(
            exit_code=code,
            reason=reason,
            wall_s=time.monotonic() - started,
            count=self._plan.count,
            instances=tuple(child.report() for child in self._children),
            warnings=(*self._plan.warnings, UNBOUND, *left_out(self._plan)),
            argv=self._environment.program.argv,
        )

    def _start_all(self) -> None:
        environment = self._environment
        for instance, program, variables in zip(
            self._plan.instances, environment.programs, environment.variables, strict=True
        ):
            try:
                self._start(instance, program, variables)
            except (XLaunchError, OSError) as error:
                code = error.exit_code if isinstance(error, XLaunchError) else OWN_FAULT
                print(f"xlaunch: error: instance {instance.index}: {error}", file=sys.stderr)
                self._fail(code, f"instance {instance.index} could not be started")
                self._end()
                return

    def _start(self, instance: Instance, program: Program, variables: dict[str, str]) -> None:
        stdin = None if len(self._plan.instances) == 1 else subprocess.DEVNULL
        outputs: tuple[int | None, int | None] = (None, None)
        opened: tuple[int, ...] = ()
        if self._request.log_dir is not None:
            opened = outputs = open_logs(self._request.log_dir, instance.index)
        elif self._plan.relayed:
            outputs = (subprocess.PIPE, subprocess.PIPE)
        try:
            process = _open_process(program, variables, stdin=stdin, outputs=outputs)
        finally:
            for descriptor in opened:
                os.close(descriptor)
        child = _Child(instance, process)
        self._children.append(child)
        tag = str(instance.index) if self._plan.tagged else ""
        for source, target in ((process.stdout, 1), (process.stderr, 2)):
            if source is not None:
                relay = _Relay(source, target, tag, self._locks[target])
                relay.start()
                child.relays.append(relay)

    def _running(self) -> list[_Child]:
        return [child for child in self._children if child.ended is None]

    def _look_for_ends(self) -> None:
        for child in self._running():
            if child.process.poll() is None:
                continue
            child.ended = time.monotonic()
            if child.exit_code != 0:
                self._fail(child.exit_code, child.describe_failure())
                if self._request.on_failure is not OnFailure.CONTINUE:
                    self._end()

    def _handle(self, number: int) -> None:
        """The first signal asks everything to end, the second one ends it."""
        if self._kill_at is not None:
            self._kill()
            return
        self._fail(128 + number, f"{signal_name(number)} sent to the launcher")
        # What the terminal sends goes to the instances as well; they may take their time with it.
        told_by_terminal = number == signal.SIGINT and any(map(os.isatty, (0, 1, 2)))
        self._end(ask=not told_by_terminal)

    def _fail(self, code: int, reason: str) -> None:
        self._failure = self._failure or (code, reason)

    def _end(self, *, ask: bool = True) -> None:
        """Ask what still runs to end, and give it the grace period."""
        if self._kill_at is not None:
            return
        self._kill_at = time.monotonic() + self._request.grace_s
        if ask:
            for child in self._running():
                child.process.terminate()

    def _kill(self) -> None:
        for child in self._running():
            child.process.kill()


def left_out(plan: Plan) -> list[str]:
    """A line for each thing that was asked for and is not to be had here."""
    lines = [f"--metric is not read on {sys.platform}"] if plan.request.metric else []
    if plan.request.pty:
        lines.append(f"--pty: there are no pseudo-terminals on {sys.platform}")
    if plan.request.on_failure is OnFailure.RESTART:
        lines.append(f"--on-failure restart means stop on {sys.platform}")
    return lines


def run_unbound(
    plan: Plan,
    environment: Environment,
    *,
    table: bool,
    deliver: Callable[[Report], None] | None,
) -> int:
    """Run the instances of `plan` side by side; the exit code of the first failure, or 0."""
    for text in left_out(plan) if table else ():
        print(f"xlaunch: warning: {text}", file=sys.stderr)
    report = _Run(plan, environment).run()
    if table:
        print(render_report(report), file=sys.stderr)
    if deliver is not None:
        deliver(report)
    return write_report_or_tell(report, plan.request.report)


def _open_process(
    program: Program,
    variables: dict[str, str],
    *,
    stdin: int | None,
    outputs: tuple[int | None, int | None],
) -> subprocess.Popen[bytes]:
    """Start `program`. Raises what `execute` raises."""

    def start(executable: str, argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
        stdout, stderr = outputs
        return subprocess.Popen(
            argv, executable=executable, env=variables, stdin=stdin, stdout=stdout, stderr=stderr
        )

    try:
        return start(program.executable, program.argv)
    except OSError as error:
        if error.errno != errno.ENOEXEC or os.name != "posix":
            raise exec_error(program, error.errno or 0) from None
    # A script without a shebang, as on Linux.
    return start("/bin/sh", ("/bin/sh", program.executable, *program.argv[1:]))


@contextlib.contextmanager
def _signals_noted(told: list[int]) -> Iterator[None]:
    """Within the block, signals that would end this process are added to `told` instead."""

    def note(number: int, _: FrameType | None) -> None:
        told.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield  # a library call: signals are the program's own business
        return
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in numbers}
    noted = [number for number in numbers if previous[number] != signal.SIG_IGN]
    for number in noted:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in noted:
            signal.signal(number, previous[number])
