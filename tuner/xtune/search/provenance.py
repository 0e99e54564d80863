# SPDX-License-Identifier: Apache-2.0
"""Provenance of launches: the program's content and the installed versions at the time.

A change of these does not start another study, as another machine does, because an edit may not affect
speed. Instead, each provenance is stored by host with its first launch, and differences are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from xtune.launches.launch import Outcome
from xtune.search.records import Record
from xtune.search.study import Study
from xtune.space.installed import INTERPRETER, PROGRAM, SYSTEM, TUNER, Installed

COMPARED_OF_TUNER = ("xtune",)
"""The packages of the tuner that affect launches; the others only read results."""

_NOTE = "made with on "
"""Followed by the host."""


class Provenance(NamedTuple):
    """The program's content and the installed versions."""

    content: str
    """Digest of the program's file; empty if there is none or it is very large."""
    installed: Installed

    def differences(self, other: Provenance) -> tuple[str, ...]:
        """The differences to `other`. **Ex.:** ``torch 2.11.0 (now 2.13.0)``."""
        found = ["the program as it was before an edit"] if self.content != other.content else []
        for group in (PROGRAM, SYSTEM, TUNER):
            ours, theirs = self.installed.get(group, {}), other.installed.get(group, {})
            names = COMPARED_OF_TUNER if group == TUNER else {**ours, **theirs}
            for name in names:
                if name == INTERPRETER:
                    continue
                before, now = ours.get(name, "none"), theirs.get(name, "none")
                if before != now:
                    found.append(f"{name} {before} (now {now})")
        return tuple(found)


class Made(NamedTuple):
    """Launches of a study with one provenance."""

    provenance: Provenance
    numbers: tuple[int, ...]
    """Their numbers among the ended launches, from 1."""


def keep_provenance(study: Study, host: str, records: Sequence[Record], now: Provenance) -> None:
    """Store the provenance of the launches of `host` after `records`.

    Raises StorageError.
    """
    known = _kept(study, host)
    if known and known[-1][1] == now:
        return
    since = max((record.number for record in records), default=-1) + 1
    plain = [[first, *one] for first, one in (*known, (since, now))]
    study.keep_note(f"{_NOTE}{host}", plain)


def made_with(study: Study, records: Sequence[Record]) -> tuple[Made, ...]:
    """The launches of a study by provenance, those with the latest launch last.

    Failed launches and launches without a stored provenance are left out.
    """
    known = {host: _kept(study, host) for host in {record.host for record in records}}
    ended = [record for record in records if record.launch is not None]
    found: list[tuple[Provenance, list[int]]] = []
    for number, record in enumerate(ended, start=1):
        before = [one for since, one in known[record.host] if since <= record.number]
        if not before or not _has_value(record):
            continue
        numbers = next((numbers for one, numbers in found if one == before[-1]), None)
        if numbers is None:
            found.append((before[-1], numbers := []))
        numbers.append(number)
    found.sort(key=lambda pair: pair[1][-1])
    return tuple([Made(one, tuple(numbers)) for one, numbers in found])


def outdated(made: Sequence[Made], now: Provenance) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The launches with another provenance than `now`, and the differences, each once."""
    numbers: list[int] = []
    told: dict[str, None] = {}
    for one in made:
        differences = one.provenance.differences(now)
        if differences:
            numbers += one.numbers
            told.update(dict.fromkeys(differences))
    return tuple(sorted(numbers)), tuple(told)


def _has_value(record: Record) -> bool:
    return record.launch is not None and record.launch.outcome in (Outcome.MEASURED, Outcome.CUT)


def _kept(study: Study, host: str) -> list[tuple[int, Provenance]]:
    return [_from_plain(plain) for plain in study.notes.get(f"{_NOTE}{host}") or ()]


def _from_plain(plain: Sequence[Any]) -> tuple[int, Provenance]:
    since, content, installed = plain
    return since, Provenance(content, installed)
