# SPDX-License-Identifier: Apache-2.0
"""The keeper: the process with the user's PID. It passes signals on and leaves nothing behind.

It forks the supervisor. Signals go to the supervisor through a pipe, one byte each, so that none
merges with another; the end of that pipe tells the supervisor that the keeper is gone. A supervisor
that leaves a request to end unread beyond the grace period is killed. As a child
subreaper the keeper inherits every orphan of the run: when the supervisor has ended, however it
ended, the keeper kills and reaps until it has no child left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Collection

from xlaunch.claims import own_lease, record
from xlaunch.console import say, terminal_width
from xlaunch.errors import XLaunchError
from xlaunch.files import is_special_file, remove_dead, remove_temporary, temporary_places
from xlaunch.leases import Lease
from xlaunch.machine.processes import children, has_job_control, proc_is_ours
from xlaunch.report import Report
from xlaunch.supervision.run_state import Job
from xlaunch.supervision.signalling import PASSED_ON, kill_descendants, signal_name
from xlaunch.supervision.supervisor import ENDING, Supervisor
from xlaunch.supervision.syscalls import SI_KERNEL, become_subreaper
from xlaunch.supervision.watches import anything_runs

STDERR = 2
RESCAN_INTERVAL_S = 0.1
"""Polling interval while descendants are being killed."""
MAX_READ_S = 2.0
"""Time in which the supervisor has to read a request to end, beyond the grace period."""
MAX_WAIT_S = 1e6
"""The longest wait for a signal that every kernel takes."""


def keep(job: Job, *, caller: int | None = None) -> int:
    """Run `job` in a supervisor process, guard it, and return the exit code for this process.

    A Ctrl-C that ended the run ends this process by SIGINT as well, so that a shell script stops.
    `caller`: PID of a process that forwards its own SIGINTs. A Ctrl-C usually reaches both processes;
    the caller's copy of it is ignored. What the caller sends ends the run even where the run ignores
    the signal, as in the background of a shell script.
    """
    if job.lease is None:
        job = job._replace(lease=_lease_of(job))
    remove_dead(*temporary_places(os.environ))
    job = job._replace(others_run=proc_is_ours() and anything_runs())
    if job.run.metric:
        from xlaunch.supervision.metrics_watch import choose_directory

        job = job._replace(fifo_directory=choose_directory())
    ignored = {number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN}
    passed_on = PASSED_ON - ignored
    if caller is not None:
        passed_on |= {signal.SIGINT, signal.SIGTERM}  # while it is blocked, no signal is ignored
    # SIGTTIN, SIGTTOU: the supervisor joins a group that the terminal may stop, and sets the
    # foreground group from the background.
    blocked = passed_on | {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}
    # Children of a shell that has become this process (`exec xlaunch`).
    preexisting = set(children(os.getpid()))
    become_subreaper()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    # An ignored SIGCHLD would make the kernel reap, and exit codes would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    commands_in, commands_out = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(commands_out)
        _supervise_and_exit(job, commands_in, mask)
    os.close(commands_in)
    numbers: set[int] = {*passed_on, signal.SIGCHLD}
    status, interrupted = _pass_signals_on(
        supervisor, commands_out, numbers, ignored, caller, max_read_s=job.run.grace_s + MAX_READ_S
    )
    _end_all_descendants(preexisting)
    if job.fifo_directory is not None:  # the supervisor was killed before it could
        remove_temporary(job.fifo_directory)
    return _exit_code(status, interrupted=interrupted)


def _lease_of(job: Job) -> Lease | None:
    """Write the record of a launch that the library started; the command line writes its own."""
    argv = job.environment.program.argv
    name = next((word for word in argv[1:] if word.endswith(".py")), argv[0])
    lease = own_lease(
        job.plan.used_cpus if job.plan.bound else (),
        os.path.basename(name),
        instances=len(job.plan.instances),
        log_dir=job.run.log_dir or "",
    )
    if lease is not None:
        with contextlib.suppress(OSError):
            return record(lease)
    return None


def _supervise_and_exit(job: Job, commands: int, mask: set[int]) -> None:
    code = XLaunchError.exit_code
    try:
        # Leave the shell's group, so that a signal from the terminal arrives once, by the keeper.
        os.setpgid(0, 0)
        # The keeper has had the signals that this group received before.
        while signal.sigtimedwait(PASSED_ON, 0) is not None:
            pass
        code = supervise(job, commands, mask)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - a forked child: nothing may unwind into its parent's code
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)


def _pass_signals_on(
    supervisor: int,
    commands: int,
    numbers: set[int],
    ignored: Collection[int],
    caller: int | None,
    *,
    max_read_s: float,
) -> tuple[int, bool]:
    """Wait for the supervisor. Return its wait status, and whether the terminal sent SIGINT.

    Of the signals in `ignored`, only the caller's are passed on. `max_read_s`: time in which the
    supervisor has to read a request to end; then it is killed.
    """
    interrupted = False
    not_by_caller = 0
    deadline = float("inf")
    while True:
        wait_s = min(max(0.0, deadline - time.monotonic()), MAX_WAIT_S)
        info = signal.sigtimedwait(numbers, wait_s)
        if info is None:
            if time.monotonic() >= deadline:
                deadline = float("inf")
                if _holds_unread(commands):
                    os.kill(supervisor, signal.SIGKILL)
                    say("the supervisor does not respond; it is killed")
            continue
        if info.si_signo in ignored and info.si_pid != caller:
            continue
        if info.si_signo == signal.SIGINT and caller is not None:
            if info.si_code != SI_KERNEL and info.si_pid == caller:
                if not_by_caller:
                    not_by_caller -= 1  # the caller had the same one, and forwards it
                    continue
            else:
                not_by_caller += 1
        from_terminal = info.si_code == SI_KERNEL
        if info.si_signo == signal.SIGTSTP and from_terminal and not has_job_control(os.getpid()):
            continue
        if info.si_signo != signal.SIGCHLD:
            interrupted |= info.si_signo == signal.SIGINT and from_terminal
            if not _holds_unread(commands):
                deadline = float("inf")
            if info.si_signo in ENDING and deadline == float("inf"):
                deadline = time.monotonic() + max_read_s
            try:
                os.write(commands, bytes([info.si_signo]))
            except BrokenPipeError:  # the supervisor has just ended
                continue
        status = _reap(supervisor)
        if status is not None:
            return status, interrupted


def _holds_unread(pipe: int) -> bool:
    """Whether a pipe holds bytes that its reader has not read."""
    return any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))


def _reap(supervisor: int) -> int | None:
    """Reap every child that has ended. Return the supervisor's wait status if it is among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid in (0, supervisor):
            return status if pid else None


