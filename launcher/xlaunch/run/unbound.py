# SPDX-License-Identifier: Apache-2.0
"""Run a plan where there is no Linux: no binding, no supervisor processes, what Python offers.

On macOS and Windows the launcher still sets thread counts and variables, runs the instances, ends
the others after a failure, and returns the same exit codes. It says that nothing is bound.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import IO

from xlaunch.environment import Environment
from xlaunch.errors import XLaunchError
from xlaunch.planning.plan import Instance, Plan
from xlaunch.planning.request import OnFailure
from xlaunch.run.logs import open_logs
from xlaunch.run.output import READ_SIZE, LineTagger
from xlaunch.run.report import InstanceReport, Report

POLL_S = 0.05
TIMED_OUT = 124


class _Child:
    """An instance and the threads that pass its output on."""

    def __init__(self, instance: Instance, process: subprocess.Popen[bytes]) -> None:
        self.instance = instance
        self.process = process
        self.started = time.monotonic()
        self.ended: float | None = None
        self.relays: list[threading.Thread] = []

    @property
    def exit_code(self) -> int:
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    def report(self) -> InstanceReport:
        wall = (self.ended or time.monotonic()) - self.started
        code = self.process.returncode
        return InstanceReport(
            index=self.instance.index,
            pid=self.process.pid,
            cpus_asked=(),
            cpus_observed=(),
            numa_nodes=(),
            exit_code=self.exit_code,
            signal=signal.Signals(-code).name if code < 0 else None,
            wall_s=wall,
            cpu_s=None,
            utilisation=None,
            peak_rss_bytes=None,
            context_switches=None,
            migrations=None,
            leftover_processes=0,
        )


def run_unbound(plan: Plan, environment: Environment) -> Report:
    """Run the instances of `plan` side by side and wait for all of them."""
    request = plan.request
    started = time.monotonic()
    deadline = None if request.timeout_s is None else started + request.timeout_s
    children: list[_Child] = []
    failure: tuple[int, str] | None = None
    try:
        with _terminate_becomes_interrupt():
            for instance, variables in zip(plan.instances, environment.variables, strict=True):
                children.append(_start(plan, environment, instance, variables))
            while any(child.ended is None for child in children):
                time.sleep(POLL_S)
                for child in children:
                    if child.ended is not None or child.process.poll() is None:
                        continue
                    child.ended = time.monotonic()
                    if child.exit_code != 0 and failure is None:
                        index = child.instance.index
                        text = f"instance {index} failed with exit code {child.exit_code}"
                        failure = child.exit_code, text
                        if request.on_failure is OnFailure.STOP:
                            _end(children, request.grace_s)
                if deadline is not None and time.monotonic() > deadline:
                    deadline = None
                    failure = failure or (TIMED_OUT, f"timeout after {request.timeout_s:g} s")
                    _end(children, request.grace_s)
    except KeyboardInterrupt:
        failure = failure or (128 + signal.SIGINT, "interrupted")
        _end(children, request.grace_s)
    except OSError as error:
        _end(children, request.grace_s)
        raise XLaunchError(f"cannot start {environment.program.executable!r}: {error}") from None
    for child in children:
        for relay in child.relays:
            relay.join()
    code, reason = failure or (0, f"{len(children)} instances ended well")
    return Report(
        exit_code=code,
        reason=reason,
        wall_s=time.monotonic() - started,
        count=plan.count,
        instances=tuple(child.report() for child in children),
        warnings=(*plan.warnings, *environment.warnings),
        argv=environment.program.argv,
    )


def _start(
    plan: Plan, environment: Environment, instance: Instance, variables: dict[str, str]
) -> _Child:
    stdin = None if len(plan.instances) == 1 else subprocess.DEVNULL
    outputs: tuple[int | None, int | None] = (None, None)
    opened: tuple[int, ...] = ()
    if plan.request.log_dir is not None:
        opened = outputs = open_logs(plan.request.log_dir, instance.index)
    elif plan.relayed:
        outputs = (subprocess.PIPE, subprocess.PIPE)
    try:
        child = _Child(
            instance,
            subprocess.Popen(
                environment.program.argv,
                executable=environment.program.executable,
                env=variables,
                stdin=stdin,
                stdout=outputs[0],
                stderr=outputs[1],
            ),
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)
    tag = str(instance.index) if plan.tagged else ""
    lock = threading.Lock()
    for source, target in ((child.process.stdout, 1), (child.process.stderr, 2)):
        if source is not None:
            relay = threading.Thread(target=_relay, args=(source, target, tag, lock), daemon=True)
            relay.start()
            child.relays.append(relay)
    return child


def _relay(source: IO[bytes], target: int, tag: str, lock: threading.Lock) -> None:
    tagger = LineTagger(tag, terminal=False)
    while True:
        data = os.read(source.fileno(), READ_SIZE)
        lines = memoryview(tagger.feed(data) if data else tagger.finish())
        with lock, contextlib.suppress(OSError):
            while lines:
                lines = lines[os.write(target, lines) :]
        if not data:
            return


def _end(children: list[_Child], grace_s: float) -> None:
    """Ask every child that still runs to end; kill what is left after the grace period."""
    running = [child for child in children if child.process.poll() is None]
    for child in running:
        child.process.terminate()
    deadline = time.monotonic() + grace_s
    for child in running:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        child.ended = time.monotonic()


@contextlib.contextmanager
def _terminate_becomes_interrupt() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does, within the block."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
