# SPDX-License-Identifier: Apache-2.0
"""The supervisor: starts the instances, does what the state table says, and reports.

One thread, one poll() loop over: the keeper's pipe, a signalfd, the instances' output, and two
destinations. Nothing in the loop blocks.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from resource import RUSAGE_SELF, getrusage, struct_rusage
from typing import NamedTuple

from xlaunch.environment import Environment
from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.planning.plan import Instance, Plan
from xlaunch.planning.request import OnFailure
from xlaunch.run.logs import open_logs
from xlaunch.run.observe import Observer
from xlaunch.run.output import READ_SIZE, LineTagger, Sink, same_file
from xlaunch.run.processes import children, descendants, environment_value, process_group
from xlaunch.run.report import InstanceReport, Report, signal_name
from xlaunch.run.start import Streams, exec_failure, fork_instance, place_of
from xlaunch.run.states import Action, Event, State, Target, act
from xlaunch.run.syscalls import SI_KERNEL, SignalInfo, SignalQueue, become_subreaper
from xlaunch.run.terminal import Terminal

TIMED_OUT = 124
OWN_FAULT = 125
LEFTOVER_INTERVAL_S = 0.05
PROMPT_S = 0.1
"""A prompt leaves its input line on Ctrl-C and is back on the next within this time."""
DRAIN_AFTER_KILL_S = 1.0
"""How long output may take to be written once everything was killed."""

EVENT_OF_SIGNAL = {
    signal.SIGINT: Event.INTERRUPT,
    signal.SIGTERM: Event.TERMINATE,
    signal.SIGHUP: Event.HANGUP,
    signal.SIGQUIT: Event.QUIT,
    signal.SIGUSR1: Event.USER_1,
    signal.SIGUSR2: Event.USER_2,
    signal.SIGWINCH: Event.WINDOW,
    signal.SIGTSTP: Event.SUSPEND,
    signal.SIGCONT: Event.RESUME,
}


class _Running:
    """An instance from its start on."""

    def __init__(
        self, instance: Instance, pid: int, exec_result: int, started: float, observer: Observer
    ) -> None:
        self.instance = instance
        self.pid = pid
        self.exec_result = exec_result
        self.started = started
        self.observation = observer.add(pid)
        self.ended: float | None = None
        self.status = 0
        self.cpu_s = 0.0
        self.context_switches = 0
        self.peak_rss_bytes = 0
        self.leftovers: set[int] = set()

    @property
    def exit_code(self) -> int:
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    def add_usage(self, usage: struct_rusage) -> None:
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.context_switches += usage.ru_nvcsw + usage.ru_nivcsw

    def note_peak_rss(self, own_bytes: int) -> None:
        """Take the sampled peak, or its process's own (`ru_maxrss`) where that is larger.

        The kernel counts the moment between fork and exec too, when the process was a copy of
        this one: a value no larger than that says nothing, and counts only if nothing was sampled.
        """
        sampled = self.observation.peak_rss_bytes
        copy_bytes = getrusage(RUSAGE_SELF).ru_maxrss * 1024
        self.peak_rss_bytes = max(sampled, own_bytes) if own_bytes > copy_bytes else sampled
        self.peak_rss_bytes = self.peak_rss_bytes or own_bytes

    def report(self) -> InstanceReport:
        assert self.ended is not None
        wall = self.ended - self.started
        ncpus = len(self.instance.cpus)
        return InstanceReport(
            index=self.instance.index,
            pid=self.pid,
            cpus_asked=self.instance.cpus,
            cpus_observed=tuple(sorted(self.observation.cpus)),
            numa_nodes=self.instance.nodes,
            exit_code=self.exit_code,
            signal=signal_name(os.WTERMSIG(self.status)) if os.WIFSIGNALED(self.status) else None,
            wall_s=wall,
            cpu_s=self.cpu_s,
            utilisation=self.cpu_s / (wall * ncpus) if wall > 0 else 0.0,
            peak_rss_bytes=self.peak_rss_bytes,
            context_switches=self.context_switches,
            migrations=self.observation.migrations,
            leftover_processes=len(self.leftovers),
        )


class _Source(NamedTuple):
    """One output stream of one instance, on its way to a sink."""

    tagger: LineTagger
    sink: Sink


class Supervisor:
    """Runs the instances of one plan. Use once."""

    def __init__(
        self, plan: Plan, environment: Environment, commands: int, mask: set[signal.Signals]
    ) -> None:
        self._plan = plan
        self._request = plan.request
        self._environment = environment
        self._commands = commands
        self._signal_mask = mask
        self._keeper = os.getppid()
        self._state = State.RUNNING
        self._started = time.monotonic()
        self._signals = SignalQueue({*EVENT_OF_SIGNAL, signal.SIGCHLD})
        self._observer = Observer()
        self._running: dict[int, _Running] = {}
        self._ended: list[_Running] = []
        self._leftover_deadlines: dict[int, float] = {}
        self._grace_at: float | None = None
        self._timeout_at: float | None = None
        self._killed_at: float | None = None
        self._first_ctrl_c: float | None = None
        self._second_ctrl_c_at: float | None = None
        """When a second Ctrl-C is one, unless the program shows a prompt by then."""
        self._exit_code = 0
        self._reason: str | None = None
        self._warnings = [*plan.warnings, *environment.warnings]
        self._terminal = self._find_terminal()
        self._poll = select.poll()
        self._stdout, self._stderr = self._open_sinks()
        self._sources: dict[int, _Source] = {}
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
        self._close_sources()
        if self._terminal is not None:
            self._terminal.take_back()
        return self._make_report()

    def say(self, text: str) -> None:
        """Put a line of the launcher's own on standard error, between whole lines of others."""
        self.say_block(f"xlaunch: {text}")

    def say_block(self, text: str) -> None:
        """Put lines on standard error that nothing else comes between."""
        self._put(self._stderr, f"{text}\n".encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Write what waits for the destinations, as long as somebody reads."""
        for sink in {self._stdout, self._stderr}:
            while sink.pending and not sink.broken:
                if self._output_is_given_up():
                    return
                if select.select([], [sink.descriptor], [], 0.1)[1]:
                    sink.write_some()

    # Starting.

    def _find_terminal(self) -> Terminal | None:
        if len(self._plan.instances) != 1:
            return None
        return Terminal.find(os.getpgid(self._keeper))

    def _open_sinks(self) -> tuple[Sink, Sink]:
        stdout = Sink(1)
        return stdout, stdout if same_file(1, 2) else Sink(2)

    def _start_all(self) -> None:
        for position, instance in enumerate(self._plan.instances):
            try:
                self._start(position)
            except OSError as error:  # no more processes or descriptors to be had
                self._fail(OWN_FAULT, f"instance {instance.index} could not be started")
                self.say(f"error: instance {instance.index}: {error}")
                return

    def _start(self, position: int) -> None:
        """Start the instance at `position` of the plan."""
        instance = self._plan.instances[position]
        opened: list[int] = []
        try:
            streams = self._open_streams(instance, opened)
            started = time.monotonic()
            with place_of(self._plan, instance, self._warn):
                pid, exec_result = fork_instance(
                    self._environment.programs[position],
                    self._environment.variables[position],
                    streams,
                    before_exec=self._lend_terminal,
                    signal_mask=self._signal_mask,
                )
        finally:
            for descriptor in opened:
                os.close(descriptor)
        self._running[pid] = _Running(instance, pid, exec_result, started, self._observer)

    def _lend_terminal(self, group: int) -> None:
        if self._terminal is not None:
            self._terminal.lend_to(group)

    def _open_streams(self, instance: Instance, opened: list[int]) -> Streams:
        """The instance's three streams; those that only it needs are noted in `opened`."""
        if len(self._plan.instances) == 1:
            stdin = 0
        else:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            opened.append(stdin)
        if self._request.log_dir is not None:
            outputs = open_logs(self._request.log_dir, instance.index)
            opened.extend(outputs)
            return Streams(stdin, *outputs)
        if not self._plan.relayed:
            return Streams(stdin, 1, 2)
        tag = str(instance.index) if self._plan.tagged else ""
        ends = []
        for sink in (self._stdout, self._stderr):
            reader, writer = os.pipe()
            opened.append(writer)
            ends.append(writer)
            os.set_blocking(reader, False)
            self._sources[reader] = _Source(LineTagger(tag, terminal=sink.terminal), sink)
            self._poll.register(reader, select.POLLIN)
        return Streams(stdin, *ends)

    # Waiting, and what is waited for.

    def _finished(self) -> bool:
        if self._running:
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
            elif descriptor in self._sources:
                self._read_source(descriptor)
            elif events & select.POLLNVAL:
                self._poll.unregister(descriptor)
            else:
                self._write_sink(descriptor)

    def _poll_timeout_ms(self) -> float:
        deadlines = [self._observer.due] if self._running else []
        set_times = (self._timeout_at, self._grace_at, self._second_ctrl_c_at)
        deadlines += [at for at in set_times if at is not None]
        now = time.monotonic()
        if self._ended and (self._leftover_deadlines or not self._running):
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
        if self._second_ctrl_c_at is not None and now >= self._second_ctrl_c_at:
            self._take_second_ctrl_c()
        if self._running and now >= self._observer.due:
            self._observer.look()
        if self._leftover_deadlines:
            self._end_leftovers()

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
            self._note_ctrl_c()
        # All else reached us as a member of the instance's group, which has had it as well.

    def _note_ctrl_c(self) -> None:
        assert self._terminal is not None
        now = time.monotonic()
        first, self._first_ctrl_c = self._first_ctrl_c, now
        if not self._terminal.line_by_line:
            self._first_ctrl_c = None
        elif first is not None and now - first <= self._request.grace_s:
            self._second_ctrl_c_at = self._second_ctrl_c_at or now + PROMPT_S

    def _take_second_ctrl_c(self) -> None:
        assert self._terminal is not None
        self._second_ctrl_c_at = None
        if self._terminal.line_by_line:
            self._handle(Event.SECOND_CTRL_C)
        else:
            self._first_ctrl_c = None

    def _handle_outer_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCONT and self._terminal is not None:
            self._terminal.lend_again()
        before = self._state
        self._handle(EVENT_OF_SIGNAL[number])
        if self._state is State.ENDING and before is not State.ENDING and self._running:
            again = "; Ctrl-C again: now" if number == signal.SIGINT else ""
            self.say(
                f"{number.name} sent to {_count(len(self._running), 'instance')}; "
                f"SIGKILL in {self._request.grace_s:g} s (--grace){again}"
            )

    # The state table.

    def _handle(self, event: Event) -> None:
        action = act(self._state, event)
        self._state = action.next
        if action.start_grace and self._grace_at is None:
            self._grace_at = time.monotonic() + self._request.grace_s
        self._signal(action)
        if action.stop_keeper:
            os.kill(self._keeper, signal.SIGSTOP)

    def _signal(self, action: Action) -> None:
        if action.target is Target.EVERYTHING:
            self._kill_everything()
            return
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                if action.signal is None:
                    pass
                elif action.target is Target.GROUPS:
                    self._signal_group(pid, action.signal)
                elif action.target is Target.PROCESSES:
                    os.kill(pid, action.signal)
                if action.continue_groups:
                    self._signal_group(pid, signal.SIGCONT)

    def _signal_group(self, group: int, number: signal.Signals) -> None:
        # When we are a member ourselves, our copy is blocked, and is known by its sender.
        os.killpg(group, number)

    def _kill_everything(self) -> None:
        if self._killed_at is None:
            self._killed_at = time.monotonic()
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

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
                self._reap_orphan(found.si_pid)

    def _reap_instance(self, pid: int) -> None:
        running = self._running.pop(pid)
        running.observation.look_at_zombie()
        self._observer.remove(pid)
        _, running.status, usage = os.wait4(pid, 0)
        running.ended = time.monotonic()
        running.note_peak_rss(usage.ru_maxrss * 1024)
        running.add_usage(usage)
        self._ended.append(running)
        self._end_leftovers()
        failure = exec_failure(self._environment.program, running.exec_result)
        if failure is not None:
            running.status = failure.exit_code << 8
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
        self.ended_by_ctrl_c = interrupted and self._first_ctrl_c is not None
        stop = self._request.on_failure is OnFailure.STOP
        self._fail(
            running.exit_code,
            _describe_failure(running),
            Event.INSTANCE_FAILED if stop else Event.INSTANCE_DONE,
        )

    def _reap_orphan(self, pid: int) -> None:
        owner = self._owner(pid)
        _, _, usage = os.wait4(pid, 0)
        self._leftover_deadlines.pop(pid, None)
        if owner is not None:
            owner.add_usage(usage)

    def _owner(self, pid: int) -> _Running | None:
        """The instance that an orphan comes from: by what is known, its group, its environment."""
        known = [*self._running.values(), *self._ended]
        group = process_group(pid)
        index = environment_value(pid, "XLAUNCH_INSTANCE_INDEX")
        for running in known:
            if pid in running.leftovers or group == running.pid:
                return running
        return next((r for r in known if str(r.instance.index) == index), None)

    def _end_leftovers(self) -> None:
        """Ask what ended instances left running to end, and kill it after the grace period."""
        now = time.monotonic()
        for orphan in children(os.getpid()):
            if orphan in self._running:
                continue
            owner = self._owner(orphan)
            if owner is not None and owner.ended is None:
                continue  # a helper of an instance that still runs
            for pid in (orphan, *descendants(orphan)):
                if owner is not None:
                    owner.leftovers.add(pid)
                deadline = self._leftover_deadlines.get(pid)
                with contextlib.suppress(ProcessLookupError):
                    if self._state is State.KILLING or (deadline is not None and now >= deadline):
                        os.kill(pid, signal.SIGKILL)
                    elif deadline is None:
                        self._leftover_deadlines[pid] = now + self._request.grace_s
                        os.kill(pid, signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)
        self._leftover_deadlines = {
            pid: at
            for pid, at in self._leftover_deadlines.items()
            if os.path.exists(f"/proc/{pid}")
        }

    def _note_stop(self, pid: int, number: int) -> None:
        if pid not in self._running or number == signal.SIGSTOP:
            return
        if self._terminal is not None or len(self._plan.instances) == 1:
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

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)
            self.say(f"warning: {text}")

    # Output.

    def _read_source(self, descriptor: int) -> None:
        source = self._sources[descriptor]
        try:
            data = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return
        self._put(source.sink, source.tagger.feed(data) if data else source.tagger.finish())
        if not data or source.sink.broken:
            # With no reader left, the instance gets the SIGPIPE that it would get without us.
            self._close_source(descriptor)
        elif source.sink.full:
            self._watch_sources_of(source.sink, readable=False)

    def _put(self, sink: Sink, lines: bytes) -> None:
        sink.add(lines)
        if sink.pending:
            self._poll.register(sink.descriptor, select.POLLOUT)

    def _write_sink(self, descriptor: int) -> None:
        sink = self._stdout if descriptor == self._stdout.descriptor else self._stderr
        was_full = sink.full
        if sink.pending:
            sink.write_some()
        if not sink.pending:
            self._poll.unregister(descriptor)
        if was_full and not sink.full:
            self._watch_sources_of(sink, readable=True)

    def _watch_sources_of(self, sink: Sink, *, readable: bool) -> None:
        for descriptor, source in self._sources.items():
            if source.sink is sink:
                self._poll.register(descriptor, select.POLLIN if readable else 0)

    def _close_source(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)
        del self._sources[descriptor]

    def _close_sources(self) -> None:
        """Take what the last processes wrote; a stranger that holds a pipe open is not waited for."""
        for descriptor, source in self._sources.items():
            with contextlib.suppress(BlockingIOError):
                while data := os.read(descriptor, READ_SIZE):
                    source.sink.add(source.tagger.feed(data))
                    self.flush()
            source.sink.add(source.tagger.finish())
            os.close(descriptor)
        self._sources.clear()
        self.flush()

    def _output_is_given_up(self) -> bool:
        return self._killed_at is not None and (
            time.monotonic() > self._killed_at + DRAIN_AFTER_KILL_S
        )

    # The end.

    def _make_report(self) -> Report:
        ended = sorted(self._ended, key=lambda running: running.instance.index)
        reports = tuple(running.report() for running in ended)
        for report in reports:
            outside = set(report.cpus_observed) - set(report.cpus_asked)
            if outside and self._plan.bound:
                self._warnings.append(
                    f"instance {report.index} also ran on CPUs {format_cpu_list(outside)}: "
                    "the program changed its own affinity"
                )
        return Report(
            exit_code=self._exit_code,
            reason=self._reason or f"{_count(len(ended), 'instance')} ended well",
            wall_s=time.monotonic() - self._started,
            count=self._plan.count,
            instances=reports,
            warnings=tuple(self._warnings),
            argv=self._environment.program.argv,
        )


def _describe_failure(running: _Running) -> str:
    index = running.instance.index
    if os.WIFSIGNALED(running.status):
        return f"instance {index} was ended by {signal_name(os.WTERMSIG(running.status))}"
    return f"instance {index} failed with exit code {running.exit_code}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
