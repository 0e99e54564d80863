# SPDX-License-Identifier: Apache-2.0
"""The searches of a study: the launches that each left out, and the variables that it inherited.

A search counts the launches that it would start in the same way. Whoever looks at the study later, in
another environment, sees those that counted in the search that made the latest launch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from xtune.search.records import Record
from xtune.search.study import Study
from xtune.search.study_store import StudyStore

_NOTE = "searches"

DIGEST_DIGITS = 8
"""Hexadecimal digits kept of each variable: enough to notice a change, too few to guess a secret by."""


class Begun(NamedTuple):
    """The beginning of a search."""

    since: int
    """Its records have this number or higher ones."""
    left_out: tuple[int, ...]
    """Numbers of the launches that do not count."""
    variables: Mapping[str, str]
    """Digests of the inherited variables, by name."""


def keep_beginning(study: Study, left_out: Sequence[int], variables: Mapping[str, str]) -> None:
    """Store the beginning of a search. Raises StorageError.

    left_out
        Numbers of the launches that do not count in it.
    variables
        The inherited variables that may change how the program computes.
    """
    numbers = [record.number for record in StudyStore(study, read_only=True).records()]
    since = max(numbers, default=-1) + 1
    now = Begun(since, tuple(left_out), _digests(variables))
    known = _kept(study)
    if not known or known[-1][1:] != now[1:]:
        study.keep_note(_NOTE, [list(one) for one in (*known, now)])


def shown_records(study: Study) -> tuple[tuple[Record, ...], int]:
    """The records that counted in the search of the latest launch, and the number of other launches.

    Nothing is changed. Raises StorageError.
    """
    records = StudyStore(study, read_only=True).records()
    last = max((record.number for record in records if record.launch is not None), default=-1)
    begun = _before(_kept(study), last)
    left_out = () if begun is None else begun.left_out
    shown = tuple([record for record in records if record.number not in left_out])
    return shown, len(records) - len(shown)


def changed_variables(
    study: Study, numbers: Collection[int], variables: Mapping[str, str]
) -> tuple[list[str], bool]:
    """Names of the variables that differ from those of these launches, and whether all have one."""
    known, now = _kept(study), _digests(variables)
    names: set[str] = set()
    all_differ = True
    for number in numbers:
        begun = _before(known, number)
        then = now if begun is None else begun.variables
        found = {name for name in {**then, **now} if then.get(name) != now.get(name)}
        all_differ &= bool(found)
        names |= found
    return sorted(names), all_differ


def _before(known: Sequence[Begun], number: int) -> Begun | None:
    """The search that made the launch of that number."""
    return next((one for one in reversed(known) if one.since <= number), None)


def _digests(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:DIGEST_DIGITS]
        for name, value in sorted(variables.items())
    }


def _kept(study: Study) -> list[Begun]:
    return [
        Begun(since, tuple(left_out), variables)
        for since, left_out, variables in study.notes.get(_NOTE) or ()
    ]
