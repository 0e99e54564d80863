# SPDX-License-Identifier: Apache-2.0
"""What to know of a study's launches, whatever they found: that the machine drifted, or was shared."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xlaunch.report.occupancy import tells_of_others
from xtune.evidence.drift import Control, drift_of
from xtune.evidence.ratios import has_ratio
from xtune.measurement.launches import Launch, Outcome
from xtune.screen.words import launches, spans
from xtune.search.records import Record
from xtune.space.parameters import BARE

HOSTS_DIFFER = 0.10
"""Hosts of one study are said to differ where their bare commands do by more than this."""

SHARED = 0.10
"""Of the launches, that were made beside others' work: fewer are outweighed by the rest."""


class Warned(NamedTuple):
    """One thing to know."""

    about: str
    """**Ex.:** ``drift``, ``disagreement``."""
    text: str


def launch_warnings(records: Sequence[Record]) -> Iterator[Warned]:
    """What the launches alone tell."""
    yield from _shared(records)
    yield from _drift(records)


def shared_with(launch: Launch) -> str | None:
    """What kept a launch's CPUs busy besides; None where nothing was seen to."""
    return next(filter(tells_of_others, launch.notes), None)


def _shared(records: Sequence[Record]) -> Iterator[Warned]:
    seen = [shared_with(record.launch) for record in records if record.launch is not None]
    numbers = [number for number, told in enumerate(seen, start=1) if told]
    if numbers and len(numbers) >= SHARED * len(seen):
        yield Warned(
            "others",
            f"{launches(len(numbers))} of {len(seen)} ({spans(numbers)}) did not have the CPUs to"
            f" themselves; of the last: {seen[numbers[-1] - 1]}",
        )


def _drift(records: Sequence[Record]) -> Iterator[Warned]:
    hosts = _bare_by_host(records)
    for number, controls in enumerate(hosts.values(), start=1):
        caution = drift_of(controls).caution
        if caution is not None:
            where = f"host {number}: " if len(hosts) > 1 else ""
            yield Warned("drift", where + caution.text)
    medians = [statistics.median(one.value for one in controls) for controls in hosts.values()]
    if len(medians) > 1 and max(medians) > (1.0 + HOSTS_DIFFER) * min(medians):
        apart = max(medians) / min(medians) - 1.0
        yield Warned(
            "hosts",
            f"the bare command differs by {apart:.0%} between the {len(medians)} hosts of this"
            " study; values are compared with those of their own host",
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
