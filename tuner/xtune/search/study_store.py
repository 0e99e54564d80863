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
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from xtune.evidence.ratios import has_ratio
from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import Objective, Requirement
from xtune.search.encoding import (
    PREFIX,
    Plain,
    decode_final_plan,
    decode_launch,
    encode_launch,
    pack,
    read_pieces,
    unpack,
    write_pieces,
)
from xtune.search.records import Record, Stage, Step
from xtune.search.study import Study
from xtune.search.workers import BEAT_S, Watch, Worker, this_worker
from xtune.space.parameters import BARE, Configuration

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STEP = f"{PREFIX}step"
WORKER = f"{PREFIX}worker"
BEAT = f"{PREFIX}beat"
CLAIMED_BY = f"{PREFIX}claimed by"
LAUNCH = "launch"
NOT_MADE = "not made"
"""Attribute with the reason why a trial has no launch."""


class StudyStore:
    """See `xtune.search.store.Store`. Raises StorageError if the storage fails."""

    def __init__(
        self,
        study: Study,
        *,
        worker: Worker | None = None,
        watch: Watch | None = None,
        beat_s: float = BEAT_S,
        plan_hash: Callable[[Configuration], str | None] | None = None,
        read_only: bool = False,
    ) -> None:
        """
        plan_hash
            The current hash of a configuration; None: every launch counts.
        read_only
            Change nothing: launches of dead workers do not count and are left unchanged.
        """
        self._study = study
        self._storage = study.storage
        self._worker = worker or this_worker()
        self._watch = watch or Watch(self._worker)
        self._beat_s = beat_s
        self._finished: dict[int, Record | None] = {}
        """By number; None for a trial that does not count."""
        self._trials: dict[int, int] = {}
        """Trial IDs of records that are under way here, by number."""
        self._beating: dict[int, threading.Event] = {}
        self._read_only = read_only
        self._token = os.urandom(8).hex()
        self._dead: list[int] = []
        """Numbers of trials whose worker is dead."""
        self._plan_hash = None if plan_hash is None else functools.cache(plan_hash)
        self.left_out: tuple[int, ...] = ()
        """Numbers of the launches that do not count because they were started in another way."""

    @property
    def host(self) -> str:
        return self._worker.host

    def records(self) -> Sequence[Record]:
        with self._storage.reaching():
            records = tuple(self._read())
            if self._dead and not self._read_only:
                with self._storage.writing():
                    self._bury_dead()
            return records

    def claim(self, step: Step) -> int | None:
        with self._storage.reaching(), self._storage.writing():
            trial_id = self._storage.backend.create_new_trial(
                self._study.id, template_trial=self._template(step)
            )
            number = self._storage.backend.get_trial(trial_id).number
            self._trials[number] = trial_id
            try:
                rows = list(self._read())
                self._bury_dead()
                owner = next(row for row in rows if _place(row.step) == _place(step))
                if owner.number != number:
                    self._fail(trial_id, "another worker has claimed it")
            except BaseException:
                del self._trials[number]
                raise
            if owner.number != number:
                del self._trials[number]
                return None
        self._beating[number] = self._begin_to_beat(trial_id)
        return number

    def finish(self, number: int, launch: Launch) -> bool:
        with self._storage.reaching(), self._storage.writing():
            kept = self._keep(self._trials[number], launch)
        self._forget(number)
        return kept

    def abandon(self, number: int, reason: str) -> None:
        try:
            with self._storage.reaching(), self._storage.writing():
                self._fail(self._trials[number], reason)
        finally:
            self._forget(number)

    # Reading.

    def _read(self) -> Iterator[Record]:
        """Yield the records that count, by number, and find dead workers."""
        self._dead = []
        keys: set[object] = set()
        trials = self._storage.backend.get_all_trials(self._study.id, deepcopy=False)
        records = [record for trial in trials if (record := self._record(trial)) is not None]
        current = self._started_as_now(records)
        counted = {one.number for one in current}
        self.left_out = tuple(
            [o.number for o in records if o.launch is not None and o.number not in counted]
        )
        for record in current:
            place = _place(record.step)
            if place not in keys:
                keys.add(place)
                yield record

    def _started_as_now(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records whose configurations would be started in the same way now."""
        plan_hash = self._plan_hash
        if plan_hash is None:
            return records
        finals = set()
        for record in records:
            if "plan" in record.step.details:
                candidates = decode_final_plan(record.step.details["plan"]).configurations
                finals.add(tuple(map(plan_hash, candidates)))
        return [
            record
            for record in records
            if record.step.plan_hash == plan_hash(record.step.configuration)
            and (
                record.step.stage is not Stage.FINAL
                or tuple(record.step.details.get("plans", ())) in finals
            )
        ]

    def _record(self, trial: FrozenTrial) -> Record | None:
        if trial.number in self._finished:
            return self._finished[trial.number]
        plain = trial.user_attrs.get(STEP)
        if plain is None:
            return None  # of another tool
        worker = Worker.from_plain(trial.user_attrs[WORKER])
        step = _decode_step(plain)
        if trial.state.is_finished():
            text = read_pieces(trial.user_attrs, LAUNCH)
            record = None
            if text is not None and NOT_MADE not in trial.user_attrs:
                record = Record(trial.number, step, worker.host, decode_launch(unpack(text)))
            self._finished[trial.number] = record
            return record
        if trial.number not in self._trials:
            beat = trial.user_attrs.get(BEAT, 0)
            # Claimed here but not under way: the storage failed during the claim.
            is_own = trial.user_attrs.get(CLAIMED_BY) == self._token
            if is_own or self._watch.is_lost(trial.number, worker, beat):
                self._dead.append(trial.number)
                return None
        return Record(trial.number, step, worker.host, None)

    def _trial_id(self, number: int) -> int:
        backend = self._storage.backend
        return backend.get_trial_id_from_study_id_trial_number(self._study.id, number)

    # Writing.

    def _template(self, step: Step) -> FrozenTrial:
        from optuna.trial import TrialState, create_trial

        attributes: Plain = {
            STEP: _encode_step(step),
            WORKER: self._worker.to_plain(),
            CLAIMED_BY: self._token,
            "stage": step.stage.value,
            "host": self._worker.name,
        }
        if step.origin:
            attributes["origin"] = step.origin
        distributions = {} if step.configuration == BARE else self._distributions()
        return create_trial(
            state=TrialState.RUNNING,
            params={name: step.configuration[name] for name in distributions},
            distributions=distributions,
            user_attrs=attributes,
        )

    def _distributions(self) -> dict[str, BaseDistribution]:
        from optuna.distributions import CategoricalDistribution

        parameters = self._study.subject.space.parameters
        return {one.name: CategoricalDistribution(one.values) for one in parameters}

    def _keep(self, trial_id: int, launch: Launch) -> bool:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        backend = self._storage.backend

        def write(key: str, value: Any) -> None:
            backend.set_trial_user_attr(trial_id, key, value)

        try:
            write("outcome", launch.outcome.value)
            for name, value in _shown(launch).items():
                write(name, value)
            for name, excesses in _constraints(launch, self._study.subject.objective).items():
                backend.set_trial_system_attr(trial_id, name, excesses)
            write_pieces(write, LAUNCH, pack(encode_launch(launch)))
            if launch.outcome is Outcome.MEASURED and has_ratio(launch.value):
                assert launch.value is not None
                backend.set_trial_state_values(trial_id, TrialState.COMPLETE, [launch.value])
            else:
                cut = launch.outcome is Outcome.CUT
                state = TrialState.PRUNED if cut else TrialState.FAIL
                backend.set_trial_state_values(trial_id, state)
        except UpdateFinishedTrialError:
            return False
        return True

    def _bury_dead(self) -> None:
        """Free the keys of launches of dead workers."""
        for number in self._dead:
            self._fail(self._trial_id(number), "its worker is dead")
        self._dead = []

    def _fail(self, trial_id: int, reason: str) -> None:
        """End a trial without a launch, unless it has ended already."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        with contextlib.suppress(UpdateFinishedTrialError):
            self._storage.backend.set_trial_user_attr(trial_id, NOT_MADE, reason)
            self._storage.backend.set_trial_state_values(trial_id, TrialState.FAIL)

    # Heartbeat.

    def _begin_to_beat(self, trial_id: int) -> threading.Event:
        stop = threading.Event()

        def beat() -> None:
            count = 0
            while not stop.wait(self._beat_s):
                count += 1
                # If the storage cannot be reached now, the next beat may succeed.
                with contextlib.suppress(Exception):
                    self._storage.backend.set_trial_user_attr(trial_id, BEAT, count)

        threading.Thread(target=beat, name="xtune beat", daemon=True).start()
        return stop

    def _forget(self, number: int) -> None:
        self._beating.pop(number).set()
        del self._trials[number]


def _place(step: Step) -> tuple[str, ...]:
    """Identifies a launch: its key, and the plans as they are started now."""
    return (step.key, step.plan_hash, *step.details.get("plans", ()))


def _encode_step(step: Step) -> Plain:
    return {
        **step._asdict(),
        "stage": step.stage.value,
        "configuration": dict(step.configuration),
        "details": dict(step.details),
    }


def _decode_step(plain: Plain) -> Step:
    return Step(
        **{
            **plain,
            "stage": Stage(plain["stage"]),
            "configuration": Configuration(plain["configuration"]),
        }
    )


def _shown(launch: Launch) -> Plain:
    """Attributes of a launch for dashboards."""
    seen = {
        "wall_s": round(launch.secondary.wall_s, 3),
        "peak_rss_bytes": launch.secondary.peak_rss_bytes,
        "exit_code": launch.exit_code,
        "notes": "; ".join((*launch.notes, *launch.shared_cpus)) or None,
        **{f"metric {name}": value for name, value in launch.metrics},
    }
    return {name: value for name, value in seen.items() if value is not None}


def _constraints(launch: Launch, objective: Objective) -> dict[str, float | list[float]]:
    """The violation of each requirement, as Optuna's constraints; 0 or less if it is met."""
    import optuna

    if launch.outcome is not Outcome.MEASURED or not objective.requirements:
        return {}
    seen = dict(launch.requirements)
    excesses = {one.text: _excess(one, seen.get(one.text)) for one in objective.requirements}
    if int(optuna.__version__.partition(".")[0]) < 5:
        return {"constraints": list(excesses.values())}
    return {f"constraints:{name}": excess for name, excess in excesses.items()}


def _excess(requirement: Requirement, seen: float | None) -> float:
    if seen is None:
        return 1.0
    return seen - requirement.limit if requirement.at_most else requirement.limit - seen
