# SPDX-License-Identifier: Apache-2.0
"""The supervisor: starts the instances, does what the state table says, and reports.

One thread, one poll() loop over: the keeper's pipe, a signalfd, the instances' output, and two
destinations. Nothing in the loop blocks.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from xlaunch.environment import Environment
from xlaunch.machine.cpu_list import name_numbers
from xlaunch.machine.processes import children, descendants, has_job_control
from xlaunch.output.relay import Relay
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import MAX, OnFailure
from xlaunch.report import Report
from xlaunch.report.observation import Observer
from xlaunch.supervision.leftovers import LEFTOVER_INTERVAL_S, Leftovers
from xlaunch.supervision.restarts import Restarts
from xlaunch.supervision.running import Running, reports_of
from xlaunch.supervision.sharing import Sharing
from xlaunch.supervision.signalling import kill_all, send
from xlaunch.supervision.start import exec_failure, fork_instance, place_of
from xlaunch.supervision.states import (
    EVENT_OF_SIGNAL,
    SIGNAL_OF_EVENT,
    TABLE,
    Action,
    Event,
    State,
    Target,
    act,
)
from xlaunch.supervision.syscalls import SI_KERNEL, SignalInfo, SignalQueue, become_subreaper
from xlaunch.supervision.terminal import CtrlC, Terminal
from xlaunch.wording import counted

if TYPE_CHECKING:
    from xlaunch.measurement.measuring import Measure, Measuring

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

TIMED_OUT = 124
OWN_FAULT = 125
DRAIN_AFTER_KILL_S = 1.0
"""How long output may take to be written once everything was killed."""


class Supervisor:
    """Runs the instances of one plan. Use once."""

    def __init__(
        self,
        plan: Plan,
        environment: Environment,
        commands: int,
        mask: set[signal.Signals],
        *,
        measure: Measure | None = None,
        quiet: bool = False,
        maybe_busy: Collection[int] = (),
    ) -> None:
        """`measure`: begins the measuring, where something is measured. `quiet`: say no warnings.

        `maybe_busy`: CPUs of the instances that others may use as well.
        """
        self._plan = plan
        self._quiet = quiet
        self._request = plan.request
        self._environment = environment
        self._commands = commands
        self._signal_mask = mask
        self._keeper = os.getppid()
        self._state = State.RUNNING
        self._started = time.monotonic()
        self._signals = SignalQueue({*EVENT_OF_SIGNAL, signal.SIGCHLD})
        self._observer = Observer()
        self._running: dict[int, Running] = {}
        self._ended: list[Running] = []
        self._restarts = Restarts(plan.request.max_restarts)
        self._last_signal = signal.SIGTERM
        self._leftovers = Leftovers(plan.count, plan.request.grace_s)
        self._grace_at: float | None = None
        self._timeout_at: float | None = None
        self._flushing = False
        self._exit_code = 0
        self._reason: str | None = None
        self._warnings = [*plan.warnings, *environment.warnings]
        alone = len(plan.instances) == 1
        self._terminal = Terminal.find(os.getpgid(self._keeper)) if alone else None
        self._ctrl_c = CtrlC(self._terminal, plan.request.grace_s)
        self._poll = select.poll()
        self._relay = Relay(plan, self._poll)
        self._measuring: Measuring | None = measure and measure(self._poll, self.warn)
        if self._measuring is not None:
            self._relay.seen = self._measuring.feed
        self._sharing: Sharing | None = None
        if maybe_busy:
            self._sharing = Sharing(maybe_busy, self._observer, self._known, bound=plan.bound)
        self.ended_by_ctrl_c = False
        """The instance had the terminal, and Ctrl-C there ended it."""

    # The run, in order.

    def run(self) -> Report:
        """Start every instance, wait for the last process, and say how it went."""
        become_subreaper()
        self._poll.register(self._commands, select.POLLIN)
        self._poll.register(self._signals.descriptor, select.POLLIN)
        self._start_all()
        if self._request.timeout_s is not None:
            self._timeout_at = self._started + self._request.timeout_s
        while not self._finished():
            self._wait()
            self._check_clock()
        if self._sharing is not None:
            self._look_for_others(self._sharing, at_end=True)
            self._sharing = None
        self._relay.finish()
        if self._measuring is not None:
            self._measuring.finish()
        if self._terminal is not None:
            self._terminal.take_back()
        self._timeout_at = self._grace_at = None  # they were for the instances
        self.flush()
        return self._make_report()

    def say(self, text: str) -> None:
        """Put a line of the launcher's own on standard error, between whole lines of others."""
        self.say_block(f"xlaunch: {text}")

    def say_block(self, text: str) -> None:
        """Put lines on standard error that nothing else comes between."""
        self._relay.say(text)

    def flush(self) -> None:
        """Write what waits for the destinations, until a signal ends the wait for their readers."""
        self._flushing = True
        patience = time.monotonic() + DRAIN_AFTER_KILL_S
        while self._relay.pending:
            if self._state is State.KILLING and time.monotonic() > patience:
                self._relay.drop_pending()
            else:
                self._wait()
                self._check_clock()
        self._flushing = False

    @property
    def exit_code(self) -> int:
        """That of the first failure, 0 without one."""
        return self._exit_code

    # Starting.

    def _start_all(self) -> None:
        for position in range(len(self._plan.instances)):
            if not self._try_to_start(position):
                return

    def _try_to_start(self, position: int) -> bool:
        try:
            self._start(position)
            return True
        except OSError as error:  # no more processes or descriptors to be had
            index = self._plan.instances[position].index
            self._fail(OWN_FAULT, f"instance {index} could not be started")
            self.say(f"error: instance {index}: {error}")
            return False

    def _start(self, position: int) -> None:
        """Start the instance at `position` of the plan."""
        instance = self._plan.instances[position]
        variables = self._environment.variables[position]
        if self._measuring is not None:
            variables = variables | self._measuring.variables(instance.index)
        opened: list[int] = []
        try:
            first = all(run.instance.index != instance.index for run in self._ended)
            streams = self._relay.open_streams(instance, opened, first=first)
            started = time.monotonic()
            with place_of(self._plan, instance, self.warn):
                pid, exec_result = fork_instance(
                    self._environment.programs[position],
                    variables,
                    streams,
                    before_exec=self._lend_terminal,
                    signal_mask=self._signal_mask,
                )
        finally:
            for descriptor in opened:
                os.close(descriptor)
        self._running[pid] = Running(instance, position, pid, exec_result, started, self._observer)
        if self._measuring is not None:
            self._measuring.started(instance.index, started)

    def _lend_terminal(self, group: int) -> None:
        if self._terminal is not None:
            self._terminal.lend_to(group)

    # Waiting, and what is waited for.

    def _finished(self) -> bool:
        if self._running or self._restarts.waiting:
            return False
        if children(os.getpid()):
            self._end_leftovers()
            return False
        return True

    def _wait(self) -> None:
        for descriptor, events in self._poll.poll(self._poll_timeout_ms()):
            if descriptor == self._commands:
                self._read_commands()
            elif descriptor == self._signals.descriptor:
                for info in self._signals.read():
                    self._handle_signal(info)
            elif self._measuring is not None and self._measuring.owns(descriptor):
                self._measuring.read(descriptor)
            else:
                self._relay.handle(descriptor, events)

    def _poll_timeout_ms(self) -> float:
        deadlines = [self._observer.due] if self._running else []
        set_times = (self._timeout_at, self._grace_at, self._ctrl_c.second_at)
        deadlines += [at for at in set_times if at is not None]
        if self._running and self._measuring is not None:
            deadlines.append(self._measuring.due)
        if self._running and self._sharing is not None:
            deadlines.append(self._sharing.due)
        if (self._state, Event.RESTART_DUE) in TABLE:
            deadlines.append(self._restarts.next_at)
        now = time.monotonic()
        at_end = not self._running and not self._restarts.waiting
        if self._ended and (self._leftovers.waiting or at_end):
            deadlines.append(now + LEFTOVER_INTERVAL_S)
        return max(0.0, 1000 * (min(deadlines, default=now + 1.0) - now))

    def _check_clock(self) -> None:
        now = time.monotonic()
        if self._timeout_at is not None and now >= self._timeout_at:
            self._timeout_at = None
            self._fail(TIMED_OUT, f"timeout after {self._request.timeout_s:g} s", Event.TIMEOUT)
        if self._grace_at is not None and now >= self._grace_at:
            self._grace_at = None
            self._handle(Event.GRACE_OVER)
        if self._ctrl_c.is_second(now):
            self._handle(Event.SECOND_CTRL_C)
        if self._running and now >= self._observer.due:
            self._observer.look()
        if self._sharing is not None and now >= self._sharing.due:
            self._look_for_others(self._sharing)
        if self._leftovers.waiting:
            self._end_leftovers()
        if self._running and self._measuring is not None:
            self._measuring.look()
        if now >= self._restarts.next_at and (self._state, Event.RESTART_DUE) in TABLE:
            self._restart_those_due(now)

    def _look_for_others(self, sharing: Sharing, *, at_end: bool = False) -> None:
        warning = sharing.look(at_end=at_end)
        if warning is not None:
            self.warn(warning)

    def _read_commands(self) -> None:
        numbers = os.read(self._commands, 64)
        if not numbers:
            self._poll.unregister(self._commands)
            self._fail(137, "the launcher was killed", Event.KEEPER_GONE)
        for number in numbers:
            self._handle_outer_signal(signal.Signals(number))

    def _handle_signal(self, info: SignalInfo) -> None:
        number = signal.Signals(info.number)
        if number == signal.SIGCHLD:
            self._reap()
        elif self._terminal is None:
            self._handle_outer_signal(number)
        elif number == signal.SIGINT and info.code == SI_KERNEL:
            self._ctrl_c.press()
        elif number == signal.SIGWINCH and info.code == SI_KERNEL and self._request.pty:
            # The instance may have looked at the size before it was passed on: tell it again.
            self._handle(Event.WINDOW)
        # All else reached us as a member of the instance's group, which has had it as well.

    def _handle_outer_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCONT and self._terminal is not None:
            self._terminal.lend_again()
        before, self._last_signal = self._state, number
        if self._flushing and number in ENDING:
            self._fail(128 + number, f"{number.name} came while output waited for its reader")
            self._relay.drop_pending()
            return
        self._handle(EVENT_OF_SIGNAL[number])
        if self._state is State.ENDING and before is not State.ENDING and self._running:
            again = "; Ctrl-C again: now" if number == signal.SIGINT else ""
            self.say(
                f"{number.name} sent to {counted(len(self._running), 'instance')}; "
                f"SIGKILL in {self._request.grace_s:g} s (--grace){again}"
            )

    # The state table.

    def _handle(self, event: Event, cause: Event | None = None) -> None:
        """Do what the table says. `cause`: what brought `event` about."""
        action = act(self._state, event)
        if event is Event.WINDOW:
            self._relay.resize_terminals()
        self._state = action.next
        if action.start_grace and self._grace_at is None:
            self._grace_at = time.monotonic() + self._request.grace_s
        self._signal(action)
        if action.stop_keeper:
            os.kill(self._keeper, signal.SIGSTOP)
        if self._state in (State.ENDING, State.KILLING):
            self._drop_restarts(cause or event)
            if self._measuring is not None:
                self._measuring.release()  # once they were told
        elif self._restarts.waiting and not self._running and event is not Event.ALL_WAIT:
            self._handle(Event.ALL_WAIT, cause=event)

    def _signal(self, action: Action) -> None:
        if action.target is Target.EVERYTHING:
            kill_all(descendants(os.getpid()))
            return
        # Of a group that we are a member of we have a copy: it is blocked, and known by its sender.
        for pid, running in self._running.items():
            sent = True
            if action.signal is not None and action.target is not Target.NOBODY:
                sent = send(pid, action.signal, group=action.target is Target.GROUPS)
            if action.continue_groups:
                send(pid, signal.SIGCONT, group=True)
            if not sent:
                self.warn(
                    f"instance {running.instance.index} (PID {pid}) runs as another user: it cannot "
                    "be signalled, and its end is waited for"
                )

    # Ends of processes.

    def _reap(self) -> None:
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, options)
            except ChildProcessError:
                return
            if found is None:
                return
            if found.si_code == os.CLD_STOPPED:
                os.waitid(os.P_PID, found.si_pid, os.WSTOPPED | os.WNOHANG)
                self._note_stop(found.si_pid, found.si_status)
            elif found.si_pid in self._running:
                self._reap_instance(found.si_pid)
            else:
                self._leftovers.reap(found.si_pid, self._known())

    def _reap_instance(self, pid: int) -> None:
        running = self._running.pop(pid)
        running.observation.look_at_zombie()
        self._observer.remove(pid)
        _, running.status, usage = os.wait4(pid, 0)
        running.ended = time.monotonic()
        running.note_peak_rss(usage.ru_maxrss * 1024)
        running.add_usage(usage)
        self._ended.append(running)
        if self._measuring is not None:
            self._relay.drain(running.instance.index)
            self._measuring.ended(running.instance.index)
        self._end_leftovers()
        failure = exec_failure(self._environment.program, running.exec_result)
        if failure is not None:
            running.status, running.never_ran = failure.exit_code << 8, True
            index = running.instance.index
            self._fail(failure.exit_code, f"instance {index} could not be started")
            self.say(f"error: instance {index}: {failure}")
            return
        if running.exit_code == 0:
            self._handle(Event.INSTANCE_DONE)
            return
        interrupted = (
            os.WIFSIGNALED(running.status) and os.WTERMSIG(running.status) == signal.SIGINT
        )
        self.ended_by_ctrl_c = interrupted and self._ctrl_c.was_pressed
        if self._let_wait_for_restart(running):
            return
        restarts = self._restarts.count(running.position)
        after = f" after {counted(restarts, 'restart')}" if restarts else ""
        stop = self._request.on_failure is not OnFailure.CONTINUE
        self._fail(
            running.exit_code,
            f"{running.describe_failure()}{after}",
            Event.INSTANCE_FAILED if stop else Event.INSTANCE_DONE,
        )

    # Starting anew.

    def _let_wait_for_restart(self, running: Running) -> bool:
        """Grant an instance that has failed a restart, if it may have one."""
        if (self._state, Event.INSTANCE_RESTARTS) not in TABLE or self._ctrl_c.is_recent:
            return False
        if self._request.on_failure is not OnFailure.RESTART:
            return False
        now = time.monotonic()
        restart = self._restarts.grant(running.position, ran_s=running.wall_s, now=now)
        if restart is None:
            return False
        most = "" if self._restarts.most is MAX else f" of {self._restarts.most}"
        self.say(
            f"{running.describe_failure()}; restart {restart.number}{most} in {restart.delay_s:g} s"
        )
        if self._terminal is not None:
            self._terminal.take_back()  # a Ctrl-C in the meantime is for the launcher
        self._handle(Event.INSTANCE_RESTARTS)
        return True

    def _restart_those_due(self, now: float) -> None:
        for position in self._restarts.due(now):
            if self._leftovers.waiting_of(run for run in self._ended if run.position == position):
                # They may hold what it needs, such as a port.
                self._restarts.postpone(position, now + LEFTOVER_INTERVAL_S)
                continue
            self._restarts.take(position)
            if not self._try_to_start(position):
                return
            self._handle(Event.RESTART_DUE)

    def _drop_restarts(self, cause: Event) -> None:
        dropped = self._restarts.cancel()
        if dropped and self._reason is None:
            index = self._plan.instances[dropped[0]].index
            number = SIGNAL_OF_EVENT.get(cause, self._last_signal)
            self._exit_code = 128 + number
            self._reason = f"{number.name} came while instance {index} waited for its restart"

    def _known(self) -> list[Running]:
        """All runs of all instances: those that run, then those that have ended."""
        return [*self._running.values(), *self._ended]

    def _end_leftovers(self) -> None:
        self._leftovers.end(self._known(), kill=self._state is State.KILLING)

    def _note_stop(self, pid: int, number: int) -> None:
        if pid not in self._running or number == signal.SIGSTOP:
            return
        if self._terminal and number == signal.SIGTSTP and not has_job_control(self._keeper):
            send(pid, signal.SIGCONT, group=True)  # nobody else would
        elif self._terminal is not None or len(self._plan.instances) == 1:
            self._handle(Event.INSTANCE_SUSPENDED)
        elif number in (signal.SIGTTIN, signal.SIGTTOU):
            index = self._running[pid].instance.index
            self.say(
                f"instance {index} is stopped: it uses the terminal, which none of several has"
            )

    def _fail(self, code: int, reason: str, event: Event = Event.INSTANCE_FAILED) -> None:
        if self._reason is None:
            self._exit_code, self._reason = code, reason
        self._handle(event)

    def warn(self, text: str) -> None:
        """Put a warning in the report, and say it, once."""
        if text not in self._warnings:
            self._warnings.append(text)
            if not self._quiet:
                self.say(f"warning: {text}")

    # The end.

    def _make_report(self) -> Report:
        measured = None if self._measuring is None else self._measuring.results()
        reports = reports_of(self._ended, measured.by_instance if measured else {})
        for report in reports:
            outside = set(report.cpus_observed) - set(report.cpus_asked)
            if outside and self._plan.bound:
                self.warn(
                    f"instance {report.index} also ran on {name_numbers('CPU', outside)}: "
                    "the program changed its own affinity"
                )
        report = Report(
            exit_code=self._exit_code,
            reason=self._reason or f"{counted(len(reports), 'instance')} ended well",
            wall_s=time.monotonic() - self._started,
            count=self._plan.count,
            instances=reports,
            warnings=tuple(self._warnings),
            argv=self._environment.program.argv,
        )
        if measured is None:
            return report
        return report._replace(
            metrics=measured.totals, series=measured.series, lines_seen=measured.lines_seen
        )
