# SPDX-License-Identifier: Apache-2.0
"""Provenance of launches: the program's content, installed versions and variables at the time.

A change of these does not start another study, as another machine does, because it may not affect
speed. Instead, each launch is stored with its provenance, and differences are reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from xtune.launches.launch import Outcome
from xtune.space.installed import INTERPRETER, PROGRAM, SYSTEM, TUNER

if TYPE_CHECKING:
    from xtune.search.records import Record

COMPARED_OF_TUNER = ("xtune",)
"""The packages of the tuner that affect launches; the others only read results."""

DIGEST_DIGITS = 8
"""Hexadecimal digits kept of each variable: enough to notice a change, too few to guess a secret by."""


class Provenance(NamedTuple):
    """What a launch was made with, and which earlier launches did not count then."""

    content: str = ""
    """Digest of the program's file; empty if there is none or it is very large."""
    installed: Mapping[str, Mapping[str, str]] = {}
    variables: Mapping[str, str] = {}
    """Digests of the inherited variables that may change how the program computes, by name."""
    left_out: tuple[int, ...] = ()
    """Numbers of the launches that did not count in its search."""

    def differences(self, other: Provenance) -> tuple[str, ...]:
        """The differences to `other`. **Ex.:** ``torch 2.11.0 (now 2.13.0)``."""
        found = ["the program as it was before an edit"] if self.content != other.content else []
        for group in (PROGRAM, SYSTEM, TUNER):
            ours, theirs = self.installed.get(group, {}), other.installed.get(group, {})
            for name in COMPARED_OF_TUNER if group == TUNER else {**ours, **theirs}:
                before, now = ours.get(name, "none"), theirs.get(name, "none")
                if before != now and name != INTERPRETER:
                    found.append(f"{name} {before} (now {now})")
        return tuple(found)


def digests(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:DIGEST_DIGITS]
        for name, value in sorted(variables.items())
    }


def outdated(records: Sequence[Record], now: Provenance) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The numbers, from 1, of the launches with a value and another provenance, and the differences."""
    numbers: list[int] = []
    told: dict[str, None] = {}
    ended = [record for record in records if record.launch is not None]
    for number, record in enumerate(ended, start=1):
        assert record.launch is not None
        has_value = record.launch.outcome in (Outcome.MEASURED, Outcome.CUT)
        if has_value and (differences := record.made.differences(now)):
            numbers.append(number)
            told.update(dict.fromkeys(differences))
    return tuple(numbers), tuple(told)


def shown_records(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records that counted in the search of the latest launch, whatever this process inherits."""
    ended = [record for record in records if record.launch is not None]
    left_out = ended[-1].made.left_out if ended else ()
    return tuple([record for record in records if record.number not in left_out])


def changed_variables(records: Sequence[Record], now: Provenance) -> tuple[list[str], bool]:
    """Names of the variables that differ from those of these launches, and whether all have one."""
    found = [
        {name for name in {**then, **now.variables} if then.get(name) != now.variables.get(name)}
        for then in (record.made.variables for record in records)
    ]
    return sorted(set().union(*found)), all(found)
