# SPDX-License-Identifier: Apache-2.0
"""The study of results: one trial for each configuration, for Optuna's dashboard and plots.

In the study of launches a lucky launch is the best trial. Here the value is the mean, the intermediate
values are the measured launches, and the attribute ``launches`` lists the numbers of the trials in the
study of launches. A finished trial cannot be changed, so a new configuration adds a trial, and a repeat
replaces the study. Nothing is read from it: what a killed worker left unfinished is completed or replaced
like anything else that is not up to date.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xtune.launches.launch import Launch, Objective, Outcome, Requirement
from xtune.launches.summaries import compared
from xtune.search.encoding import PREFIX
from xtune.search.records import Record, ended_launches
from xtune.search.study import METRIC_NAMES, RESULTS, RESULTS_OF, Study
from xtune.space.parameters import BARE, Configuration
from xtune.space.spaces import Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, TrialState

LAUNCHED_S_PER_TRIAL = 1.0
"""The study is replaced once launches have taken this long for each of its trials. Writing a trial takes
about a twentieth of it."""

MAX_ATTEMPTS = 12
"""Maximum attempts at the end of a search, while other machines write to the same study."""

MAX_NAME = 512
"""Maximum characters of an attribute's name in Optuna's tables."""

LAUNCHED_S = f"{PREFIX}launched_s"
"""Attribute with the duration of all launches when the study was replaced."""

COMPLETE = f"{PREFIX}complete"
"""Attribute that is set once all trials are written."""


class _StoredResults(NamedTuple):
    """What the study of results holds."""

    study_id: int | None
    trials: Sequence[tuple[int, ...]] = ()
    """The launches of each trial."""
    launched_s: float = 0.0
    is_complete: bool = False
    is_own: bool = True


def update_results(
    study: Study, read: Callable[[], Sequence[Record]], *, is_last: bool = False
) -> None:
    """Bring the study of results up to date with the launches that `read` returns.

    What fails is left to the next update.

    `is_last`: no launch may follow, so nothing is put off.
    """
    from optuna.exceptions import DuplicatedStudyError, StorageInternalError

    # Where no lock excludes other machines, each looks again after it has written.
    attempts = MAX_ATTEMPTS if is_last and study.storage.lock_path is None else 1
    for attempt in range(1, attempts + 1):
        began_s = time.monotonic()
        with contextlib.suppress(DuplicatedStudyError, KeyError, StorageInternalError):
            if _is_up_to_date(study, read, is_last=is_last, may_wait=attempt < attempts / 2):
                return
        if attempt < attempts:
            spent_s = time.monotonic() - began_s
            time.sleep(random.random() * attempt * spent_s)  # noqa: S311 - no secret


def _is_up_to_date(
    study: Study, read: Callable[[], Sequence[Record]], *, is_last: bool, may_wait: bool
) -> bool:
    """Write what is missing, unless that can be put off; whether nothing was.

    `may_wait`: a study that another machine is writing is left to it.
    """
    shown = _shown(study)
    groups: dict[Configuration, list[Record]] = {}
    for record in read():
        if record.launch is not None:
            groups.setdefault(record.step.configuration, []).append(record)
    wanted = {tuple([record.number for record in group]): group for group in groups.values()}
    launches = [launch for group in groups.values() for launch in ended_launches(group)]
    launched_s = sum(launch.secondary.wall_s for launch in launches)
    missing = [numbers for numbers in wanted if numbers not in shown.trials]
    is_stale = len(shown.trials) + len(missing) > len(wanted)
    if not shown.is_own or not (missing or is_stale):
        return True
    is_due = abs(launched_s - shown.launched_s) >= LAUNCHED_S_PER_TRIAL * len(wanted)
    is_written = study.storage.lock_path is None and not shown.is_complete
    if shown.study_id is not None and is_written and (may_wait or not (is_last or is_due)):
        return False
    if is_stale and not is_due and not is_last:
        return True
    backend, study_id = study.storage.uncached, shown.study_id
    if is_stale and study_id is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SQLAlchemy warns if another machine was faster
            backend.delete_study(study_id)
        shown, study_id, missing = _StoredResults(None), None, list(wanted)
    if study_id is None:
        directions = backend.get_study_directions(study.id)
        study_id = backend.create_new_study(directions, f"{study.name}{RESULTS}")
    if not shown.trials:  # it is new
        backend.set_study_user_attr(study_id, RESULTS_OF, study.name)
        backend.set_study_user_attr(study_id, LAUNCHED_S, launched_s)
        metric = study.subject.objective.metric
        backend.set_study_system_attr(study_id, METRIC_NAMES, [metric])
    for numbers in missing:
        backend.create_new_trial(study_id, template_trial=_trial(study, wanted[numbers]))
    if not shown.is_complete:
        backend.set_study_user_attr(study_id, COMPLETE, True)
    return False


def _shown(study: Study) -> _StoredResults:
    backend = study.storage.uncached
    try:
        study_id = backend.get_study_id_from_name(f"{study.name}{RESULTS}")
    except KeyError:
        return _StoredResults(None)
    attributes = backend.get_study_user_attrs(study_id)
    try:
        trials = backend.get_all_trials(study_id, deepcopy=False)
        numbers = [tuple(trial.user_attrs.get("launches", (-1,))) for trial in trials]
    except (LookupError, ValueError):  # one is damaged
        numbers = [(-1,)]
    is_own = attributes.get(RESULTS_OF) == study.name or not numbers
    launched_s = attributes.get(LAUNCHED_S, 0.0)
    return _StoredResults(study_id, numbers, launched_s, COMPLETE in attributes, is_own)


def _trial(study: Study, records: Sequence[Record]) -> FrozenTrial:
    """The trial of a configuration, from all of its launches."""
    from optuna.trial import TrialState, create_trial

    configuration = records[0].step.configuration
    objective = study.subject.objective
    launches = ended_launches(records)
    measured = [launch for launch in launches if state_of(launch, objective) is TrialState.COMPLETE]
    values = [launch.value for launch in measured if launch.value is not None]
    constraints = constraints_of(measured, objective)
    attributes: dict[str, Any] = {"launches": [record.number for record in records]}
    if configuration == BARE:
        attributes["bare"] = True
    if values:
        attributes["mean"] = statistics.fmean(values)
    if len(values) > 1:
        attributes["standard deviation"] = statistics.stdev(values)
    if ended := [launch.outcome.value for launch in launches if launch not in measured]:
        attributes["not measured"] = ended
    if broken := [text for text, excess in constraints.items() if excess > 0.0]:
        attributes["broke"] = broken
    for name, seen in _metrics(measured).items():
        attributes.setdefault(name, statistics.fmean(seen))
    # The dashboard takes the best complete trial for the best one, whatever requirements it broke.
    if values and not broken:
        state = TrialState.COMPLETE
    else:
        is_failure = {state_of(launch, objective) for launch in launches} == {TrialState.FAIL}
        state = TrialState.FAIL if is_failure else TrialState.PRUNED
    distributions = distributions_of(configuration, study.subject.space)
    return create_trial(
        state=state,
        value=attributes["mean"] if state is TrialState.COMPLETE else None,
        params={name: configuration[name] for name in distributions},
        distributions=distributions,
        user_attrs=attributes,
        system_attrs=constraint_attributes(constraints),
        intermediate_values=dict(enumerate(values, start=1)),
    )


def _metrics(launches: Sequence[Launch]) -> dict[str, list[float]]:
    """The other metrics, and what every launch used, by name."""
    values_by_name: dict[str, list[float]] = {}
    for launch in launches:
        for name, value in (*launch.metrics, *launch.secondary._asdict().items()):
            if value is not None and len(name) <= MAX_NAME:
                values_by_name.setdefault(name, []).append(value)
    return values_by_name


def state_of(launch: Launch, objective: Objective) -> TrialState:
    """The state of the trial of a finished launch."""
    from optuna.trial import TrialState

    # A rate or a duration of 0 or less cannot be compared.
    if launch.outcome is Outcome.MEASURED and compared(objective, [launch]).has_level(launch):
        return TrialState.COMPLETE
    return TrialState.PRUNED if launch.outcome is Outcome.CUT else TrialState.FAIL


def distributions_of(configuration: Configuration, space: Space) -> dict[str, BaseDistribution]:
    """The distributions of a trial's parameters; the bare command has none."""
    from optuna.distributions import CategoricalDistribution

    parameters = () if configuration == BARE else space.parameters
    return {parameter.name: CategoricalDistribution(parameter.values) for parameter in parameters}


def constraints_of(launches: Sequence[Launch], objective: Objective) -> dict[str, float]:
    """The largest violation of each requirement by measured launches; 0 or less if it is met."""
    launches = [launch for launch in launches if launch.outcome is Outcome.MEASURED]
    measured = [dict(launch.requirements) for launch in launches]
    return {
        requirement.text: max(_excess(requirement, seen.get(requirement.text)) for seen in measured)
        for requirement in objective.requirements
        if measured
    }


def constraint_attributes(excesses: Mapping[str, float]) -> dict[str, Any]:
    """The system attributes in which Optuna keeps constraints."""
    import optuna

    if excesses and int(optuna.__version__.partition(".")[0]) < 5:
        return {"constraints": list(excesses.values())}
    return {f"constraints:{name}": excess for name, excess in excesses.items()}


def _excess(requirement: Requirement, seen: float | None) -> float:
    if seen is None:
        return 1.0
    return seen - requirement.limit if requirement.at_most else requirement.limit - seen
