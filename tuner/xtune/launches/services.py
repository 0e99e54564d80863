# SPDX-License-Identifier: Apache-2.0
"""Measurement of a service by a load generator that someone else wrote.

    start the service in its layout -> wait until every instance is ready -> run the generators
    -> stop the service -> read what the generators printed

Service and generators are supervised by xlaunch, so neither leaves a process behind. Every instance
has a port of its own. The generators run on cores that the service does not use, if there are any.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import xlaunch
from xlaunch.environment import Environment
from xlaunch.environment.program import resolve_program
from xlaunch.environment.variables import (
    own_program,
    own_variables,
    split_inherited,
    substitute,
    words_of,
)
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.machine.processes import descendants
from xlaunch.machine.topology import CPUs, Machine
from xlaunch.metrics.live import LiveLine
from xlaunch.planning import (
    LayoutRequest,
    MemoryPolicy,
    Plan,
    ProgramRequest,
    Request,
    RunRequest,
    plan,
)
from xlaunch.report import Report
from xlaunch.supervision.keeper_client import RunningLaunch
from xlaunch.supervision.probes import EXEC, Probe, target_of
from xlaunch.text import format_cpu_list, number
from xtune.launches.generators import Requests, requests_of
from xtune.launches.launch import Outcome
from xtune.launches.meters import EnergyMeter
from xtune.launches.watching import Tail
from xtune.space.parameters import Value
from xtune.space.user_parameters import replace


def bare_command(
    request: ProgramRequest, run: RunRequest, environment: Mapping[str, str], machine: Machine
) -> tuple[Plan, Environment]:
    """The program of `request` on its own, with its variables. Raises what `resolve_program` raises.

    request
        Only the program, how to find it, and `env` are used.
    environment
        The variables that it inherits, usually `os.environ`.
    """
    nowhere = LayoutRequest(mem_policy=MemoryPolicy.NONE)
    generator_plan = plan(nowhere, machine)._replace(bound=False, decisions=(), warnings=())
    (instance,) = generator_plan.instances
    inherited = split_inherited(environment).users_own
    program = resolve_program(request, inherited)
    variables = inherited | own_variables(request, generator_plan, instance)
    if generator_plan.relayed(run):
        variables.setdefault("PYTHONUNBUFFERED", "1")
    programs = (own_program(program, request, generator_plan, instance),)
    return generator_plan, Environment(program, programs, ((),), (variables,))


FIRST_PORT = 8000
"""The first port in commands that are shown; a launch uses free ports."""

PORT = "{port}"
PORTS = range(20_000, 32_000)
"""The ports that are tried; they are below those of outgoing connections on Linux."""

MIN_PAUSE_S, MAX_PAUSE_S = 0.02, 0.25
"""Pause between two attempts to reach the service."""

ANSWER_S = 2.0
"""Time limit of an attempt."""

COMMAND_LIMIT_S = 600.0
"""Time limit of the commands of --prepare and --cleanup."""

ENDED_UNDER_LOAD = "the service ended while it was measured"

MAX_BUSY = 0.9
"""A generator that used more of its own CPUs is taken to be at its limit."""

MIN_BUSY_S = 1.0
"""A generator that ran for less is not: starting up takes a whole CPU."""

MAX_OUTPUT = 1 << 22
"""Bytes of a generator's output that are read, from its end."""


class Service(NamedTuple):
    """How a service is measured."""

    ready: str
    """What `xlaunch --health` takes, or text of a line that it prints."""
    measure: str
    """The generator's command. With words in braces: one for each instance."""
    ready_timeout_s: float = 120.0
    warmup_s: float = 0.0
    """Time under load that is not measured."""

    def fill(self, values: Mapping[str, Value]) -> Service:
        """With values for the parameters in braces."""
        ready, measure = (replace(text, values) for text in (self.ready, self.measure))
        return self._replace(ready=ready, measure=measure)

    @property
    def awaited_line(self) -> str | None:
        """The text of the line that says that it is ready; None if it is asked."""
        is_asked = self.ready.startswith(("http://", "https://", EXEC))
        return None if is_asked or self.ready == PORT or self.ready.isdigit() else self.ready

    def probe(self, words: Mapping[str, str]) -> Probe:
        """Ask an instance whether it works. `words`: its words in braces."""
        return Probe(target_of(self.ready, words), time.monotonic() + ANSWER_S, ANSWER_S)


