# SPDX-License-Identifier: Apache-2.0
"""Warnings about the launches of a study: shared CPUs, drift, hosts that differ."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xtune.evidence.drift import Control, drift_of
from xtune.evidence.ratios import has_ratio
from xtune.launches.launch import Launch, Outcome
from xtune.screen.quantities import launches, percent, spans
from xtune.search.records import Record
from xtune.space.parameters import BARE

MIN_HOST_DIFFERENCE = 0.10
"""Relative difference of the bare command between hosts from which on there is a warning."""

MIN_SHARED = 0.10
"""Share of launches with busy CPUs from which on there is a warning; the median outweighs fewer."""


class Warned(NamedTuple):
    """A warning for the reader of a verdict."""

    about: str
    """**Ex.:** ``drift``, ``disagreement``."""
    text: str


def launch_warnings(records: Sequence[Record]) -> Iterator[Warned]:
    """Warnings that follow from the launches alone."""
    yield from _shared(records)
    yield from _drift(records)


def shared_with(launch: Launch) -> str | None:
    """The note on what else used a launch's CPUs; None if nothing did."""
    return next(iter(launch.shared_cpus), None)


def _shared(records: Sequence[Record]) -> Iterator[Warned]:
    seen = [shared_with(record.launch) for record in records if record.launch is not None]
    numbers = [number for number, note in enumerate(seen, start=1) if note]
    if numbers and len(numbers) >= MIN_SHARED * len(seen):
        yield Warned(
            "others",
            f"{launches(len(numbers))} of {len(seen):,} ({spans(numbers)}) shared their CPUs with"
            f" other work; the last: {seen[numbers[-1] - 1]}",
        )


def _drift(records: Sequence[Record]) -> Iterator[Warned]:
    hosts = _bare_by_host(records)
    for number, controls in enumerate(hosts.values(), start=1):
        caution = drift_of(controls).caution
        if caution is not None:
            where = f"host {number}: " if len(hosts) > 1 else ""
            yield Warned("drift", where + caution.text)
    medians = [statistics.median(one.value for one in controls) for controls in hosts.values()]
    if len(medians) > 1 and max(medians) > (1.0 + MIN_HOST_DIFFERENCE) * min(medians):
        apart = max(medians) / min(medians) - 1.0
        yield Warned(
            "hosts",
            f"the bare command differs by {percent(apart)} between the {len(medians)} hosts of this"
            " study; values are compared within a host",
        )


def _bare_by_host(records: Sequence[Record]) -> dict[str, list[Control]]:
    found: dict[str, list[Control]] = {}
    for record in records:
        launch = record.launch
        if launch is None or launch.configuration != BARE or launch.outcome is not Outcome.MEASURED:
            continue
        if launch.value is not None and has_ratio(launch.value):
            found.setdefault(record.host, []).append(Control(launch.began_s, launch.value))
    return found