def _end_all_descendants(preexisting: set[int]) -> None:
    """Kill and reap until no child is left but those in `preexisting`.

    Orphans become children of this process, so that is the end. One that has changed its user may
    refuse to die: look again whenever a child has ended.
    """
    while ours := [pid for pid in children(os.getpid()) if pid not in preexisting]:
        kill_descendants(preexisting)
        signal.sigtimedwait({signal.SIGCHLD}, RESCAN_INTERVAL_S)
        for pid in ours:
            os.waitpid(pid, os.WNOHANG)


def _exit_code(status: int, *, interrupted: bool) -> int:
    """Return the exit code for this process, unless it has to die of SIGINT.

    A supervisor that died of SIGINT says so that the terminal's Ctrl-C ended the instance.
    """
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGINT:
        # The instance had the terminal, so no other process of the job has had the SIGINT.
        _die_of_interrupt(whole_group=True)
        return 128 + signal.SIGINT  # PID 1 of a container does not die of it
    if code < 0:
        say(f"the supervisor was ended by {signal_name(-code)}; every instance was killed")
        return XLaunchError.exit_code
    if interrupted and code == 128 + signal.SIGINT:
        _die_of_interrupt(whole_group=False)
    return code


def _die_of_interrupt(*, whole_group: bool) -> None:
    """End as Ctrl-C ends a process without a handler; with `whole_group`, its whole job."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if whole_group:
        os.killpg(0, signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGINT)


def supervise(job: Job, commands: int, signal_mask: set[int]) -> int:
    """Run the instances, and report; return the exit code of the first failure, or 0.

    For the arguments see `Supervisor`.
    """
    supervisor = Supervisor(job, commands=commands, signal_mask=signal_mask)
    report = supervisor.run()
    if job.table:
        from xlaunch.report.run_table import render_report  # not before the instances run

        width = terminal_width(STDERR)
        supervisor.messages.say_block(render_report(report, explain=job.explain, width=width))
    supervisor.flush()
    if (descriptor := job.report_descriptor) is not None:
        import pickle

        # A caller that was killed reads no report.
        with contextlib.suppress(BrokenPipeError), open(descriptor, "wb", closefd=False) as stream:
            stream.write(pickle.dumps(report))
    code = _write_report(report, job, commands)
    if supervisor.ended_by_ctrl_c:
        _die_of_interrupt(whole_group=False)  # the keeper recognizes this, and does the same
    return code or supervisor.exit_code


def _write_report(report: Report, job: Job, commands: int) -> int:
    """Write the report, if one was asked for; return the exit code of the run.

    A pipe without a reader would block this process for ever: a signal ends the wait.
    """
    from xlaunch.report.json_file import files_of_run, write_report_or_complain

    path, run = job.run.report, job.run
    if path is None or not is_special_file(path):
        indices = [instance.index for instance in job.plan.instances]
        inputs = files_of_run(job.environment.programs, indices, run.log_dir)
        return write_report_or_complain(report, path, force=run.force, inputs=inputs)
    import threading

    codes: list[int] = []
    writer = threading.Thread(
        target=lambda: codes.append(write_report_or_complain(report, path)), daemon=True
    )
    writer.start()
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(commands, select.POLLIN)
    while not codes and writer.is_alive():
        writer.join(0.05)
        if poll.poll(0):
            numbers = os.read(commands, 1)
            if not numbers:
                return report.exit_code  # the keeper is gone: nobody reads the code
            if numbers[0] in ENDING:
                return report.exit_code or 128 + numbers[0]
    return codes[0]