class Load(NamedTuple):
    """What the generators of a launch did."""

    outputs: tuple[str, ...] = ()
    """What each printed."""
    outcome: Outcome = Outcome.MEASURED
    problem: str = ""
    """Why there is nothing to read; empty if all went well."""
    service_ended: bool = False
    """By itself."""
    said: str = ""
    """The last lines of the service's standard error."""
    level: tuple[str, int] | None = None
    """The name of --load, and the highest that held."""
    requests: Requests | None = None
    """What became of the requests; None: the generator is not known, and errors are not seen."""


def require_service(service: Service) -> None:
    """Raise `UsageError` for a service that cannot be measured as asked."""
    words = _words(service.measure, "--measure")
    bare_command(ProgramRequest(words), RunRequest(), os.environ, xlaunch.read_machine())  # raises
    if not service.ready.strip():
        raise UsageError("--ready: name a URL, a port, or text of a line that the service prints")
    if service.awaited_line is None:
        numbers = dict.fromkeys(("index", "count", "cpus", "ncores", "node"), "1")
        target_of(service.ready, {**numbers, "port": str(FIRST_PORT)})  # raises


def require_command(text: str, option: str) -> None:
    """Raise `UsageError` for a command of --prepare or --cleanup that cannot be run."""
    program = _words(text, option)[0]
    if shutil.which(program) is None:
        raise UsageError(
            f"{option} {text!r}: no program {program!r} can be run; write its path, or one on PATH"
        )


def with_ports(request: Request) -> Request:
    """The request with ``{port}`` as ports that xlaunch counts: ``{8000+index}``."""
    return _replaced(request, PORT, _counted(FIRST_PORT)).replace(substitute=True)


