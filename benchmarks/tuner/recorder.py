# SPDX-License-Identifier: Apache-2.0
"""Records every plan of a space by real launches, in an order that is drawn, one file line each.

A recorder that was killed goes on where it was: the order follows from the seed, every launch is on
the disk before the next one begins, and a line that was not finished is cut off.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from benchmarks.harness.measurement import machine_line
from benchmarks.tuner.recorded import (
    Header,
    RecordedLaunch,
    RecordedPlan,
    Recording,
    read_recording,
    write_header,
    write_launch,
)
from xlaunch.errors import UsageError
from xtune.cli.options import parse_search
from xtune.preparation import SearchTask, prepare
from xtune.search.workers import host_locked
from xtune.space.parameters import BARE, Configuration


class Options(NamedTuple):
    """How to record."""

    name: str
    rounds: int
    """Launches of each plan."""
    control_every: int
    """Launches between two of the bare command within a round, besides its own."""
    seed: int


def record(path: Path, arguments: Sequence[str], options: Options) -> None:
    """Record what `xtune ARGUMENTS` would search, or go on with it.

    Raises UsageError where the file holds something else, and what xtune raises for its arguments.
    """
    task = prepare(parse_search(arguments))
    header, plans = _header(task, options), _plans(task)
    order = launch_order(plans, options)
    with _opened(path, header, plans, order) as (stream, done):
        say(f"{len(plans) - 1} plans, {len(order)} launches, {done} of them made already")
        host_lock = partial(host_locked, lambda holder: say(f"waiting for {holder}"))
        walls: list[float] = []
        for number in range(done, len(order)):
            with host_lock():
                if number == done:
                    # What the first launch finds cold says nothing about its plan.
                    task.runner.measure(BARE)
                round_number, plan = order[number]
                launch = task.runner.measure(plan.configurations[0])
            write_launch(stream, header, RecordedLaunch(round_number, launch))
            os.fsync(stream.fileno())
            walls.append(launch.secondary.wall_s)
            left_s = (len(order) - number - 1) * statistics.fmean(walls)
            is_bare = launch.configuration == BARE
            changed = "bare" if is_bare else task.space.changes(launch.configuration)
            shown = launch.outcome.value if launch.value is None else f"{launch.value:g}"
            say(
                f"{number + 1} of {len(order)}: {changed or 'default'}: {shown}; {left_s:.0f} s left"
            )


def launch_order(plans: Sequence[RecordedPlan], options: Options) -> list[tuple[int, RecordedPlan]]:
    """Every launch in order: round by round, all plans once in each, drawn by the seed."""
    bare = plans[0]
    order: list[tuple[int, RecordedPlan]] = []
    for round_number in range(options.rounds):
        rest = [plan for plan in plans if plan.plan_hash is not None]
        random.Random(f"{options.seed} round {round_number}").shuffle(rest)
        for at, plan in enumerate(rest):
            if options.control_every and at % options.control_every == options.control_every - 1:
                order.append((round_number, bare))
            order.append((round_number, plan))
    return order


def say(text: str) -> None:
    print(f"record: {text}", file=sys.stderr, flush=True)


def _header(task: SearchTask, options: Options) -> Header:
    versions = {"kernel": platform.release(), "python": platform.python_version()}
    for name in ("torch", "numpy", "xlaunch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return Header(
        name=options.name,
        space=task.space,
        machine=machine_line(),
        command=task.subject.program.words,
        objective=task.objective,
        versions=tuple(sorted(versions.items())),
    )


def _plans(task: SearchTask) -> list[RecordedPlan]:
    """Return the bare command's plan, then those of the space: few changed settings first.

    The last one, without a hash, has the configurations that cannot be planned.
    """
    by_hash: dict[str | None, list[Configuration]] = {}
    by_changes = sorted(task.space, key=lambda one: len(task.space.changes(one)))
    for configuration in by_changes:
        by_hash.setdefault(task.resolver.plan_hash(configuration), []).append(configuration)
    impossible = by_hash.pop(None, [])
    plans = [RecordedPlan(plan_hash, tuple(members)) for plan_hash, members in by_hash.items()]
    plans.insert(0, RecordedPlan(task.resolver.plan_hash(BARE), (BARE,)))
    return [*plans, RecordedPlan(None, tuple(impossible))] if impossible else plans


@contextlib.contextmanager
def _opened(
    path: Path,
    header: Header,
    plans: Sequence[RecordedPlan],
    order: Sequence[tuple[int, RecordedPlan]],
) -> Iterator[tuple[TextIO, int]]:
    """The file, ready for the next launch, and how many it holds."""
    if path.suffix == ".gz":
        raise UsageError(f"{path}: a finished recording is compressed (gzip), not one being made")
    if path.exists() and path.stat().st_size:
        recording = _cut_to_whole_lines(path)
        _require_same(path, recording, header, plans, order)
        with path.open("a") as stream:
            yield stream, len(recording.launches)
    else:
        with path.open("w") as stream:
            write_header(stream, header, plans)
            yield stream, 0


def _cut_to_whole_lines(path: Path) -> Recording:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    return read_recording(path)


def _require_same(
    path: Path,
    recording: Recording,
    header: Header,
    plans: Sequence[RecordedPlan],
    order: Sequence[tuple[int, RecordedPlan]],
) -> None:
    """Raise UsageError unless the file is an earlier part of what is to be recorded."""
    theirs = recording.header
    same = (theirs.space, theirs.command, theirs.objective, theirs.machine.split(";")[0])
    wanted = (header.space, header.command, header.objective, header.machine.split(";")[0])
    if same == wanted and recording.plans != tuple(plans):
        raise UsageError(
            f"{path}: the same options make other plans now: environment variables, libraries or xlaunch"
            " have changed; give another file"
        )
    made = [(launch.round, launch.launch.plan_hash) for launch in recording.launches]
    planned = [(number, plan.plan_hash) for number, plan in order[: len(made)]]
    if same != wanted or made != planned:
        raise UsageError(
            f"{path} is a recording of something else ({theirs.name}: {' '.join(theirs.command)}, on"
            f" {theirs.machine}), or in another order; give another file, or the same options"
        )
