# SPDX-License-Identifier: Apache-2.0
"""The keeper: the process with the user's PID. It passes signals on and leaves nothing behind.

It forks the supervisor and from then on does two things. Signals go to the supervisor through a
pipe, one byte each, so that none merges with another; the end of that pipe tells the supervisor
that the keeper is gone. As the child subreaper it inherits every orphan of the run: when the
supervisor has ended, however it ended, the keeper kills and reaps until it has no child left.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from xlaunch.machine.processes import children, descendants, has_job_control
from xlaunch.supervision.signalling import kill_all
from xlaunch.supervision.syscalls import SI_KERNEL, become_subreaper

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
    signal.SIGCONT,
)

OWN_FAULT = 125

RESCAN_INTERVAL_S = 0.1
"""Polling interval while descendants are being killed."""


def keep(supervise: Callable[[int, set[signal.Signals]], int], *, caller: int | None = None) -> int:
    """Run `supervise` in a child, guard it, and return the exit code for this process.

    `supervise` gets the descriptor that signals come from and the signal mask for instances, and
    returns an exit code. A Ctrl-C that ended the run ends this process by SIGINT as well: that is
    how a shell knows that a script should not go on. `caller`: the PID of a process that passes on
    its own SIGINT; where this process has had the same one, from the terminal as a rule, that is
    no second one.
    """
    passed_on = {number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN}
    # SIGTTIN, SIGTTOU: the supervisor is a member of a group that the terminal may stop, and moves
    # the foreground from the background.
    blocked = passed_on | {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}
    # A shell that started something and then became this process (`exec xlaunch`) has left it here.
    strangers = set(children(os.getpid()))
    become_subreaper()
    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    # An ignored SIGCHLD would make the kernel reap, and exit codes vanish.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    commands_in, commands_out = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(commands_out)
        _run_and_exit(supervise, commands_in, {signal.Signals(n) for n in original_mask})
    os.close(commands_in)
    status, interrupted = _pass_signals_on(
        supervisor, commands_out, passed_on | {signal.SIGCHLD}, caller
    )
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _end_all_descendants(strangers)
        if number == signal.SIGINT:  # its word for: the terminal's Ctrl-C ended the instance
            _die_of_interrupt(whole_group=True)
            return 128 + number  # as PID 1 of a container it did not die
        name = signal.Signals(number).name
        print(
            f"xlaunch: the supervisor was ended by {name}; every instance was killed",
            file=sys.stderr,
        )
        return OWN_FAULT
    _end_all_descendants(strangers)
    code = os.waitstatus_to_exitcode(status)
    if interrupted and code == 128 + signal.SIGINT:
        _die_of_interrupt(whole_group=False)
    return code


def _run_and_exit(
    supervise: Callable[[int, set[signal.Signals]], int],
    commands: int,
    original_mask: set[signal.Signals],
) -> None:
    code = OWN_FAULT
    try:
        # Out of the shell's group, so that what the terminal sends arrives once, by the keeper.
        os.setpgid(0, 0)
        # What the group got before that, the keeper has got as well.
        while signal.sigtimedwait(PASSED_ON, 0) is not None:
            pass
        code = supervise(commands, original_mask)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - a forked child: nothing may unwind into its parent's code
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)


def _pass_signals_on(
    supervisor: int, commands: int, numbers: set[signal.Signals], caller: int | None
) -> tuple[int, bool]:
    """Wait for the supervisor; its wait status, and whether the terminal sent SIGINT meanwhile."""
    interrupted = False
    not_by_caller = 0
    while True:
        info = signal.sigwaitinfo(numbers)
        if info.si_signo == signal.SIGINT and caller is not None:
            if info.si_code != SI_KERNEL and info.si_pid == caller:
                if not_by_caller:
                    not_by_caller -= 1  # the caller had it as well, and passes it on
                    continue
            else:
                not_by_caller += 1
        from_terminal = info.si_code == SI_KERNEL
        if info.si_signo == signal.SIGTSTP and from_terminal and not has_job_control(os.getpid()):
            continue
        if info.si_signo != signal.SIGCHLD:
            interrupted |= info.si_signo == signal.SIGINT and from_terminal
            try:
                os.write(commands, bytes([info.si_signo]))
            except BrokenPipeError:  # it has just ended
                continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == supervisor:
                return status, interrupted
            if pid == 0:
                break


def _end_all_descendants(strangers: set[int]) -> None:
    """Kill and reap until there is nobody left but `strangers` and what descends from them.

    Orphans become our children, so that is the end. A scan may miss a process that is being orphaned,
    and one that has changed its user may refuse to die: look again whenever any child has ended.
    """
    while ours := [pid for pid in children(os.getpid()) if pid not in strangers]:
        kill_all([process for child in ours for process in (child, *descendants(child))])
        signal.sigtimedwait({signal.SIGCHLD}, RESCAN_INTERVAL_S)
        for pid in ours:
            os.waitpid(pid, os.WNOHANG)


def _die_of_interrupt(*, whole_group: bool) -> None:
    """End as Ctrl-C would have ended this process, and the rest of its job with it.

    `whole_group`: the instance owned the terminal, so nobody else of the job has had the SIGINT.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if whole_group:
        os.killpg(0, signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGINT)
