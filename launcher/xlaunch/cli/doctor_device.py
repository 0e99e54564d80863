# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device -- PROGRAM`: run a program and say which devices worked, and how fast it decodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator

import click

from xlaunch.console import say
from xlaunch.doctor.decoding import Decoding, DecodingWatch
from xlaunch.doctor.device import (
    ROUNDS,
    compare,
    document,
    parse_devices,
    render,
    request_for,
    run_all,
)
from xlaunch.errors import UsageError
from xlaunch.files import temporary_directory
from xlaunch.machine import read_machine
from xlaunch.machine.topology import Machine
from xlaunch.options.commands import launch_command
from xlaunch.options.definitions import OF_SHARING
from xlaunch.options.precedence import ResolvedOptions, request_from
from xlaunch.planning.planner import plan
from xlaunch.planning.request import Request
from xlaunch.report import Report

NAME = "xlaunch doctor"
USAGE = f"{NAME} --device -- PROGRAM ARGS"
OTHERS = (
    *(*OF_SHARING, "sysroot", "synthetic", "dry-run", "json", "explain", "save-preset"),
    "verify-device",
)
"""Options of a launch that this command does not take: they run nothing, it implies them, or they
need other launches and ranks."""


def watch_program(
    words: tuple[str, ...], *, compared: str | None, as_json: bool, verbose: bool
) -> int:
    """Run the program, print where it worked, and return its exit code.

    What follows `--` is a launch, as after `xlaunch`: options, then the program. The verdict goes to
    standard error, because standard output is the program's. With `as_json` the document goes to
    standard output, as of every command with --json, and the program's output to standard error.
    With `verbose` the speed of language models is told even if it is near what memory allows.
    """
    if not words:
        raise UsageError(f"--device runs a program and there is none: {USAGE}")
    typed = click.get_current_context().obj or words
    if typed[-len(words) :] != words:
        raise UsageError(f"put -- before the program and its arguments: {USAGE}")
    if sys.platform != "linux":
        raise UsageError(f"--device needs Linux, this is {sys.platform}")
    from xlaunch.report.device_counters import NvidiaCounters

    request = _parse(words).replace(verify_device=True)
    machine = read_machine()
    problem = NvidiaCounters({}).problem
    if problem is not None:  # before the run, which may take hours
        say(f"warning: {problem}", NAME)
    if compared is not None:
        return _compare(request, machine, compared, as_json=as_json)
    watch, whole_plan = None, plan(request.layout, machine)
    decoding: tuple[Decoding, ...] = ()
    with contextlib.ExitStack() as stack:
        if len(whole_plan.instances) == 1:
            # Where nothing can be written, only the devices are watched.
            with contextlib.suppress(OSError):
                place = temporary_directory("xlaunch-decoding", tempfile.gettempdir())
                watch = DecodingWatch(stack.enter_context(place))
        with _output(as_json=as_json):
            report = _run(request if watch is None else watch.watched(request), machine)
        for line in render(report, request):
            _say_line(line)
        if watch is not None:
            decoding = watch.results(whole_plan, machine, report.warnings)
    for line in [line for steps in decoding if verbose or steps.is_slow for line in steps.lines()]:
        _say_line(line)
    if as_json:
        seen = [steps.as_dict() for steps in decoding]
        print(json.dumps({**document(report, request), "decoding": seen}, indent=1), flush=True)
    return report.exit_code


def _parse(words: tuple[str, ...]) -> Request:
    """The request of a launch with these words, and the options of variables and files."""
    launches: list[ResolvedOptions] = []

    @launch_command(program_required=True, without=OTHERS)
    def launch(resolved: ResolvedOptions) -> None:
        """Run PROGRAM, and say which devices worked."""
        launches.append(resolved)

    launch.main(args=list(words), prog_name=f"{NAME} --device --", standalone_mode=False)
    if not launches:  # --help
        raise click.exceptions.Exit(0)
    request = request_from(launches[0].values)
    if not request.program.words:
        raise UsageError(f"--device runs a program and there is none: {USAGE}")
    return request


def _run(request: Request, machine: Machine) -> Report:
    from xlaunch.launching import launch

    with _as_one_job():
        report = launch(plan(request.layout, machine), request.program, request.run, live_line=True)
    for warning in report.warnings:
        say(f"warning: {warning}", NAME)
    if report.exit_code:
        say(report.reason, NAME)
    return report


@contextlib.contextmanager
def _as_one_job() -> Iterator[None]:
    """Leave Ctrl-C and Ctrl-Z to the launch, which is a child of this process.

    What a program did until Ctrl-C is reported. When Ctrl-Z has stopped the launch, this process stops
    as well, so that the shell sees a stopped job; its `fg` continues both.
    """

    def stop_along(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG) is not None:
                os.kill(os.getpid(), signal.SIGSTOP)

    handlers = {signal.SIGINT: lambda *_: None, signal.SIGCHLD: stop_along}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _compare(request: Request, machine: Machine, text: str, *, as_json: bool) -> int:
    devices = parse_devices(text)

    def run(device: str, place: int) -> Report:
        say(f"{device}, run {place + 1} of {ROUNDS}", NAME)
        report = _run(request_for(request, device), machine)
        if report.devices is not None:
            say(f"{device}: {report.devices.verdict}", NAME)
        return report

    with _output(as_json=as_json):
        reports, failed = run_all(devices, run)
    if failed is not None:
        say("nothing is compared, because a run failed", NAME)
    comparison = None if failed else compare(reports)
    for line in comparison.lines() if comparison else ():
        _say_line(line)
    if as_json:
        runs = [
            {"device": device, **document(report, request_for(request, device))}
            for device, of_device in reports.items()
            for report in of_device
        ]
        result = None if comparison is None else comparison.as_dict()
        compared = {"schema_version": 1, "comparison": result, "runs": runs}
        print(json.dumps(compared, indent=1), flush=True)
    return failed.exit_code if failed else 0


def _say_line(text: str) -> None:
    """Print a line of the verdict, its indentation kept, on standard error."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{NAME}: {text}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def _output(*, as_json: bool) -> Iterator[None]:
    """With `as_json`, let what is started write to standard error instead of standard output."""
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
