# SPDX-License-Identifier: Apache-2.0
"""Recorded spaces: every plan of a space launched several times, as data, and answers from it.

A recording is a text file of JSON lines (``.jsonl``, or ``.jsonl.gz`` once it is finished). The
first line is the header: format, space, machine, command, objective, versions. Then a line for each
plan with the configurations that come to it, then a line for each launch, in the order launched.

    {"format": "xtune recording", "version": 1, "name": "digits", "space": {...}, ...}
    {"plan": "5c3e", "configurations": [{}, {"omp": "gnu"}]}
    {"round": 0, "plan": "5c3e", "configuration": {}, "outcome": "measured", "value": 812.5, ...}

Configurations are written as what they change from the defaults, and read back whole. A plan of null holds those that
cannot be carried out on that machine.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from xlaunch.errors import UsageError
from xtune.launches.launch import NO_LIMITS, Launch, Limits, Objective, Outcome, Secondary
from xtune.search.encoding import Plain, encode_launch
from xtune.search.records import NextLaunch, Record
from xtune.space.parameters import BARE, Configuration, Parameter
from xtune.space.plain_values import from_plain, to_plain
from xtune.space.spaces import Space

FORMAT = "xtune recording"
VERSION = 1


class Header(NamedTuple):
    """What a recording is of."""

    name: str
    """**Ex.:** ``digits``."""
    space: Space
    machine: str
    """A line about it."""
    command: tuple[str, ...]
    objective: Objective
    versions: tuple[tuple[str, str], ...] = ()
    """Of the kernel, Python and what the program uses."""


class RecordedPlan(NamedTuple):
    """One way to start the workload."""

    plan_hash: str | None
    """None: not possible on that machine."""
    configurations: tuple[Configuration, ...]
    """All that come to it; the first one was launched."""


class RecordedLaunch(NamedTuple):
    round: int
    launch: Launch


class Recording:
    """A recorded space; immutable."""

    def __init__(
        self, header: Header, plans: Sequence[RecordedPlan], launches: Sequence[RecordedLaunch]
    ) -> None:
        self.header = header
        self.plans = tuple(plans)
        self.launches = tuple(launches)
        self._hashes = {
            self._key(configuration): plan.plan_hash
            for plan in self.plans
            for configuration in plan.configurations
        }

    def plan_hash(self, configuration: Configuration) -> str | None:
        """What a configuration came to there. Raises KeyError for one that is not in the space."""
        return self._hashes[self._key(configuration)]

    @cached_property
    def by_plan(self) -> Mapping[str, tuple[Launch, ...]]:
        """The launches of each plan, in the order launched."""
        launches_of: dict[str, list[Launch]] = {}
        for recorded in self.launches:
            launches_of.setdefault(recorded.launch.plan_hash, []).append(recorded.launch)
        return {plan_hash: tuple(launches) for plan_hash, launches in launches_of.items()}

    @cached_property
    def truth(self) -> Mapping[str, float]:
        """The mean value of each plan over its launches, the bare command's too.

        Only of those that were recorded and whose launches were all measured and kept the
        requirements: what fails now and then is not to be chosen.
        """
        objective = self.header.objective
        return {
            plan_hash: sum(launch.value or 0.0 for launch in launches) / len(launches)
            for plan_hash, launches in self.by_plan.items()
            if all(objective.is_feasible(launch) for launch in launches)
        }

    def share(self, plan_hash: str | None) -> float:
        """How much of the best recorded plan a plan reaches, 1 at most; 0 if it must not be chosen."""
        value = None if plan_hash is None else self.truth.get(plan_hash)
        if value is None:
            return 0.0
        best = self.truth[self.best]
        return value / best if self.header.objective.sign > 0 else best / value

    @cached_property
    def best(self) -> str:
        """The plan with the best truth, but for the bare command's."""
        plans = [plan for plan in self.truth if plan != self._hashes.get(self._key(BARE))]
        return max(plans, key=lambda plan: self.header.objective.sign * self.truth[plan])

    def _key(self, configuration: Configuration) -> Configuration:
        return Configuration(changes(configuration, self.header.space.parameters))


class RecordedMeasurer:
    """A Measurer that answers from a recording.

    A plan's launches are drawn in random order, none again before all were drawn. Time passes by
    what each launch took. A launch that would have been cut is answered as cut and takes its whole
    time, for a recording does not tell when it would have been certain; wall time alone does.
    """

    def __init__(self, recording: Recording, seed: int = 0) -> None:
        self.recording = recording
        self._random = random.Random(f"{seed} {recording.header.name}")
        self._left: dict[str, list[Launch]] = {}
        self._now_s = 0.0

    def measure(self, configuration: Configuration, limits: Limits = NO_LIMITS) -> Launch:
        """One of the recorded launches. Raises KeyError where the configuration was not recorded."""
        plan_hash = self.recording.plan_hash(configuration)
        if plan_hash is None:
            raise KeyError(f"{configuration!r} could not be carried out when this was recorded")
        launch = self.draw(plan_hash)._replace(configuration=configuration, began_s=self._now_s)
        if limits.limit_s is not None and launch.secondary.wall_s > limits.limit_s:
            launch = _ended(launch, Outcome.TIMED_OUT, limits.limit_s)
        if limits.cut_at is not None:
            launch = self._cut(launch, limits.cut_at)
        self._now_s += launch.secondary.wall_s
        return launch

    def now_s(self) -> float:
        return self._now_s

    def draw(self, plan_hash: str) -> Launch:
        """A launch of a plan."""
        left = self._left.get(plan_hash)
        if not left:
            left = self._left[plan_hash] = list(self.recording.by_plan[plan_hash])
            self._random.shuffle(left)
        return left.pop()

    def _cut(self, launch: Launch, cut_at: float) -> Launch:
        objective = self.recording.header.objective
        if launch.value is None or objective.sign * (launch.value - cut_at) >= 0:
            return launch
        wall_s = launch.secondary.wall_s
        return _ended(
            launch, Outcome.CUT, min(wall_s, cut_at) if objective.metric == "wall" else wall_s
        )


