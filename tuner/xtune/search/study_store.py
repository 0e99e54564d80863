# SPDX-License-Identifier: Apache-2.0
"""A study as the store of a search: shared by workers, each launch made once, none lost.

A claim is a running trial, created in one step with the key of its launch. If two workers create one
with the same key, the lower number wins and the other withdraws before launching: a worker reads after
writing, so it sees every trial with a lower number. A result is stored by changing the trial to a
finished state, which Optuna allows once. A trial whose worker is dead becomes a failed one without a
launch, and its key is free again.

A launch counts as long as its configuration would still be started in the same way. With other CPUs,
another interpreter, other variables or libraries it is another plan, and is left out. The launches of a
final count all or not at all.

A damaged launch is left out, and stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from xtune.errors import StorageError
from xtune.launches.launch import Launch
from xtune.search.encoding import (
    DAMAGE,
    PREFIX,
    Plain,
    check_details,
    check_numbers,
    damage_text,
    decode_result,
    encode_claim,
    encode_result,
    read_compressed_trial,
    read_values,
    write_value,
)
from xtune.search.records import NextLaunch, Provenance, Record
from xtune.search.results_study import (
    constraint_attributes,
    constraints_of,
    distributions_of,
    state_of,
    update_results,
)
from xtune.search.study import SCHEMA_VERSION, Study
from xtune.search.workers import BEAT_S, SearchWorker, Watch, this_worker
from xtune.space.parameters import BARE, Configuration
from xtune.space.plain_values import from_plain, to_plain

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BEAT = f"{PREFIX}beat"
"""System attribute: the counter of `xtune.search.workers`."""

OWN = frozenset({"key", "worker", f"{PREFIX}claim", f"{PREFIX}launch#0"})
"""A trial with none of these attributes belongs to another tool."""

NOT_MADE = "not made"
"""Attribute with the reason why a trial has no launch."""


@dataclass(eq=False)
class StudyStore:
    """The records of a study, which several workers may share. Raises StorageError if the storage fails."""

    study: Study
    _: KW_ONLY
    worker: SearchWorker = field(default_factory=this_worker)
    watch: Watch | None = None
    beat_s: float = BEAT_S
    plan_hash: Callable[[Configuration], str | None] | None = None
    """The current hash of a configuration; None: every launch counts."""
    made: Provenance = field(default_factory=Provenance)
    """The provenance of the launches that will be claimed; it may be changed."""
    left_out: tuple[Record, ...] = ()
    """The launches that do not count because they were started in another way."""
    damaged: dict[int, str] = field(default_factory=dict)
    """The damage of the trials whose launches cannot be read, by number."""

    def __post_init__(self) -> None:
        self._storage = self.study.storage
        self._watch = self.watch or Watch(self.worker)
        self._plan_hash = None if self.plan_hash is None else functools.cache(self.plan_hash)
        self._finished: dict[int, Record | None] = {}
        """By number; None for a trial that does not count."""
        self._claimed: dict[int, tuple[int, threading.Event]] = {}
        """Trial IDs of records that are under way here, by number, and what ends their heartbeat."""
        self._token = os.urandom(8).hex()

    @property
    def host(self) -> str:
        return self.worker.host

    def records(self) -> Sequence[Record]:
        """All records that count, by number: finished launches, and those under way whose worker lives."""
        with self._storage.reaching():
            return tuple(self._read()[0])

    def claim(self, step: NextLaunch) -> int | None:
        """The number of the new record; None if another worker has its key."""
        backend = self._storage.backend
        with self._storage.reaching(), self._storage.writing():
            trial_id = backend.create_new_trial(self.study.id, template_trial=self._template(step))
            number = backend.get_trial(trial_id).number
            self._claimed[number] = trial_id, threading.Event()
            is_first = False
            try:
                records, dead = self._read()
                for one in dead:
                    dead_id = backend.get_trial_id_from_study_id_trial_number(self.study.id, one)
                    self._fail(dead_id, "its worker is dead")
                owner = next(record for record in records if _place(record.step) == _place(step))
                is_first = owner.number == number
                if not is_first:
                    self._fail(trial_id, "another worker has claimed it")
                    return None
            finally:
                if not is_first:
                    del self._claimed[number]
        threading.Thread(target=self._beat, args=self._claimed[number], daemon=True).start()
        return number

    def finish(self, number: int, launch: Launch) -> bool:
        """Store the result. False: another worker considered the launch lost; nothing is stored."""
        with self._storage.reaching(), self._storage.writing():
            kept = self._keep(self._claimed[number][0], launch)
        self._claimed.pop(number)[1].set()
        with contextlib.suppress(StorageError):  # the next access reports it
            self.update_results()
        return kept

    def update_results(self, *, is_last: bool = False) -> None:
        """Bring the study of results up to date; `is_last`: whatever that costs."""
        with self._storage.reaching(), self._storage.writing():
            update_results(self.study, lambda: self._read()[0], is_last=is_last)

    def abandon(self, number: int, reason: str) -> None:
        """Withdraw a launch that was not finished; it does not count."""
        trial_id, end = self._claimed[number]
        try:
            with self._storage.reaching(), self._storage.writing():
                self._fail(trial_id, reason)
        finally:
            del self._claimed[number]
            end.set()

    # Reading.

    def _read(self) -> tuple[Sequence[Record], list[int]]:
        """The records that count, by number, and the numbers of those whose worker is dead."""
        dead: list[int] = []
        trial_records = [self._record(trial, dead) for trial in self._trials()]
        records = [record for record in trial_records if record is not None]
        counted: dict[tuple[str, ...], Record] = {}
        left_out: list[Record] = []
        starts_as_now = self._starts_as_now(records)
        for record in records:
            if starts_as_now(record.step):
                counted.setdefault(_place(record.step), record)
            elif record.launch is not None:
                left_out.append(record)
        self.left_out = tuple(left_out)
        return list(counted.values()), dead

    def _starts_as_now(self, records: Sequence[Record]) -> Callable[[NextLaunch], bool]:
        """Whether the configurations of a step would be started in the same way now."""
        plan_hash = self._plan_hash
        if plan_hash is None:
            return lambda step: True
        finals = {
            tuple(map(plan_hash, record.step.details.plan.configurations))
            for record in records
            if record.step.details is not None
        }
        return lambda step: (
            step.plan_hash == plan_hash(step.configuration)
            and (step.details is None or step.details.plans in finals)
        )

    def _trials(self) -> Iterator[FrozenTrial]:
        backend = self._storage.backend
        try:
            yield from backend.get_all_trials(self.study.id, deepcopy=False)
            return
        except (ValueError, LookupError):
            pass  # one is damaged: Optuna returns all of them or none
        for number in itertools.count():
            try:
                trial_id = backend.get_trial_id_from_study_id_trial_number(self.study.id, number)
            except KeyError:
                return
            try:
                yield backend.get_trial(trial_id)
            except (ValueError, LookupError) as error:
                self.damaged[number] = damage_text(error)

    def _record(self, trial: FrozenTrial, dead: list[int]) -> Record | None:
        number, is_finished = trial.number, trial.state.is_finished()
        if number in self._finished:
            return self._finished[number]
        if OWN.isdisjoint(trial.user_attrs):
            return None
        record = None
        if not (is_finished and NOT_MADE in trial.user_attrs):
            try:
                worker, token, record = self._decoded(trial)
            except DAMAGE as error:
                self.damaged[number] = damage_text(error)
                return None
        if is_finished:
            self._finished[number] = record
        elif number not in self._claimed:
            # With this token the storage failed during the claim.
            beat = trial.system_attrs.get(BEAT, 0)
            if token == self._token or self._watch.is_lost(number, worker, beat):
                dead.append(number)
                return None
        return record

    def _decoded(self, trial: FrozenTrial) -> tuple[SearchWorker, object, Record]:
        """The worker of a trial, its token and the record. Raises one of `DAMAGE`."""
        is_current = self.study.version == SCHEMA_VERSION
        plain = (read_values if is_current else read_compressed_trial)(trial.user_attrs)
        worker = from_plain(SearchWorker, plain["worker"])
        provenance = from_plain(Provenance, plain["made"])
        step, launch = from_plain(NextLaunch, {**plain, "configuration": {}}), None
        configuration = BARE if plain.get("bare") else Configuration(trial.params)
        step = step._replace(configuration=configuration)
        for detail in check_details(step):
            if detail != BARE and detail not in self.study.subject.space:
                raise ValueError(f"{detail!r} is outside the space of the study")
        if trial.state.is_finished():
            launch = decode_result({"value": trial.value} | plain, step)
            check_numbers(step, launch)
            objective = self.study.subject.objective
            # An earlier xtune kept a launch as failed if its value was 0 or less.
            has_ratio = trial.state.name != "FAIL" or launch.value is None or launch.value > 0
            if trial.state is not state_of(launch, objective) and has_ratio:
                raise ValueError(
                    f"its state is {trial.state.name}, its outcome {launch.outcome.value}, its value"
                    f" {launch.value}"
                )
        return (
            worker,
            plain.get("token"),
            Record(trial.number, step, worker.host, launch, provenance),
        )

    # Writing.

    def _template(self, step: NextLaunch) -> FrozenTrial:
        from optuna.trial import TrialState, create_trial

        plain: Plain = {
            **encode_claim(step),
            **({"bare": True} if step.configuration == BARE else {}),
            "host": self.worker.name,
            "worker": to_plain(self.worker),
            "made": to_plain(self.made),
            "token": self._token,
        }
        attributes: Plain = {}
        for name, value in plain.items():
            write_value(attributes.__setitem__, name, value)
        distributions = distributions_of(step.configuration, self.study.subject.space)
        return create_trial(
            state=TrialState.RUNNING,
            params={name: step.configuration[name] for name in distributions},
            distributions=distributions,
            user_attrs=attributes,
        )

    def _keep(self, trial_id: int, launch: Launch) -> bool:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        objective = self.study.subject.objective
        backend, state = self._storage.backend, state_of(launch, objective)
        plain = encode_result(launch)
        # The value of a complete trial is Optuna's.
        value = [plain.pop("value")] if state is TrialState.COMPLETE else None
        excesses = constraints_of([launch], objective)
        constraints = constraint_attributes(excesses)
        try:
            for name, one in plain.items():
                write_value(partial(backend.set_trial_user_attr, trial_id), name, one)
            for name, excess in constraints.items():
                backend.set_trial_system_attr(trial_id, name, excess)
            backend.set_trial_state_values(trial_id, state, value)
        except UpdateFinishedTrialError:
            return False
        return True

    def _fail(self, trial_id: int, reason: str) -> None:
        """End a trial without a launch, unless it has ended already."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        with contextlib.suppress(UpdateFinishedTrialError):
            self._storage.backend.set_trial_user_attr(trial_id, NOT_MADE, reason)
            self._storage.backend.set_trial_state_values(trial_id, TrialState.FAIL)

    def _beat(self, trial_id: int, end: threading.Event) -> None:
        count = 0
        while not end.wait(self.beat_s):
            count += 1
            # If the storage cannot be reached now, the next beat may succeed.
            with contextlib.suppress(Exception):
                self._storage.backend.set_trial_system_attr(trial_id, BEAT, count)


def _place(step: NextLaunch) -> tuple[str, ...]:
    """Identifies a launch: its key, and the plans as they are started now."""
    return (step.key, step.plan_hash, *(() if step.details is None else step.details.plans))