def at_ports(request: Request, first: int) -> Request:
    """The request of `with_ports` with its ports from `first` on."""
    return _replaced(request, _counted(FIRST_PORT), _counted(first))


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports that nothing listens on. Raises `XLaunchError`."""
    for _ in range(100):
        first = random.randrange(PORTS.start, PORTS.stop - count)  # noqa: S311 - no secret
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("", port))
            return first
    raise XLaunchError(f"no {count} consecutive ports from {PORTS.start} to {PORTS.stop} are free")


def cores_kept_free(request: Request, machine: Machine) -> CPUs:
    """The CPUs that --cpus and --numa-nodes leave to generators; empty without them."""
    nodes = machine.topology.numa_nodes
    layout = request.layout
    if layout.cpus is not None:
        used = layout.cpus
    elif layout.numa_nodes is not None:
        used = tuple([cpu for node in nodes if node.id in layout.numa_nodes for cpu in node.cpus])
    else:
        return ()
    return cores_beside(machine, used)


def cpus_of_bare(plan: Plan, machine: Machine, kept_free: CPUs) -> CPUs:
    """The CPUs of a bare command that leaves some to generators; empty: all, or it is bound."""
    if plan.bound or not kept_free:
        return ()
    return tuple(set(machine.limits.allowed_cpus) - set(kept_free))


def cores_beside(machine: Machine, used: CPUs) -> CPUs:
    """The allowed CPUs whose cores `used` does not touch."""
    allowed, taken = set(machine.limits.allowed_cpus), set(used)
    cores = [core for core in machine.topology.cores if not taken & set(core)]
    return tuple(sorted(cpu for core in cores for cpu in core if cpu in allowed))


@contextlib.contextmanager
def confined(cpus: CPUs) -> Iterator[None]:
    """During the block, run this thread and what it starts on these CPUs; if empty, anywhere."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_command(text: str, option: str, limit_s: float = COMMAND_LIMIT_S) -> str:
    """Run the command of --prepare or --cleanup; return why it failed, or an empty text.

    After `limit_s` it is killed with the processes that it has started.
    """
    # Not a pipe, which a process in the background would keep open.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                _words(text, option), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        except OSError as error:
            return f"{option} {text!r} cannot be run: {error.strerror}"
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"{option} {text!r} did not end within {limit_s:g} s and was killed"
        finally:
            if process.poll() is None:  # interrupted, or too late
                for pid in (*descendants(process.pid), process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
        if code == 0:
            return ""
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
    return f"{option} {text!r} failed with exit code {code}" + (f": {said[-1]}" if said else "")


@dataclass(eq=False)
class LoadTest:
    """A launch of a service, and the generators that put it under load."""

    service: Service
    run: RunningLaunch
    plan: Plan
    first_port: int
    _: KW_ONLY
    tail: Tail
    meter: EnergyMeter
    deadline: float | None
    """Its end at the latest, on the clock of `time.monotonic()`."""
    machine: Machine
    environment: Mapping[str, str]
    """Of the generators."""
    kept_free: CPUs
    """See `cores_kept_free`. Without them, generators get the cores that the layout leaves idle."""

    def __post_init__(self) -> None:
        instances = self.plan.instances
        self._words = [
            {**words_of(self.plan, instance), "port": str(self.first_port + instance.index)}
            for instance in instances
        ]
        self._cpus = self.kept_free
        if self.plan.bound and not self._cpus:
            used = tuple([cpu for instance in instances for cpu in instance.cpus])
            self._cpus = cores_beside(self.machine, used)
        self._warmup_s = self.service.warmup_s

    def wait_until_ready(self) -> Load:
        """Wait until every instance is ready."""
        probes: dict[int, Probe] = {}
        try:
            return self._wait(probes)
        finally:
            for probe in probes.values():
                probe.close()

    def generate(self, measure: str) -> Load:
        """Run the generators of a command until all have ended; the first time after the warm-up."""
        warm_at, self._warmup_s = time.monotonic() + self._warmup_s, 0.0
        while time.monotonic() < warm_at:
            load = self._generate(measure, until=warm_at)
            if load.problem:
                return load
        return self._generate(measure)

    def _wait(self, probes: dict[int, Probe]) -> Load:
        """See `wait_until_ready`. `probes`: receives the last one of each instance."""
        service, awaited, started = self.service, self.service.awaited_line, time.monotonic()
        waiting, pause_s = set(range(len(self._words))), MIN_PAUSE_S
        while waiting:
            if self._has_ended(pause_s):
                return Load((), Outcome.CRASHED, "the service ended before it was ready", True)
            if awaited is None:
                for at in waiting:
                    probe = probes.get(at)
                    if probe is None or (
                        probe.problem and (probe.pid is None or probe.reap() is not None)
                    ):
                        probe = probes[at] = service.probe(self._words[at])
                    probe.advance(time.monotonic())
                waiting = {at for at in waiting if probes[at].problem != ""}
            else:
                lines = (event for event in self.run.live() if isinstance(event, LiveLine))
                waiting -= {line.instance for line in lines if awaited in line.text}
            if waiting and time.monotonic() - started > service.ready_timeout_s:
                ready = substitute(service.ready, self._words[min(waiting)])
                after = f"after {number(service.ready_timeout_s)} s: see --ready-timeout"
                problem = f"the service was not ready ({ready}) {after}"
                return Load((), Outcome.TIMED_OUT, problem)
            pause_s = min(1.5 * pause_s, MAX_PAUSE_S)
        return Load()

    def _generate(self, measure: str, until: float = math.inf) -> Load:
        """Run the generators. `until`: when they are killed, on the clock of `time.monotonic()`."""
        with contextlib.ExitStack() as stack:
            generators, files = [], []
            for command in dict.fromkeys(_command_of(measure, words) for words in self._words):
                request, options = ProgramRequest(_words(command, "--measure")), RunRequest()
                prepared = bare_command(request, options, self.environment, self.machine)
                files.append(stack.enter_context(tempfile.TemporaryFile()))
                with confined(self._cpus):
                    output = files[-1].fileno()
                    run = xlaunch.start(*prepared, options, stdout=output, stderr=output)
                generators.append(stack.enter_context(run))
            while not all(generator.wait(0) for generator in generators):
                if self._has_ended(MAX_PAUSE_S, generators):
                    return Load((), Outcome.CRASHED, ENDED_UNDER_LOAD, True)
                if self.deadline is not None and time.monotonic() > self.deadline:
                    problem = "the generator took longer than the time limit"
                    return Load((), Outcome.TIMED_OUT, problem)
                if time.monotonic() > until:
                    return Load()
            outputs = tuple([_text_of(file.fileno()) for file in files])
            reports = [generator.report() for generator in generators]
            # The generators may have failed because the service ended.
            if any(report.exit_code for report in reports) and self._has_ended(ANSWER_S):
                return Load((), Outcome.CRASHED, ENDED_UNDER_LOAD, True)
        return load_of(outputs, reports, self._cpus)

    def _has_ended(self, pause_s: float, others: Sequence[RunningLaunch] = ()) -> bool:
        """Wait for the end of a run, at most `pause_s`; return whether the service has ended."""
        poll = select.poll()
        for other in (self.run, *[other for other in others if not other.wait(0)]):
            poll.register(other.fileno(), select.POLLIN)
        poll.poll(1000.0 * pause_s)
        self.tail.take()
        self.meter.sample()
        return self.run.wait(0)


def load_of(outputs: Sequence[str], reports: Sequence[Report], cpus: CPUs) -> Load:
    """What generators did that have ended by themselves.

    `cpus`: those that they had to themselves; empty: none.
    """
    outputs = tuple(outputs)
    requests = requests_of(outputs)
    for code, printed in zip([report.exit_code for report in reports], outputs, strict=True):
        # locust and k6 end with another exit code if requests failed.
        if code and not (requests and requests.failed + requests.rejected):
            last = printed.strip().rpartition("\n")[2] or "it printed nothing"
            problem = f"the generator failed with exit code {code}: {last}"
            return Load(outputs, Outcome.NO_METRIC, problem)
    instances = [instance for report in reports for instance in report.instances]
    used_s = [instance.cpu_s for instance in instances]
    wall_s = max([instance.wall_s for instance in instances], default=0.0)
    is_known = cpus and wall_s >= MIN_BUSY_S and None not in used_s
    busy = sum(filter(None, used_s)) / (wall_s * len(cpus)) if is_known else 0.0
    if busy > MAX_BUSY:
        problem = (
            f"the load generators used {busy:.0%} of their CPUs {format_cpu_list(cpus)}: what they print may"
            " be their own limit; leave them more CPUs (--cpus), or lower the load"
        )
        return Load(outputs, Outcome.SATURATED, problem, requests=requests)
    return Load(outputs, requests=requests)


def _command_of(measure: str, words: Mapping[str, str]) -> str:
    """The generator's command for an instance. **Ex.:** ``-c{64/count}`` of 4 is ``-c16``."""
    count = int(words["count"])
    shared = re.compile(r"\{(\d{1,9})/count\}")
    return substitute(shared.sub(lambda share: str(max(1, int(share[1]) // count)), measure), words)


def _counted(first: int) -> str:
    return f"{{{first}+index}}"


def _replaced(request: Request, old: str, new: str) -> Request:
    words = tuple([word.replace(old, new) for word in request.program.words])
    env = tuple([(name, value.replace(old, new)) for name, value in request.program.env])
    return request.replace(words=words, env=env)


def _words(command: str, option: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"{option} {command!r}: {error}") from None
    if not words:
        raise UsageError(f"{option}: the command is empty; leave the option out, or name a program")
    return words


def _text_of(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, MAX_OUTPUT, max(0, size - MAX_OUTPUT)).decode(errors="replace")