def _ended(launch: Launch, outcome: Outcome, wall_s: float) -> Launch:
    return launch._replace(
        outcome=outcome, value=None, secondary=Secondary(wall_s), series=(), requirements=()
    )


class MemoryStore:
    """Records of one worker, kept in memory: and gone with it."""

    host = "here"

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._made = 0

    def records(self) -> Sequence[Record]:
        return tuple(self._records.values())

    def claim(self, step: NextLaunch) -> int | None:
        if any(record.step.key == step.key for record in self._records.values()):
            return None
        self._made += 1
        self._records[self._made] = Record(self._made, step, self.host, None)
        return self._made

    def finish(self, number: int, launch: Launch) -> bool:
        if number not in self._records:
            return False
        self._records[number] = self._records[number]._replace(launch=launch)
        return True

    def abandon(self, number: int, reason: str) -> None:
        self._records.pop(number, None)


def write_header(stream: TextIO, header: Header, plans: Iterable[RecordedPlan]) -> None:
    """Begin a recording."""
    stream.write(_line(_encode_header(header)))
    stream.writelines(_line(_encode_plan(plan, header.space)) for plan in plans)
    stream.flush()


def write_launch(stream: TextIO, header: Header, recorded: RecordedLaunch) -> None:
    """Add a launch, with every raw sample."""
    plain = encode_launch(recorded.launch)
    plain["configuration"] = changes(recorded.launch.configuration, header.space.parameters)
    stream.write(_line({"round": recorded.round} | plain))
    stream.flush()


def read_recording(path: Path) -> Recording:
    """A recording, gzip-compressed or not. A last line that was not written whole is left out.

    Raises UsageError where the file cannot be read or is not a recording.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as stream:
            return _read(path, stream)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a recording: {error}") from error


def _read(path: Path, stream: TextIO) -> Recording:
    lines = _plain_lines(path, stream)
    header = _decode_header(path, next(lines, {}))
    plans: list[RecordedPlan] = []
    launches: list[RecordedLaunch] = []
    for plain in lines:
        if "configurations" in plain:
            configurations = [_completed(one, header.space) for one in plain["configurations"]]
            plans.append(RecordedPlan(plain["plan"], tuple(configurations)))
        else:
            plain["configuration"] = _completed(plain["configuration"], header.space)
            launches.append(RecordedLaunch(plain["round"], decode_launch(plain)))
    return Recording(header, plans, launches)


def _plain_lines(path: Path, stream: TextIO) -> Iterator[Plain]:
    for number, line in enumerate(stream, 1):
        if not line.endswith("\n"):
            return  # the recorder was killed while it wrote this line
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}, line {number} is not JSON: {error}") from error


def _completed(changed: Plain, space: Space) -> Configuration:
    configuration = Configuration(changed)
    return configuration if configuration == BARE else space.complete(configuration)


def _line(plain: Plain) -> str:
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False) + "\n"


def _encode_header(header: Header) -> Plain:
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": header.name,
        "machine": header.machine,
        "command": list(header.command),
        "objective": to_plain(header.objective),
        "versions": dict(header.versions),
        "space": header.space.to_plain(),
    }


def _decode_header(path: Path, plain: Plain) -> Header:
    if plain.get("format") != FORMAT:
        raise UsageError(f'{path} is no recording: its first line has no "format": "{FORMAT}"')
    if plain["version"] != VERSION:
        raise UsageError(
            f"{path} is a recording of version {plain['version']}; this xtune reads {VERSION}"
        )
    return Header(
        name=plain["name"],
        space=Space.from_plain(plain["space"]),
        machine=plain["machine"],
        command=tuple(plain["command"]),
        objective=from_plain(Objective, plain["objective"]),
        versions=tuple(plain["versions"].items()),
    )


def decode_launch(plain: Plain) -> Launch:
    """The launch that `encode_launch` encoded."""
    return from_plain(Launch, {**plain, "plan_hash": plain["plan"]})


def _encode_plan(plan: RecordedPlan, space: Space) -> Plain:
    configurations = [
        changes(configuration, space.parameters) for configuration in plan.configurations
    ]
    return {"plan": plan.plan_hash, "configurations": configurations}


def changes(configuration: Mapping[str, Any], parameters: Sequence[Parameter]) -> Plain:
    """What of a configuration is not the default."""
    defaults = {parameter.name: parameter.default for parameter in parameters}
    return {
        name: value
        for name, value in configuration.items()
        if name not in defaults or not _same(value, defaults[name])
    }


def _same(one: object, other: object) -> bool:
    """Equal and of one type: 1, 1.0 and true are three values."""
    return one == other and type(one) is type(other)
