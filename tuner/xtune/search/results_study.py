# SPDX-License-Identifier: Apache-2.0
"""The study of results: one trial for each configuration, for Optuna's dashboard and plots.

In the study of launches a lucky launch is the best trial. Here the value is the mean, the intermediate
values are the measured launches, and the attribute ``launches`` lists the numbers of the trials in the study of
launches. A finished trial cannot be changed, so a new configuration adds a trial, and a repeat replaces the
study. Nothing is read from it, and what a killed worker left behind is replaced like anything else that is
not up to date.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xtune.evidence.ratios import has_ratio
from xtune.launches.launch import Launch, Objective, Outcome, Requirement
from xtune.search.records import Record
from xtune.search.study import METRIC_NAMES, RESULTS, RESULTS_OF, Study
from xtune.space.parameters import BARE, Configuration
from xtune.space.spaces import Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, TrialState

MAX_REPLACED_PER_LAUNCH = 5
"""The study is replaced after so many launches that this many trials are written for each."""

MAX_ATTEMPTS = 10
"""Maximum attempts while workers on other machines write to the same study."""


def update_results(
    study: Study, read: Callable[[], Sequence[Record]], *, is_last: bool = False
) -> None:
    """Bring the study of results up to date with the launches that `read` returns.

    is_last
        No launch may follow, so nothing is put off.
    """
    from optuna.exceptions import DuplicatedStudyError, StorageInternalError
    from sqlalchemy.exc import IntegrityError

    for attempt in range(MAX_ATTEMPTS):
        # Where no lock excludes other machines, each looks again after it has written: the last one sees
        # what all have written.
        try:
            if _is_up_to_date(study, read, is_last=is_last) or study.storage.lock_path is not None:
                return
        except (DuplicatedStudyError, KeyError):
            pass  # another machine replaces it now
        except StorageInternalError as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
        time.sleep(random.random() * 0.05 * attempt)  # noqa: S311 - no secret


def _is_up_to_date(study: Study, read: Callable[[], Sequence[Record]], *, is_last: bool) -> bool:
    """Write what is missing; whether nothing was."""
    backend, name = study.storage.uncached, f"{study.name}{RESULTS}"
    study_id, kept = _kept(study, name)
    groups: dict[Configuration, list[Record]] = {}
    for record in read():
        if record.launch is not None:
            groups.setdefault(record.step.configuration, []).append(record)
    wanted = {tuple([record.number for record in group]): group for group in groups.values()}
    missing = [numbers for numbers in wanted if numbers not in kept]
    if len(kept) + len(missing) > len(wanted):  # one of them is not wanted, or is there twice
        shown, current = set[int]().union(*kept), set[int]().union(*wanted)
        few = len(current - shown) * MAX_REPLACED_PER_LAUNCH < len(wanted)
        if few and shown <= current and not is_last:
            return True
        assert study_id is not None
        if backend.get_study_user_attrs(study_id).get(RESULTS_OF) != study.name:
            return True  # another tool's
        backend.delete_study(study_id)
        study_id, kept, missing = None, [], list(wanted)
    if not missing:
        return True
    if study_id is None:
        study_id = backend.create_new_study(backend.get_study_directions(study.id), name)
    if not kept:
        backend.set_study_user_attr(study_id, RESULTS_OF, study.name)
        metric = study.subject.objective.metric
        backend.set_study_system_attr(study_id, METRIC_NAMES, [metric])
    for numbers in missing:
        backend.create_new_trial(study_id, template_trial=_trial(study, wanted[numbers]))
    return False


def _kept(study: Study, name: str) -> tuple[int | None, list[tuple[int, ...]]]:
    """The ID of the study of results, and the launches of each of its trials."""
    backend = study.storage.uncached
    try:
        study_id = backend.get_study_id_from_name(name)
    except KeyError:
        return None, []
    try:
        trials = backend.get_all_trials(study_id, deepcopy=False)
    except (LookupError, ValueError):
        return study_id, [(-1,)]  # a damaged one
    return study_id, [tuple(trial.user_attrs.get("launches", (-1,))) for trial in trials]


def _trial(study: Study, records: Sequence[Record]) -> FrozenTrial:
    """The trial of a configuration, from all of its launches."""
    from optuna.trial import TrialState, create_trial

    configuration = records[0].step.configuration
    launches = [record.launch for record in records if record.launch is not None]
    measured = [one for one in launches if state_of(one) is TrialState.COMPLETE]
    values = [one.value for one in measured if one.value is not None]
    attributes: dict[str, Any] = {"launches": [record.number for record in records]}
    if configuration == BARE:
        attributes["bare"] = True
    if len(measured) < len(launches):
        attributes["failed or cut"] = [one.outcome.value for one in launches if one not in measured]
    if len(values) > 1:
        attributes["standard deviation"] = statistics.stdev(values)
    for name, seen in _metrics(measured).items():
        attributes[name] = statistics.fmean(seen)
    distributions = distributions_of(configuration, study.subject.space)
    states = {state_of(one) for one in launches}
    by_rank = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    return create_trial(
        state=next(one for one in by_rank if one in states),
        value=statistics.fmean(values) if values else None,
        params={name: configuration[name] for name in distributions},
        distributions=distributions,
        user_attrs=attributes,
        system_attrs=constraints_of(measured, study.subject.objective),
        intermediate_values=dict(enumerate(values, start=1)),
    )


def _metrics(launches: Sequence[Launch]) -> dict[str, list[float]]:
    """The other metrics, and what every launch used, by name."""
    found: dict[str, list[float]] = {}
    for launch in launches:
        for name, value in (*launch.metrics, *launch.secondary._asdict().items()):
            if value is not None:
                found.setdefault(name, []).append(value)
    return found


def state_of(launch: Launch) -> TrialState:
    """The state of the trial of a finished launch."""
    from optuna.trial import TrialState

    if launch.outcome is Outcome.MEASURED and has_ratio(launch.value):
        return TrialState.COMPLETE
    return TrialState.PRUNED if launch.outcome is Outcome.CUT else TrialState.FAIL


def distributions_of(configuration: Configuration, space: Space) -> dict[str, BaseDistribution]:
    """The distributions of a trial's parameters; the bare command has none."""
    from optuna.distributions import CategoricalDistribution

    parameters = () if configuration == BARE else space.parameters
    return {one.name: CategoricalDistribution(one.values) for one in parameters}


def constraints_of(
    launches: Sequence[Launch], objective: Objective
) -> dict[str, float | list[float]]:
    """The largest violation of each requirement, as Optuna's constraints; 0 or less if it is met."""
    import optuna

    measured = [dict(one.requirements) for one in launches if one.outcome is Outcome.MEASURED]
    if not measured or not objective.requirements:
        return {}
    excesses = {
        one.text: max(_excess(one, seen.get(one.text)) for seen in measured)
        for one in objective.requirements
    }
    if int(optuna.__version__.partition(".")[0]) < 5:
        return {"constraints": list(excesses.values())}
    return {f"constraints:{name}": excess for name, excess in excesses.items()}


def _excess(requirement: Requirement, seen: float | None) -> float:
    if seen is None:
        return 1.0
    return seen - requirement.limit if requirement.at_most else requirement.limit - seen
