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
import itertools
import json
import os
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlaunch.text import printable
from xtune.errors import StudyError
from xtune.evidence.verdicts import Verdict, VerdictKind
from xtune.launches.launch import Goal, Objective
from xtune.search.encoding import (
    DAMAGE,
    PREFIX,
    Plain,
    read_compressed_study,
    read_value,
    write_value,
)
from xtune.search.events import Seed
from xtune.search.storage import Storage
from xtune.space.identities import MachineIdentity, ProgramIdentity
from xtune.space.parameters import BARE, Configuration, Value
from xtune.space.plain_values import from_plain, to_plain
from xtune.space.spaces import Space

SCHEMA_VERSION = 4
"""Of xtune's attributes; increased when a key changes its meaning or is removed."""

COMPRESSED = 3
"""The format before, whose values were compressed. Its studies are read, but not continued."""

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
            _plain_objective(self.objective),
            SCHEMA_VERSION,
        ]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"{printable(os.path.basename(self.program.place)) or 'program'} {digest[:8]}"

    def difference(self, other: Subject) -> str | None:
        """Why launches of `other` cannot be compared with this one's, in one line; None if they can."""
        if (machines := self.machine.difference(other.machine)) is not None:
            return f"it belongs to another kind of machine ({machines})"
        if not self.program.agrees(other.program):
            there, here = (" ".join(subject.program.words) for subject in (other, self))
            return f"it belongs to another program ({there}; this one is {here})"
        if self.objective != other.objective:
            return f"its objective is {_aim(other.objective)}; this one is {_aim(self.objective)}"
        if self.space.name != other.space.name:
            return f"it searches another space ({_what_differs(self.space, other.space)})"
        return None

    def to_plain(self) -> Plain:
        return {
            "machine": dict(self.machine.facts),
            "program": to_plain(self.program),
            "space": self.space.to_plain(),
            "objective": _plain_objective(self.objective),
        }

    @classmethod
    def from_plain(cls, plain: Plain) -> Subject:
        return cls(
            from_plain(MachineIdentity, {"facts": plain["machine"]}),
            from_plain(ProgramIdentity, plain["program"]),
            Space.from_plain(plain["space"]),
            from_plain(Objective, plain["objective"]),
        )


class Study(NamedTuple):
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
        kept: Plain = {
            "kind": verdict.kind.value,
            "best": dict(verdict.best),
            "reason": verdict.reason,
        }
        if (interval := verdict.interval) is not None:
            low, high, estimate = map(
                interval.in_values, (interval.low, interval.high, interval.estimate)
            )
            kept |= {"interval": [low, high], "estimate": estimate}
        self.keep_note("verdict", kept)

    def set_attribute(self, key: str, value: Any) -> None:
        """Set a user attribute of the Optuna study."""
        self.storage.backend.set_study_user_attr(self.id, key, value)


def open_study(storage: Storage, subject: Subject, name: str | None = None) -> Study:
    """Open the study of a subject, or create it.

    `name`: None: the study of this subject with any name.

    Raises StudyError if the study of that name has another subject or cannot be read, StorageError if
    the storage cannot be used.
    """
    with storage.reaching(), storage.writing():
        studies, problems = _read(storage)
        if name is None:
            for study in studies:
                if study.version == SCHEMA_VERSION and subject.difference(study.subject) is None:
                    return study
            taken = {*problems, *(study.name for study in studies)}
            further = (f"{subject.name} {number}" for number in itertools.count(2))
            names = itertools.chain([subject.name], further)
            return _create(storage, subject, next(name for name in names if name not in taken))
        _refuse_unreadable(storage, name, problems)
        stored = next((study for study in studies if study.name == name), None)
        if stored is None:
            return _create(storage, subject, name)
        if (difference := subject.difference(stored.subject)) is not None:
            raise StudyError(
                f"study {name!r} cannot be continued: {difference}; leave out --study, or give another"
                " name"
            )
        stored.require_current()
        return stored


def find_study(storage: Storage, name: str) -> Study:
    """The study of that name, or with that beginning. Raises StudyError, with the names of the others."""
    studies, problems = list_studies(storage)
    _refuse_unreadable(storage, name, problems)
    named = [study for study in studies if study.name == name or study.name.startswith(f"{name} ")]
    named.sort(key=lambda one: one.name != name)
    if named and (len(named) == 1 or named[0].name == name):
        return named[0]
    names = ", ".join(repr(study.name) for study in studies) or "none"
    many = "several studies are named" if named else "there is no study named"
    raise StudyError(f"{many} {name!r} in {storage.shown}; there are {names}")


