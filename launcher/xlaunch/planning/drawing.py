# SPDX-License-Identifier: Apache-2.0
"""Draw a machine as text: packages, nodes, L3 caches and cores, and the instances on them.

Runs of equal cores are folded into one entry, so that 256 CPUs fit on a screen. CPUs that may not
be used are in parentheses, and dim in colour; the lines below say why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from xlaunch.machine.topology import CPUs, Machine, NumaNode
from xlaunch.text import cited, counted, format_cpu_list

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from xlaunch.planning.plans import Plan

WIDTH = 80
HEADING, ALLOWED, DIM, INSTANCE = "bold cyan", "bold", "dim", "bold green"


class Segment(NamedTuple):
    """A piece of a line, with its rich style."""

    text: str
    style: str = ""


Line = tuple[Segment, ...]


class Drawing(NamedTuple):
    """A drawn machine. ``str()`` is plain ASCII; rich's consoles print it with colour."""

    lines: tuple[Line, ...]

    def __str__(self) -> str:
        """The drawing as plain text."""
        return "\n".join("".join(segment.text for segment in line) for line in self.lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The drawing for rich, which is imported only when it prints."""
        from rich.text import Text

        for line in self.lines:
            yield Text.assemble(*((s.text, s.style) for s in line), no_wrap=True, overflow="ignore")


class Level(NamedTuple):
    """One way in which cores are grouped, such as packages."""

    name: str
    labels: tuple[str, ...]
    """One for each group."""
    group_of: dict[int, int]
    """Group numbers by CPU; a CPU may be in no group."""


class Box(NamedTuple):
    """A group of cores, such as a node."""

    heading: str
    boxes: tuple[Box, ...]
    """The groups in it."""
    cores: tuple[CPUs, ...]


def draw_machine(machine: Machine, plan: Plan | None = None) -> Drawing:
    """The machine, with the place of each instance of `plan`."""
    artist = Artist(machine, plan, WIDTH)
    return Drawing((*artist.summary(), *artist.cores(), *artist.others(), *artist.limits()))


class Artist:
    """Draws one machine."""

    def __init__(self, machine: Machine, plan: Plan | None, width: int) -> None:
        self._machine = machine
        self._topology = machine.topology
        self._allowed = frozenset(machine.limits.allowed_cpus)
        self._width = width
        self._plan = plan
        self._instances: dict[int, list[int]] = {}
        # An instance that is not bound has no CPUs of its own.
        if plan is not None and plan.bound:
            for instance in plan.instances:
                for cpu in instance.cpus:
                    self._instances.setdefault(cpu, []).append(instance.index)
        kinds = self._topology.core_kinds
        self._named_kinds = list(zip(_kind_names(len(kinds)), kinds, strict=True))
        self.kind_of = {cpu: name for name, kind in self._named_kinds for cpu in kind.cpus}

    def summary(self) -> Iterator[Line]:
        """The numbers of packages, nodes, caches, cores and CPUs."""
        topology = self._topology
        counts = (
            (len(topology.packages), "package"),
            (len(topology.numa_nodes), "NUMA node"),
            (len(topology.l3_groups), "L3 cache"),
            (len(topology.cores), "core"),
            (len(topology.online_cpus), "CPU"),
        )
        words = [counted(number, noun) for number, noun in counts if number]
        yield Segment(f"{topology.architecture}: {', '.join(words)}", HEADING), *()
        for name, kind in self._named_kinds:
            facts = ", ".join(f"{key} {value}" for key, value in kind.attributes)
            yield from self._wrapped(
                f"{name}-cores: ", [Segment(numbers(kind.cpus)), Segment(f"({facts})")]
            )

    def facts(self) -> Iterator[Drawing]:
        """All lines but those of the cores."""
        for line in (*self.summary(), *self.others(), *self.limits()):
            yield Drawing((line,))

    def _levels(self) -> list[Level]:
        """The domains that cores share, the outer ones first."""
        topology = self._topology
        nodes = [node for node in topology.numa_nodes if node.cpus]
        levels = [
            _level(
                "package",
                [p.cpus for p in topology.packages],
                ["" if p.id is None else f" {p.id}" for p in topology.packages],
            ),
            _level("die", topology.dies, [""] * len(topology.dies)),
            _level("node", [node.cpus for node in nodes], [self._node_label(n) for n in nodes]),
            _level("L3", topology.l3_groups, [""] * len(topology.l3_groups)),
        ]
        # Levels with fewer groups are outside: a node may hold several packages, or the reverse.
        # A level with one core per group is left out.
        return [
            level
            for level in sorted(levels, key=lambda level: len(level.labels))
            if level.labels and not (len(level.labels) == len(topology.cores) > 1)
        ]

    def cores(self) -> Iterator[Line]:
        """The cores, nested in the domains that they share."""
        yield from self._nested(self.machine_box(), 0)

    def machine_box(self) -> Box:
        """All cores, in boxes for the domains that they share."""
        cores = self._topology.cores
        return Box("", tuple(_boxes(cores, self._levels())), cores)

    def _nested(self, box: Box, depth: int) -> Iterator[Line]:
        indent = "  " * depth
        if not box.boxes:
            heading = f"{indent}{box.heading}: " if box.heading else indent
            yield from self._wrapped(heading, self._runs(box.cores), HEADING if box.heading else "")
            return
        if box.heading:
            yield (Segment(indent + box.heading, HEADING),)
            depth += 1
        for inner in box.boxes:
            yield from self._nested(inner, depth)

    def _runs(self, cores: tuple[CPUs, ...]) -> list[Segment]:
        """The cores, with each run of equal ones drawn as one piece."""
        runs: list[list[CPUs]] = []
        for core in cores:
            if runs and self._continues(runs[-1], core):
                runs[-1].append(core)
            else:
                runs.append([core])
        return [segment for run in runs for segment in self._run(run)]

    def _continues(self, run: list[CPUs], core: CPUs) -> bool:
        if self._look(run[-1]) != self._look(core):
            return False
        step = core[0] - run[-1][0]
        if any(b - a != step for a, b in zip(run[-1], core, strict=True)):
            return False
        return len(run) < 2 or step == run[-1][0] - run[-2][0]

    def _look(self, core: CPUs) -> tuple[object, ...]:
        """The properties that must be equal for cores to be drawn as one run."""
        return (
            tuple(cpu in self._allowed for cpu in core),
            self.kind_of.get(core[0]),
            self._instances_on(core),
        )

    def _instances_on(self, core: CPUs) -> tuple[int, ...]:
        return tuple(sorted({index for cpu in core for index in self._instances.get(cpu, ())}))

    def _run(self, run: list[CPUs]) -> Iterator[Segment]:
        first = run[0]
        kind = f"{self.kind_of[first[0]]}-core" if first[0] in self.kind_of else "core"
        count = counted(len(run), kind) + (f" x{len(first)}" if len(first) > 1 else "")
        states = [cpu in self._allowed for cpu in first]
        every = [cpu for core in run for cpu in core]
        if len(set(states)) == 1 and every == list(range(every[0], every[-1] + 1)):
            cpus = format_cpu_list(every) if states[0] else f"({format_cpu_list(every)})"
        else:
            threads = [[core[i] for core in run] for i in range(len(first))]
            if not any(states):
                cpus = "(" + "+".join(map(_progression, threads)) + ")"
            else:
                cpus = "+".join(
                    _progression(thread) if state else f"({_progression(thread)})"
                    for thread, state in zip(threads, states, strict=True)
                )
        if on := self._instances_on(first):
            yield Segment(f"#{','.join(map(str, on))} {count} {cpus}", INSTANCE)
        else:
            yield Segment(f"{count} {cpus}", ALLOWED if any(states) else DIM)

    def others(self) -> Iterator[Line]:
        """GPUs, nodes without CPUs, and CPUs that no core has."""
        for heading, segments in self._gpus():
            yield from self._wrapped(heading, segments, HEADING)
        for node in self._topology.numa_nodes:
            if not node.cpus:
                near = f", near {numbers(node.local_cpus)}" if node.local_cpus else ""
                yield from self._wrapped(
                    f"node{self._node_label(node)}: ", [Segment(f"no CPUs{near}")], HEADING
                )
        if self._topology.offline_cpus:
            listed = Segment(f"({numbers(self._topology.offline_cpus)})", DIM)
            yield from self._wrapped("offline: ", [listed])
        if self._topology.isolated_cpus:
            listed = Segment(f"{numbers(self._topology.isolated_cpus)} by isolcpus=")
            yield from self._wrapped("isolated: ", [listed])

    def _gpus(self) -> Iterator[tuple[str, list[Segment]]]:
        """The names of the GPUs of each model and NUMA node, or the addresses of those not allowed."""
        gpus = self._machine.gpus
        instances = () if self._plan is None else self._plan.instances
        own = {gpu: instance.index for instance in instances for gpu in instance.gpus}
        addresses = {gpu.address for gpu in gpus.usable}
        groups: dict[str, list[Segment]] = {}
        hidden = [gpu for gpu in gpus.found if gpu.address not in addresses]
        for gpu in (*gpus.usable, *hidden):
            node = "" if gpu.numa_node is None else f", node {gpu.numa_node}"
            heading = f"{gpu.vendor.value} GPU {gpu.model}".rstrip() + f"{node}: "
            if gpu in own:
                segment = Segment(f"#{own[gpu]} {gpu.name}", INSTANCE)
            elif gpu.name:
                segment = Segment(gpu.name, ALLOWED)
            else:
                segment = Segment(f"({gpu.address})", DIM)
            groups.setdefault(heading, []).append(segment)
        yield from groups.items()

    def limits(self) -> Iterator[Line]:
        """What limits this process, and the plan's count."""
        limits, gpus = self._machine.limits, self._machine.gpus
        if self._plan is not None:
            where = "marked # on their cores" if self._plan.bound else "not bound to cores"
            yield (Segment(f"plan: {counted(len(self._plan.instances), 'instance')}, {where}"),)
        if limits.narrowed_by:
            allowed = Segment(f"{numbers(limits.allowed_cpus)}", ALLOWED)
            yield from self._wrapped("allowed: ", [allowed])
            for reason in limits.narrowed_by:
                yield from self._wrapped("  others (in parentheses) by ", [Segment(reason)])
        if gpus.narrowed_by or gpus.problem:
            reason = gpus.problem or f"those of {gpus.narrowed_by}"
            yield from self._wrapped("allowed GPUs: ", [Segment(reason)])
        if limits.cpu_quota is not None:
            quota = cited(f"{limits.cpu_quota:g} CPUs' worth of time", limits.cpu_quota_source)
            yield from self._wrapped("CPU quota: ", [Segment(quota)])
        if limits.memory_limit_bytes is not None:
            memory = cited(_gib(limits.memory_limit_bytes), limits.memory_limit_source)
            yield from self._wrapped("memory limit: ", [Segment(memory)])

    def _node_label(self, node: NumaNode) -> str:
        memory = "" if node.memory_bytes is None else f" {_gib(node.memory_bytes)}"
        # The kernel does not list a node without memory as allowed, but nothing forbids it.
        allowed = node.id in self._machine.limits.allowed_nodes or node.memory_bytes == 0
        refused = "" if allowed else " (memory not allowed)"
        return f" {node.id}{memory}{refused}"

    def _wrapped(
        self, heading: str, segments: Iterable[Segment], style: str = ""
    ) -> Iterator[Line]:
        """The heading and the segments, two spaces apart, wrapped to the width."""
        indent = " " * (len(heading) - len(heading.lstrip()) + 2)
        line = [Segment(heading, style)]
        used = len(heading)
        for segment in _cut(segments, self._width - len(indent)):
            gap = "" if len(line) == 1 else "  "
            if len(line) > 1 and used + len(gap) + len(segment.text) > self._width:
                yield tuple(line)
                line, used, gap = [Segment(indent)], len(indent), ""
            elif len(line) == 1 and used + len(segment.text) > self._width and heading.strip():
                yield (Segment(heading.rstrip(), style),)
                line, used = [Segment(indent)], len(indent)
            line += [Segment(gap), segment]
            used += len(gap) + len(segment.text)
        yield tuple(line)


def _cut(segments: Iterable[Segment], width: int) -> Iterator[Segment]:
    """Cut segments that are longer than a line at commas and spaces."""
    for segment in segments:
        text = segment.text
        while len(text) > width:
            at = max(
                text.rfind(",", 0, width), text.rfind(" ", 0, width), text.rfind("/", 0, width)
            )
            at = width - 1 if at <= 0 else at
            yield Segment(text[: at + 1], segment.style)
            text = text[at + 1 :]
        yield Segment(text, segment.style)


def _level(name: str, groups: Iterable[CPUs], labels: list[str]) -> Level:
    group_of = {cpu: number for number, cpus in enumerate(groups) for cpu in cpus}
    return Level(name, tuple(labels), group_of)


def _boxes(cores: tuple[CPUs, ...], levels: list[Level]) -> Iterator[Box]:
    """The groups at the first level, with the groups inside them."""
    if not levels:
        return
    for group, members in _split(cores, levels[0]):
        groups, inner = [(levels[0], group)], levels[1:]
        # A level that does not divide this group is named in the same heading.
        while inner and len(parts := _split(members, inner[0])) == 1:
            groups.append((inner[0], parts[0][0]))
            inner = inner[1:]
        names = [f"{level.name}{level.labels[n]}" for level, n in groups if n is not None]
        yield Box(", ".join(names), tuple(_boxes(members, inner)), members)


def _split(cores: tuple[CPUs, ...], level: Level) -> list[tuple[int | None, tuple[CPUs, ...]]]:
    """The cores of each group at `level`, ordered by their first core."""
    members: dict[int | None, list[CPUs]] = {}
    for core in cores:
        members.setdefault(level.group_of.get(core[0]), []).append(core)
    return [(group, tuple(cores)) for group, cores in members.items()]


def _kind_names(count: int) -> tuple[str, ...]:
    """Vendors' letters for kinds of cores, the slowest first."""
    if count == 2:
        return ("E", "P")
    if count == 3:
        return ("LP", "E", "P")
    return tuple(f"kind{number}" for number in range(count))


def _progression(numbers: list[int]) -> str:
    """Evenly spaced numbers. **Ex.:** ``0-7``, ``0-36:4``, ``5``."""
    if len(numbers) == 1:
        return str(numbers[0])
    step = numbers[1] - numbers[0]
    if step < 1 or len(numbers) == 2 < step:
        return ",".join(map(str, numbers))
    return f"{numbers[0]}-{numbers[-1]}" + (f":{step}" if step > 1 else "")


def numbers(cpus: CPUs) -> str:
    """A list of CPUs in its shorter form."""
    steps = {b - a for a, b in pairwise(cpus)}
    return _progression(list(cpus)) if len(steps) == 1 else format_cpu_list(cpus)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
