# SPDX-License-Identifier: Apache-2.0
"""A study: all launches of one program in one space on one kind of machine, in a storage.

It is an Optuna study. Each launch is a trial, with the settings as parameters, the value, the
requirements as constraints, and everything else as attributes. A failed launch is a failed trial, a cut
one a pruned trial. Launches of the bare command are trials without parameters. The study ``NAME results``
has one trial for each configuration: see `xtune.search.results_study`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlaunch.text import printable
from xtune.errors import StudyError
from xtune.evidence.verdicts import Verdict, VerdictKind
from xtune.launches.launch import Goal, Objective
from xtune.search.damage import DAMAGE
from xtune.search.encoding import (
    PREFIX,
    Plain,
    decode_objective,
    encode_objective,
    read_compressed,
    read_value,
    write_value,
)
from xtune.search.events import Seed
from xtune.search.storage import Storage
from xtune.space.identities import MachineIdentity, ProgramIdentity
from xtune.space.parameters import BARE, Configuration, Value
from xtune.space.spaces import Space

SCHEMA_VERSION = 4
"""Of xtune's attributes; increased when a key changes its meaning or is removed."""

COMPRESSED = 3
"""The format before, whose values were compressed. Its studies are read, but not continued."""

COMPRESSED_NOTE = f"{PREFIX}note "

VERSION = f"{PREFIX}version"
SUBJECT = ("machine", "program", "space", "objective")
"""The attributes that hold the subject. The others are notes."""

RESULTS = " results"
"""What the name of the study of results adds to the study's."""

METRIC_NAMES = "study:metric_names"
"""System attribute of `optuna.Study.set_metric_names`, which warns that it is experimental."""

RESULTS_OF = f"{PREFIX}results of"
"""Attribute of a study of results: the name of the study."""


class Subject(NamedTuple):
    """The subject of a study. Launches of different subjects are never compared."""

    machine: MachineIdentity
    program: ProgramIdentity
    space: Space
    objective: Objective

    @property
    def name(self) -> str:
        """The default name of its study. **Ex.:** ``train.py 3f2a9c41``."""
        facts = [
            self.machine.fingerprint,
            self.program.command,
            self.program.place,
            self.space.name,
            encode_objective(self.objective),
            SCHEMA_VERSION,
        ]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"{printable(os.path.basename(self.program.place)) or 'program'} {digest[:8]}"

    def difference(self, other: Subject) -> str | None:
        """Why launches of `other` cannot be compared with this one's, in one line; None if they can."""
        machines = self.machine.difference(other.machine)
        if machines is not None:
            return f"it belongs to another kind of machine ({machines})"
        if not self.program.agrees(other.program):
            return f"it belongs to another program ({_words(other)}; this one is {_words(self)})"
        if self.objective != other.objective:
            return f"its objective is {_aim(other.objective)}; this one is {_aim(self.objective)}"
        if self.space.name != other.space.name:
            return f"it searches another space ({_what_differs(self.space, other.space)})"
        return None

    def to_plain(self) -> Plain:
        return {
            "machine": self.machine.to_plain(),
            "program": self.program.to_plain(),
            "space": self.space.to_plain(),
            "objective": encode_objective(self.objective),
        }

    @classmethod
    def from_plain(cls, plain: Plain) -> Subject:
        return cls(
            MachineIdentity.from_plain(plain["machine"]),
            ProgramIdentity.from_plain(plain["program"]),
            Space.from_plain(plain["space"]),
            decode_objective(plain["objective"]),
        )


class Study(NamedTuple):
    """A study in a storage."""

    storage: Storage
    id: int
    """Optuna's number of it."""
    name: str
    subject: Subject
    notes: Mapping[str, Any]
    """Further values, stored by `keep_note`. **Ex.:** ``options``, ``verdict``."""
    version: int = SCHEMA_VERSION

    def require_current(self) -> None:
        """Raise StudyError if an earlier xtune began it."""
        if self.version != SCHEMA_VERSION:
            raise StudyError(
                f"study {self.name!r} was begun by an earlier xtune: xtune report and xtune export read"
                " it, but it cannot be continued; begin another with xtune --study NAME PROGRAM"
            )

    def keep_note(self, name: str, value: Any) -> None:
        """Store a plain value with the study. Raises StorageError."""
        with self.storage.reaching(), self.storage.writing():
            write_value(self.set_attribute, name, value)

    def keep_verdict(self, verdict: Verdict) -> None:
        """Store the verdict of a search, for later searches."""
        interval = verdict.interval
        kept: Plain = {
            "kind": verdict.kind.value,
            "best": dict(verdict.best),
            "reason": verdict.reason,
        }
        if interval is not None:
            kept |= {"interval": [interval.low, interval.high], "estimate": interval.estimate}
        self.keep_note("verdict", kept)

    def set_attribute(self, key: str, value: Any) -> None:
        """Set a user attribute of the Optuna study."""
        self.storage.backend.set_study_user_attr(self.id, key, value)


