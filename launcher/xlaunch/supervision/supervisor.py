# SPDX-License-Identifier: Apache-2.0
"""The supervisor: starts the instances, does what the state table says, and reports.

One thread and one poll() loop over the keeper's pipe, a signalfd, the instances' output and metrics,
and the two destinations of output. Nothing in the loop blocks.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Iterable

from xlaunch.errors import XLaunchError
from xlaunch.machine.processes import has_job_control, proc_is_ours
from xlaunch.output.destinations import log_path
from xlaunch.output.relay import Chunk
from xlaunch.planning.request import OnFailure
from xlaunch.report import Report
from xlaunch.supervision.instance_run import (
    LEFTOVER_INTERVAL_S,
    InstanceRun,
    Leftovers,
    MemoryKills,
)
from xlaunch.supervision.instance_start import exec_failure, fork_instance, place_of
from xlaunch.supervision.run_state import Job, Replacements, RunState
from xlaunch.supervision.signalling import (
    PASSED_ON,
    CtrlC,
    Terminal,
    deliver,
    kill_descendants,
    send,
    signal_name,
)
from xlaunch.supervision.states import (
    EVENT_OF_SIGNAL,
    TABLE,
    Action,
    Event,
    SignalTarget,
    State,
    act,
)
from xlaunch.supervision.syscalls import SI_KERNEL, SignalInfo, SignalQueue, become_subreaper
from xlaunch.supervision.watches import make_late_parts, make_parts
from xlaunch.text import counted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

REPLACED = Event.INSTANCE_REPLACED
TIMED_OUT = 124
LATE_S = 0.2
"""Age of a run at which `make_late_parts` is called: shorter runs do not pay for them."""
MAX_WAIT_S = 60.0
"""Longest wait for an event, where nothing is due."""
DRAIN_AFTER_KILL_S = 1.0
"""Maximum time for writing the remaining output once everything was killed."""


UNSEEN = (
    "/proc does not show the processes of this PID namespace (unshare has --mount-proc): nothing is "
    "sampled, and processes that leave the process group of their instance may survive the run"
)


class Supervisor:
    """Runs the instances of one plan, once."""

    def __init__(self, job: Job, *, commands: int, signal_mask: set[int]) -> None:
        """Prepare the run; `run` starts it.

        commands: descriptor of the keeper's pipe. signal_mask: blocked in instances.
        """
        plan, run = job.plan, job.run
        self._plan = plan
        self._asked = run
        self._environment = job.environment
        self._commands = commands
        self._signal_mask = signal_mask
        self._keeper = os.getppid()
        self._run = RunState(job)
        self._poll, self._relay = self._run.poll, self._run.relay
        self.messages = self._run.messages
        self._signals = SignalQueue({*PASSED_ON, signal.SIGCHLD})
        self._leftovers = Leftovers(plan.count, run.grace_s, self._run.helpers)
        self._last_signal: int = signal.SIGTERM
        self._ending_signal: int = signal.SIGTERM
        self._grace_at = self._timeout_at = math.inf
        self._late_at = self._run.started + LATE_S
        self._flushing = False
        self._is_reaping = False
        """Whether more children may have ended than `_reap` has handled."""
        self._look_s = 0.0
        """How long the last look at leftovers took: reaping gets as much time."""
        self.exit_code = 0
        """The exit code of the first failure."""
        self._reason: str | None = None
        alone = len(plan.instances) == 1
        self._terminal = Terminal(os.getpgid(self._keeper) if alone else None)
        self._ctrl_c = CtrlC(self._terminal, run.grace_s)
        self._memory_kills = MemoryKills()
        self._replacements = Replacements(self._run)
        self._parts = make_parts(job, self._run, self._replacements)
        self.ended_by_ctrl_c = False
        """Whether Ctrl-C ended the instance, which had the terminal."""

    # The run, in order.

    def run(self) -> Report:
        """Start every instance, wait for the last process, and report."""
        become_subreaper()
        if not proc_is_ours():
            self.messages.warn(UNSEEN)
        self._poll.register(self._commands, select.POLLIN)
        self._poll.register(self._signals.descriptor, select.POLLIN)
        for position in range(len(self._plan.instances)):
            if not self._try_to_start(position):
                break
        if self._asked.timeout_s is not None:
            self._timeout_at = self._run.started + self._asked.timeout_s
        while not self._finished():
            self._wait()
            self._check_clock()
        self._feed(self._relay.finish())
        parts, self._parts = self._parts, []
        for part in parts:
            part.finish()
        self._terminal.take_back()
        self._timeout_at = self._grace_at = self._late_at = math.inf  # they were for the instances
        self._relay.hide_live()
        self.flush()
        if self.messages.report_lost_output() and self._reason is None:
            self.exit_code, self._reason = XLaunchError.exit_code, "output was lost"
        report = self._run.report(self.exit_code, self._reason, self._environment.program.argv)
        for part in parts:
            report = part.add_to(report)
        return report

    def flush(self) -> None:
        """Write the pending output, until a signal ends the wait for its readers."""
        self._flushing = True
        give_up_at = time.monotonic() + DRAIN_AFTER_KILL_S
        while self._relay.pending:
            if self._run.state is State.KILLING and time.monotonic() > give_up_at:
                self._relay.drop_pending()
            else:
                self._wait()
                self._check_clock()
        self._flushing = False

    # Starting.

    def _try_to_start(self, position: int) -> bool:
        try:
            self._start(position)
            return True
        except OSError as error:  # no more processes or descriptors
            self._cannot_start(self._plan.instances[position].index, error)
            return False

    def _cannot_start(self, index: int, error: Exception) -> None:
        code = error.exit_code if isinstance(error, XLaunchError) else XLaunchError.exit_code
        self._fail(code, f"instance {index} could not be started")
        self.messages.say(f"error: instance {index}: {error}")

    def _start(self, position: int) -> None:
        """Start the instance at `position` of the plan."""
        instance = self._plan.instances[position]
        variables = self._environment.variables[position]
        for part in self._parts:
            variables = variables | part.variables(instance.index)
        first = all(run.position != position for run in self._run.ended)
        started = time.monotonic()
        with (
            self._relay.open_streams(instance, first=first) as streams,
            place_of(
                self._plan, instance, forbids_huge_pages=self._environment.forbids_huge_pages
            ) as notes,
        ):
            child = fork_instance(
                self._environment.programs[position], variables, streams, self._signal_mask
            )
        self._terminal.lend_to(child.pid)
        os.close(child.go)
        for note in notes:
            self.messages.warn(note)
        samples = self._run.sampler.add(child.pid)
        run = InstanceRun(instance, position, child, started, samples)
        self._run.running[child.pid] = run
        for part in self._parts:
            part.started(run)

    # Waiting.

    def _finished(self) -> bool:
        if self._run.running or self._run.restarts.waiting:
            return False
        if self._leftovers.remain(self._run.ended):
            self._end_leftovers()
            return False
        return True

    def _wait(self) -> None:
        """Wait for the next event or deadline, and handle the events."""
        for descriptor, _ in self._poll.poll(self._poll_timeout_ms()):
            if descriptor == self._commands:
                self._read_commands()
            elif descriptor == self._signals.descriptor:
                for info in self._signals.read():
                    self._handle_signal(info)
            elif owners := [part for part in self._parts if part.owns(descriptor)]:
                owners[0].handle(descriptor)
            else:
                self._feed(self._relay.handle(descriptor))

    def _poll_timeout_ms(self) -> float:
        now = time.monotonic()
        if self._is_reaping:
            return 0.0
        deadlines = [self._timeout_at, self._grace_at, self._ctrl_c.second_at, self._late_at]
        deadlines += [part.due for part in self._parts]
        if self._run.running:
            deadlines.append(self._run.sampler.due)
        if self._expects(Event.RESTART_DUE):
            deadlines.append(self._run.restarts.next_at)
        at_end = not self._run.running and not self._run.restarts.waiting
        if self._run.ended and (self._leftovers.waiting or at_end):
            deadlines.append(now + LEFTOVER_INTERVAL_S)
        return max(0.0, 1000 * (min(*deadlines, now + MAX_WAIT_S) - now))

    def _check_clock(self) -> None:
        """Do everything that is due."""
        now = time.monotonic()
        if now >= self._timeout_at:
            self._timeout_at = math.inf
            self._fail(TIMED_OUT, f"timeout after {self._asked.timeout_s:g} s", Event.TIMEOUT)
        if now >= self._grace_at:
            self._grace_at = math.inf
            self._handle(Event.GRACE_OVER)
        if now >= self._late_at:
            self._late_at = math.inf
            self._parts += make_late_parts(self._run, self._replacements)
        if self._ctrl_c.is_second(now):
            self._handle(Event.SECOND_CTRL_C)
        if self._is_reaping:
            self._reap()
        if self._run.running and now >= self._run.sampler.due:
            self._run.sampler.look()
        for part in self._parts:
            if now >= part.due:
                part.look(now)
        if self._leftovers.waiting:
            self._end_leftovers()
        if now >= self._run.restarts.next_at and self._expects(Event.RESTART_DUE):
            self._restart_those_due(now)

    def _feed(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            for part in self._parts:
                part.feed(chunk)

    # Signals.

    def _read_commands(self) -> None:
        numbers = os.read(self._commands, 64)
        if not numbers:
            self._poll.unregister(self._commands)
            self._fail(128 + signal.SIGKILL, "the launcher was killed", Event.KEEPER_GONE)
        for number in numbers:
            self._handle_outer_signal(number)

    def _handle_signal(self, info: SignalInfo) -> None:
        number = info.number
        if number == signal.SIGCHLD:
            self._reap()
        elif not self._terminal.exists:
            self._handle_outer_signal(number)
        elif number == signal.SIGINT and info.code == SI_KERNEL:
            self._ctrl_c.press()
        elif number == signal.SIGWINCH and info.code == SI_KERNEL and self._asked.pty:
            # The instance may have read the size before it was passed on: signal it again.
            self._handle(Event.WINDOW)
        # Any other signal went to the whole process group of the instance, so the instance has it.

    def _handle_outer_signal(self, number: int) -> None:
        """Handle a signal that was sent to the launcher."""
        if number == signal.SIGCONT:
            self._terminal.lend_again()
        before, self._last_signal = self._run.state, number
        if number in ENDING:
            self._ending_signal = number
        if self._flushing and number in ENDING:
            self._fail(
                128 + number, f"{signal_name(number)} came while output waited for its reader"
            )
            self._relay.drop_pending()
            return
        self._handle(EVENT_OF_SIGNAL.get(number, Event.OTHER_SIGNAL))
        if self._run.state is State.ENDING and before is not State.ENDING and self._run.running:
            again = "; Ctrl-C again: now" if number == signal.SIGINT else ""
            self.messages.say(
                f"{signal_name(number)} sent to {counted(len(self._run.running), 'instance')}; "
                f"SIGKILL in {self._asked.grace_s:g} s (--grace){again}"
            )

    # The state table.

    def _expects(self, event: Event) -> bool:
        return (self._run.state, event) in TABLE

    def _handle(self, event: Event) -> None:
        """Do what the state table says for `event`."""
        action = act(self._run.state, event, self._last_signal)
        if event is Event.WINDOW:
            self._relay.resize_terminals()
        self._run.state = action.next
        if action.start_grace and self._grace_at == math.inf:
            self._grace_at = time.monotonic() + self._asked.grace_s
        self._signal(action)
        if action.stop_keeper:
            os.kill(self._keeper, signal.SIGSTOP)
        if self._run.state in (State.ENDING, State.KILLING):
            self._drop_restarts()
            for part in self._parts:
                part.release()  # after the signal, so that instances act on that first
        elif (
            self._run.restarts.all_delayed and not self._run.running and event is not Event.ALL_WAIT
        ):
            self._handle(Event.ALL_WAIT)

    def _signal(self, action: Action) -> None:
        if action.target is SignalTarget.EVERYTHING:
            self._kill_everything()
            return
        for pid in deliver(action, self._run.running):
            self.messages.warn(
                f"instance {self._run.running[pid].instance.index} (PID {pid}) runs as another user: it "
                "cannot be signalled, and xlaunch waits for its end"
            )

    def _kill_everything(self) -> None:
        os.setpgid(0, 0)  # out of the instance's group, see `Terminal`
        kill_descendants()
        if proc_is_ours():
            return
        self._leftovers.end(self._run.all_runs(), kill=True)
        if self._keeper == 1:  # every other process of the namespace descends from it
            send(-1, signal.SIGKILL)

    def _fail(self, code: int, reason: str, event: Event = Event.INSTANCE_FAILED) -> None:
        """Note the first failure, and handle its event."""
        if self._reason is None:
            self.exit_code, self._reason = code, reason
        self._handle(event)

    # Ends of processes.

    def _reap(self) -> None:
        """Handle children that have ended or stopped, for a limited time: more may end all the time."""
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        until = time.monotonic() + max(LEFTOVER_INTERVAL_S, self._look_s)
        while not self._is_reaping or time.monotonic() < until:
            self._is_reaping = False
            try:
                child = os.waitid(os.P_ALL, 0, options)
            except ChildProcessError:
                return
            if child is None:
                return
            self._is_reaping = True
            if child.si_code == os.CLD_STOPPED:
                os.waitid(os.P_PID, child.si_pid, os.WSTOPPED | os.WNOHANG)
                self._note_stop(child.si_pid, child.si_status)
            elif child.si_pid in self._run.running:
                self._reap_instance(child.si_pid)
            elif child.si_pid in self._run.helpers:
                for part in self._parts:
                    part.reap(child.si_pid)
            else:
                self._leftovers.reap(child.si_pid, self._run.all_runs())

    def _reap_instance(self, pid: int) -> None:
        run = self._run.running.pop(pid)
        run.samples.look_at_zombie()
        self._run.sampler.remove(pid)
        _, status, usage = os.wait4(pid, 0)
        run.end(status, usage, time.monotonic())
        if run.exit_code == 128 + signal.SIGKILL:  # also where a shell says so of its child
            run.killer = self._memory_kills.attribute()
        self._run.ended.append(run)
        if any(part.reads_output for part in self._parts):
            self._feed(self._relay.drain(run.instance.index))
        for part in self._parts:
            part.ended(run)
        self._end_leftovers()
        problem = exec_failure(self._environment.program, run.exec_result)
        if problem is not None:
            run.status, run.never_ran = problem.exit_code << 8, True
            self._cannot_start(run.instance.index, problem)
        elif run.exit_code == 0 and (run.ended_for is None or not self._expects(REPLACED)):
            self._handle(Event.INSTANCE_DONE)
        else:
            interrupted = run.signal == signal.SIGINT
            self.ended_by_ctrl_c = interrupted and self._ctrl_c.was_pressed
            if not self._schedule_restart(run):
                self._fail_with(run)

    def _fail_with(self, run: InstanceRun) -> None:
        """Handle the failure of an instance that is not restarted."""
        shown = self.messages.quiet or self._asked.tee
        if self._reason is None and self._asked.log_dir is not None and not shown:
            self.messages.show_end_of(log_path(self._asked.log_dir, run.instance.index, "err"))
        restarts = self._run.restarts.count(run.position)
        after = f" after {counted(restarts, 'restart')}" if restarts else ""
        go_on = self._asked.failure_rule is OnFailure.CONTINUE
        self._fail(
            run.exit_code or 128 + signal.SIGTERM,  # it ended well, after our SIGTERM
            f"{run.describe_failure()}{after}",
            Event.INSTANCE_DONE if go_on else Event.INSTANCE_FAILED,
        )

    def _note_stop(self, pid: int, number: int) -> None:
        """Handle a stopped instance."""
        if pid not in self._run.running or number == signal.SIGSTOP:
            return
        if self._terminal.exists and number == signal.SIGTSTP and not has_job_control(self._keeper):
            send(pid, signal.SIGCONT, group=True)  # no shell would continue it
        elif self._terminal.exists or len(self._plan.instances) == 1:
            self._handle(Event.INSTANCE_SUSPENDED)
        elif number in (signal.SIGTTIN, signal.SIGTTOU):
            index = self._run.running[pid].instance.index
            self.messages.say(
                f"instance {index} is stopped: it uses the terminal, which several instances cannot"
            )

    def _end_leftovers(self) -> None:
        began = time.monotonic()
        kill = self._run.state is State.KILLING
        self._leftovers.end(self._run.all_runs(), kill=kill)
        if kill:
            self._kill_everything()
        self._look_s = time.monotonic() - began

    # Restarts.

    def _schedule_restart(self, run: InstanceRun) -> bool:
        """Schedule the restart of an instance that has failed or was ended; False when it may have none."""
        if run.is_replaced and self._expects(REPLACED):
            self._run.restarts.replace(run.position, time.monotonic())
            self.messages.say(f"{run.describe_failure()}; it is started again")
            self._terminal.take_back()
            self._handle(REPLACED)
            return True
        if not self._expects(Event.INSTANCE_RESTARTS) or self._ctrl_c.is_recent:
            return False
        if self._asked.failure_rule is not OnFailure.RESTART:
            return False
        restart = self._run.restarts.grant(run.position, ran_s=run.wall_s, now=time.monotonic())
        if restart is None:
            return False
        self.messages.say(f"{run.describe_failure()}; {restart.describe()}")
        self._terminal.take_back()  # a Ctrl-C in the meantime is for the launcher
        self._handle(Event.INSTANCE_RESTARTS)
        return True

    def _restart_those_due(self, now: float) -> None:
        for position in self._run.restarts.due(now):
            if self._leftovers.waiting_of(
                run for run in self._run.ended if run.position == position
            ):
                # They may hold what the instance needs, such as a port.
                self._run.restarts.postpone(position, now + LEFTOVER_INTERVAL_S)
                continue
            self._run.restarts.take(position)
            if not self._try_to_start(position):
                return
            self._handle(Event.RESTART_DUE)

    def _drop_restarts(self) -> None:
        dropped = self._run.restarts.cancel()
        if dropped and self._reason is None:
            index = self._plan.instances[dropped[0]].index
            number = self._ending_signal
            self.exit_code = 128 + number
            self._reason = (
                f"{signal_name(number)} came while instance {index} waited for its restart"
            )
