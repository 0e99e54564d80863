# SPDX-License-Identifier: Apache-2.0
"""The library's entry points: `launch` and `start`; and `run_plan`, for the command line.

`launch` runs a plan and returns its report. `start` does not wait: what instances measure is seen
while they run, and they can be ended. `run_plan` makes this very process run the plan: the one
instance takes its place when nothing needs a supervisor, otherwise it becomes the keeper.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from xlaunch.environment import Environment, Program, prepare_environment
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.machine import machine_of, read_machine
from xlaunch.planning.planner import plan
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import (
    HostRequest,
    ProgramRequest,
    Request,
    RunRequest,
    check_limit,
    checked,
)
from xlaunch.shared_host import PreparedLaunch, plan_beside_others
from xlaunch.text import counted

if TYPE_CHECKING:
    from xlaunch.report import Report
    from xlaunch.supervision.keeper_client import RunningLaunch

__all__ = ["check_startable", "launch", "run_plan", "start"]


class Purpose(enum.Enum):
    """What a prepared launch is for."""

    LAUNCH = "launch"
    """To be run: its cores are recorded for other launches, and its directories are made."""
    PLAN = "plan"
    """To be shown: what a launch would do now, and nothing is left behind."""
    ENVIRONMENT = "environment"
    """For something else that starts the program, at any time: other launches do not count."""


def prepare(
    request: Request,
    host: HostRequest = HostRequest(),
    *,
    purpose: Purpose,
    note: Callable[[str], None] = lambda _: None,
    untried: str | None = None,
) -> PreparedLaunch:
    """Plan `request`, and choose its environment.

    A launch on this machine is planned beside the others; `note` is called before it waits for them.
    `untried`: see `prepare_environment`. Raises `UsageError` and `XLaunchError`.
    """
    is_launch = purpose is Purpose.LAUNCH
    if host.is_this_machine and purpose is not Purpose.ENVIRONMENT:
        prepared = plan_beside_others(
            request, read_machine(), os.environ, host=host, note=note, record=is_launch
        )
    else:
        with machine_of(host.sysroot, host.synthetic) as machine:
            whole_plan = plan(request.layout, machine)
            prepared = PreparedLaunch(request, machine, whole_plan, None, os.environ)
    if request.program.words or is_launch:  # which needs a program
        environment = prepare_environment(
            prepared.plan,
            prepared.request.program,
            prepared.inherited,
            run=prepared.request.run,
            make_directories=is_launch,
            untried=untried,
            started=purpose is not Purpose.ENVIRONMENT,
        )
        prepared = prepared._replace(environment=environment)
    return prepared


def launch(
    plan: Plan,
    program: ProgramRequest,
    run: RunRequest = RunRequest(),
    *,
    environment: Mapping[str, str] | None = None,
    table: bool = False,
    live_line: bool = False,
) -> Report:
    """Run `program` in every instance of `plan`, supervised, and wait for the last process.

    `run`: how, and where output, metrics and the report go. `environment`: what the instances inherit;
    None: `os.environ`. `table`: print the report to standard error as the command line does. `live_line`:
    with `RunRequest.verify_device`, show on a terminal what the devices do while the program runs. A
    failed instance is not an error here: see `Report.exit_code`. Raises `XLaunchError` when the run
    could not be started or was killed, and where the system is not Linux.
    """
    _require_linux("xlaunch.launch")
    from xlaunch.supervision.keeper_client import KeeperProcess
    from xlaunch.supervision.run_state import Job

    run = checked(run, RunRequest)
    prepared = _environment_of(plan, program, run, environment)
    with _enough_descriptors(plan, run):
        keeper = KeeperProcess(Job(plan, prepared, run, table, live_line=live_line))
    try:
        return keeper.report()
    except KeyboardInterrupt:
        keeper.interrupt()
        raise
    finally:
        keeper.close()


def start(
    plan: Plan,
    program: ProgramRequest | Environment,
    run: RunRequest = RunRequest(),
    *,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    mark: str | None = None,
) -> RunningLaunch:
    """Begin to run `program` in every instance of `plan`, supervised, off the caller's terminal.

    Standard input is empty, and Ctrl-C reaches the caller alone. It ends with the thread that called
    this, at the latest.

    program
        What to run; or an `Environment`, with which the instances start as it is.
    environment
        What the instances inherit; None: `os.environ`.
    stdout, stderr
        Where their output goes, as `subprocess.Popen` takes it, but for PIPE; None: where the
        caller's goes.
    mark
        Have `LiveLine`s of output that holds this text. Output is read along only where
        `RunRequest.metric` asks for something.

    Raises `XLaunchError` when nothing could be started, and where the system is not Linux.
    """
    _require_linux("xlaunch.start")
    from xlaunch.supervision.keeper_client import RunningLaunch
    from xlaunch.supervision.run_state import Job

    run = checked(run, RunRequest)
    prepared = _environment_of(plan, program, run, environment)
    job = Job(plan, prepared, run, table=False)
    with _enough_descriptors(plan, run):
        return RunningLaunch(job, stdout=stdout, stderr=stderr, mark=mark)


def run_plan(
    prepared: PreparedLaunch, *, note: Callable[[str], None], table: bool, explain: bool
) -> int:
    """Run the instances of a plan; return the exit code for this process.

    Does not return when the one instance replaces this process. `note` takes lines for the user.
    `table` prints the report on standard error at the end, `explain` what its columns mean.
    """
    plan, environment, run = prepared.plan, prepared.environment, prepared.request.run
    assert environment is not None
    if sys.platform != "linux":
        return _run_on_other_system(environment, note)
    if run.pty and _has_terminal(plan, run):
        run = run._replace(pty=False)
    if environment.caches.base is not None:
        from xlaunch.cache.use import start_pruner

        start_pruner(environment.caches.base)
        for line in environment.caches.hold():
            note(line)
    if not plan.supervised(run):
        from xlaunch.claims import keep_locks_through_exec
        from xlaunch.files import remove_dead, temporary_places
        from xlaunch.supervision.instance_start import execute, take_place

        remove_dead(*temporary_places(os.environ))
        keep_locks_through_exec()
        for text in take_place(plan, forbids_huge_pages=environment.forbids_huge_pages):
            note(text)
        execute(environment.programs[0], environment.variables[0])
    from xlaunch.supervision.keeper import keep
    from xlaunch.supervision.run_state import Job

    job = Job(plan, environment, run, table, explain=explain, live_line=table, lease=prepared.lease)
    with _enough_descriptors(plan, run):
        return keep(job)


def check_startable(plan: Plan, run: RunRequest, programs: Iterable[Program]) -> None:
    """Raise `UsageError`, before anything starts, when `plan` cannot run `programs` or write its files here.

    The directory for logs is made, and only when nothing else is wrong. A report may lie in it.
    """
    if sys.platform != "linux" and len(plan.instances) != 1:
        raise UsageError(f"several instances need Linux, this is {sys.platform}: use --instances 1")
    with _enough_descriptors(plan, run):
        pass
    check_limit(run.max_restarts)
    if run.health is not None:
        from xlaunch.supervision.health import targets_of

        targets_of(plan, run.health)
    if run.exports_metrics:
        from xlaunch.supervision.exporter_process import check_exporter

        check_exporter(run)
    indices = [instance.index for instance in plan.instances]
    if run.report is not None:
        from xlaunch.report.json_file import check_report_path, files_of_run

        inputs = files_of_run(programs, indices, run.log_dir)
        check_report_path(run.report, log_directory=run.log_dir, force=run.force, inputs=inputs)
    if run.log_dir is not None:
        from xlaunch.output.destinations import prepare_log_directory

        prepare_log_directory(run.log_dir, indices)


@contextlib.contextmanager
def _enough_descriptors(plan: Plan, run: RunRequest) -> Iterator[None]:
    """During the block, raise the soft limit of open files to what supervising `plan` needs.

    Raises `UsageError` where the hard limit (RLIMIT_NOFILE) forbids it.
    """
    if sys.platform != "linux" or not plan.supervised(run):
        yield
        return
    import resource

    count = len(plan.instances)
    # A supervisor has two pipes and a process descriptor for each instance, or somewhat more.
    each = 5 if run.relays_logs else 3  # two log files besides
    each += run.health is not None
    fewest, needed = each * count + 16, (each + 2) * count + 32
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        if hard < fewest:
            raise UsageError(
                f"{counted(count, 'instance')}: {needed} open files are needed, and the hard limit is {hard}; raise it "
                "(see ulimit -Hn, or LimitNOFILE= of systemd), or start fewer instances"
            )
        needed = min(needed, hard)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _environment_of(
    plan: Plan,
    program: ProgramRequest | Environment,
    run: RunRequest,
    environment: Mapping[str, str] | None,
) -> Environment:
    if not isinstance(program, Environment):
        inherited = os.environ if environment is None else environment
        program = checked(program, ProgramRequest)
        program = prepare_environment(plan, program, inherited, run=run, make_directories=True)
    check_startable(plan, run, program.programs)
    return program


def _run_on_other_system(environment: Environment, note: Callable[[str], None]) -> int:
    """Run the single program with its variables, without supervision; return its exit code."""
    note(
        f"on {sys.platform} only thread counts and variables are set: instances are not bound to CPUs "
        "or NUMA nodes, nor supervised (no --timeout, --report, --log-dir, --metric, --verify-device, --tag, "
        "--pty)"
    )
    program, variables = environment.programs[0], environment.variables[0]
    from xlaunch.supervision.instance_start import exec_error, execute

    if sys.platform != "win32":
        execute(program, variables)
    import signal
    import subprocess

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the program as well: it decides
    try:
        return subprocess.call(program.argv, executable=program.executable, env=variables)
    except OSError as error:
        raise exec_error(program, error.errno or 0) from None


def _require_linux(what: str) -> None:
    if sys.platform != "linux":
        raise XLaunchError(
            f"{what} needs Linux, this is {sys.platform}; the command xlaunch does not"
        )


def _has_terminal(plan: Plan, run: RunRequest) -> bool:
    """Whether the plan's only instance writes to the real terminal itself, untouched by us."""
    reads_along = run.metric or run.verify_device
    alone = len(plan.instances) == 1 and not plan.tagged(run) and not reads_along
    return alone and os.isatty(1) and os.isatty(2)