def open_study(storage: Storage, subject: Subject, name: str | None = None) -> Study:
    """Open the study of a subject, or create it.

    name
        None: the study of this subject with any name.

    Raises StudyError if the study of that name has another subject or cannot be read, StorageError if
    the storage cannot be used.
    """
    with storage.reaching(), storage.writing():
        studies = _all(storage)
        if name is None:
            matching = [
                one
                for one in studies
                if one.version == SCHEMA_VERSION and subject.difference(one.subject) is None
            ]
            if matching:
                return matching[0]
            taken = {*unreadable(storage), *(one.name for one in studies)}
            further = [f"{subject.name} {number}" for number in range(2, len(taken) + 2)]
            name = next(one for one in (subject.name, *further) if one not in taken)
        _check_readable(storage, name)
        for one in studies:
            if one.name == name and (difference := subject.difference(one.subject)) is not None:
                raise StudyError(
                    f"study {name!r} cannot be continued: {difference}; leave out --study, or give"
                    " another name"
                )
            if one.name == name:
                one.require_current()
                return one
        if not name.isprintable():
            raise StudyError(f"study {name!r}: choose a name of printable characters only")
        if name.endswith(RESULTS):
            raise StudyError(
                f"study {name!r}: names that end with {RESULTS!r} are of studies of results; choose"
                " another name"
            )
        return _create(storage, subject, name)


def find_study(storage: Storage, name: str) -> Study:
    """The study of that name. Raises StudyError if there is none, with the names of the others, or
    if it has another format.
    """
    with storage.reaching():
        _check_readable(storage, name)
        studies = _all(storage)
    found = [one for one in studies if one.name == name or one.name.startswith(f"{name} ")]
    if len(found) == 1 or (found and found[0].name == name):
        return found[0]
    known = ", ".join(repr(one.name) for one in studies) or "none"
    many = "several studies are named" if found else "there is no study named"
    raise StudyError(f"{many} {name!r} in {storage.shown}; there are {known}")


def list_studies(storage: Storage) -> list[Study]:
    """The studies in a storage, the oldest first, without `unreadable` ones and other tools'."""
    with storage.reaching():
        return _all(storage)


def unreadable(storage: Storage) -> dict[str, str]:
    """The names of studies that this version of xtune cannot read, with the reasons."""
    with storage.reaching():
        studies = storage.backend.get_all_studies()
    found = {}
    for one in studies:
        version = one.user_attrs.get(VERSION, SCHEMA_VERSION)
        if version not in (SCHEMA_VERSION, COMPRESSED):
            found[one.study_name] = (
                f"has format version {version!r}; this xtune reads {COMPRESSED} and {SCHEMA_VERSION}"
            )
        elif VERSION in one.user_attrs and _subject(one.user_attrs) is None:
            found[one.study_name] = "cannot be read: its description is damaged"
    return found


def earlier_winners(storage: Storage, subject: Subject) -> list[Seed]:
    """The winners of other studies of this program on this kind of machine, as seeds for this space."""
    found = []
    for study in list_studies(storage):
        verdict = study.notes.get("verdict")
        other = study.subject
        is_other = subject.difference(other) is not None
        same = other.machine.fingerprint == subject.machine.fingerprint
        if verdict and is_other and same and subject.program.agrees(other.program):
            winner = Configuration(verdict["best"])
            if verdict["kind"] == VerdictKind.GAIN.value and winner != BARE:
                known = {
                    one.name: winner[one.name]
                    for one in subject.space.parameters
                    if winner.get(one.name) in one.values
                }
                configuration = subject.space.complete(known)
                found.append(Seed(f"winner of study {study.name!r}", configuration))
    return found