def list_studies(storage: Storage) -> tuple[list[Study], dict[str, str]]:
    """The studies of xtune in a storage, the oldest first, and why others cannot be read, by name."""
    with storage.reaching():
        return _read(storage)


def earlier_winners(storage: Storage, subject: Subject) -> list[Seed]:
    """The winners of other studies of this program on this kind of machine, as seeds for this space."""
    seeds = []
    for study in list_studies(storage)[0]:
        verdict, other = study.notes.get("verdict"), study.subject
        if not verdict or verdict["kind"] != VerdictKind.GAIN.value:
            continue
        winner = Configuration(verdict["best"])
        same = other.machine.fingerprint == subject.machine.fingerprint
        is_ours = same and subject.program.agrees(other.program)
        if is_ours and winner != BARE and subject.difference(other) is not None:
            values = {parameter.name: parameter.values for parameter in subject.space.parameters}
            settings = {name: one for name, one in winner.items() if one in values.get(name, ())}
            seed = subject.space.complete(settings)
            seeds.append(Seed(f"winner of study {study.name!r}", seed))
    return seeds


def _read(storage: Storage) -> tuple[list[Study], dict[str, str]]:
    studies, problems = [], {}
    for frozen in storage.backend.get_all_studies():
        name, attributes = frozen.study_name, frozen.user_attrs
        version = attributes.get(VERSION)
        if VERSION not in attributes:
            continue  # another tool's, or being made
        if version not in (SCHEMA_VERSION, COMPRESSED):
            readable = f"this xtune reads {COMPRESSED} and {SCHEMA_VERSION}"
            problems[name] = f"has format version {version!r}; {readable}"
            continue
        try:
            if version == COMPRESSED:
                attributes = read_compressed_study(attributes)
            plain = {part: read_value(attributes, part) for part in SUBJECT}
            subject = Subject.from_plain(plain)
        except DAMAGE:
            problems[name] = "cannot be read: its description is damaged"
            continue
        notes = {}
        for key in {key.partition("#")[0] for key in attributes} - {VERSION, *SUBJECT}:
            with contextlib.suppress(*DAMAGE):
                notes[key] = read_value(attributes, key)
        study_id = storage.backend.get_study_id_from_name(name)
        studies.append(Study(storage, study_id, name, subject, notes, version))
    return sorted(studies, key=lambda study: study.id), problems


def _refuse_unreadable(storage: Storage, name: str, problems: Mapping[str, str]) -> None:
    if name in problems:
        raise StudyError(
            f"study {name!r} in {storage.shown} {problems[name]}; xtune --study NAME begins another"
        )


def _create(storage: Storage, subject: Subject, name: str) -> Study:
    from optuna.exceptions import DuplicatedStudyError
    from optuna.study import StudyDirection

    if not name.isprintable():
        raise StudyError(f"study {name!r}: choose a name of printable characters only")
    if name.endswith(RESULTS):
        raise StudyError(
            f"study {name!r}: names that end with {RESULTS!r} are of studies of results; choose another"
            " name"
        )
    backend = storage.backend
    for other in backend.get_all_studies():
        if other.study_name == f"{name}{RESULTS}" and RESULTS_OF not in other.user_attrs:
            raise StudyError(
                f"{other.study_name!r} in {storage.shown} is a study of another tool, and xtune would show"
                f" the results of {name!r} there; choose another name"
            )
    maximize = subject.objective.goal is Goal.MAXIMIZE
    direction = StudyDirection.MAXIMIZE if maximize else StudyDirection.MINIMIZE
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


def _plain_objective(objective: Objective) -> Plain:
    """Without the step, which follows from the launches."""
    plain: Plain = to_plain(objective)
    del plain["step"]
    return plain


def _what_differs(own: Space, other: Space) -> str:
    """The first difference of another space from this one, in words."""
    here, there = (
        {parameter.name: parameter.values for parameter in space.parameters}
        for space in (own, other)
    )
    for name in (*there, *here):
        if there.get(name) != here.get(name):
            return f"{name}: {_listed(there.get(name))}; this one: {_listed(here.get(name))}"
    return "its conditions or defaults are others"


def _listed(values: tuple[Value, ...] | None) -> str:
    text = "not searched" if values is None else ", ".join(map(str, values))
    return textwrap.shorten(text, 80, placeholder=" ...")


def _aim(objective: Objective) -> str:
    required = "".join(f", {requirement.text}" for requirement in objective.requirements)
    return f"{objective.metric} ({objective.goal.value}{required})"