def _all(storage: Storage) -> list[Study]:
    studies = []
    for frozen in storage.backend.get_all_studies():
        version = frozen.user_attrs.get(VERSION)
        if version not in (SCHEMA_VERSION, COMPRESSED):
            continue  # another version's or tool's, or being made
        subject = _subject(frozen.user_attrs)
        if subject is None:
            continue
        study_id = storage.backend.get_study_id_from_name(frozen.study_name)
        notes = _notes(frozen.user_attrs)
        studies.append(Study(storage, study_id, frozen.study_name, subject, notes, version))
    return sorted(studies, key=lambda study: study.id)


def _subject(attributes: Mapping[str, Any]) -> Subject | None:
    """The subject of a study; None if it is damaged."""
    try:
        if attributes[VERSION] == COMPRESSED:
            return Subject.from_plain(read_compressed(attributes, "subject"))
        return Subject.from_plain({name: read_value(attributes, name) for name in SUBJECT})
    except DAMAGE:
        return None


def _notes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The notes of a study, without damaged ones."""
    notes = {}
    for name in {key.partition("#")[0] for key in attributes} - {VERSION, *SUBJECT}:
        with contextlib.suppress(*DAMAGE):
            if attributes[VERSION] != COMPRESSED:
                notes[name] = read_value(attributes, name)
            elif name.startswith(COMPRESSED_NOTE):
                note = read_compressed(attributes, name.removeprefix(PREFIX))
                notes[name.removeprefix(COMPRESSED_NOTE)] = note
    return notes


def _check_readable(storage: Storage, name: str) -> None:
    problem = unreadable(storage).get(name)
    if problem is not None:
        raise StudyError(
            f"study {name!r} in {storage.shown} {problem}; xtune --study NAME begins another"
        )


def _create(storage: Storage, subject: Subject, name: str) -> Study:
    from optuna.exceptions import DuplicatedStudyError
    from optuna.study import StudyDirection

    maximize = subject.objective.goal is Goal.MAXIMIZE
    direction = StudyDirection.MAXIMIZE if maximize else StudyDirection.MINIMIZE
    backend = storage.backend
    for other in backend.get_all_studies():
        if other.study_name == f"{name}{RESULTS}" and RESULTS_OF not in other.user_attrs:
            raise StudyError(
                f"{other.study_name!r} in {storage.shown} is a study of another tool, and xtune would show"
                f" the results of {name!r} there; choose another name"
            )
    try:
        study_id = backend.create_new_study([direction], name)
    except DuplicatedStudyError:
        # Another worker creates it now, or it belongs to another tool.
        study_id = backend.get_study_id_from_name(name)
    attributes = backend.get_study_user_attrs(study_id)
    if VERSION not in attributes and backend.get_all_trials(study_id, deepcopy=False):
        raise StudyError(
            f"{name!r} in {storage.shown} is a study of another tool; choose another name"
        )
    study = Study(storage, study_id, name, subject, {})
    for attribute, value in subject.to_plain().items():
        write_value(study.set_attribute, attribute, value)
    backend.set_study_system_attr(study_id, METRIC_NAMES, [subject.objective.metric])
    # Last, so that readers who see it see the rest.
    study.set_attribute(VERSION, SCHEMA_VERSION)
    return study


def _what_differs(own: Space, other: Space) -> str:
    """The first difference of another space from this one, in words."""
    here = {one.name: one.values for one in own.parameters}
    there = {one.name: one.values for one in other.parameters}
    for name in (*there, *here):
        if there.get(name) != here.get(name):
            return f"{name}: {_listed(there.get(name))}; this one: {_listed(here.get(name))}"
    return "its conditions or defaults are others"


def _listed(values: tuple[Value, ...] | None) -> str:
    if values is None:
        return "not searched"
    return textwrap.shorten(", ".join(map(str, values)), 80, placeholder=" ...")


def _words(subject: Subject) -> str:
    return " ".join(subject.program.words)


def _aim(objective: Objective) -> str:
    required = "".join(f", {requirement.text}" for requirement in objective.requirements)
    return f"{objective.metric} ({objective.goal.value}{required})"
