# SPDX-License-Identifier: Apache-2.0
"""The study of results: one trial for each configuration, kept up to date by any number of workers."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
from importlib.util import find_spec
from pathlib import Path

import optuna
import pytest
from tests.tiers import quick_first
from tests.tuner.conftest import Needs
from tests.tuner.search.scripted import SPACE
from tests.tuner.search.studies import SUBJECT, search, worker
from tests.tuner.search.test_study import again, launch, step
from tests.tuner.search.test_workers import complete
from tests.tuner.search.test_workers import worker as started_worker

from xtune.errors import StudyError
from xtune.launches.launch import Goal, Launch, Objective, Outcome, Requirement, Secondary
from xtune.search.results_study import LAUNCHED_S_PER_TRIAL
from xtune.search.storage import Storage, open_storage
from xtune.search.study import Subject, open_study
from xtune.search.study_store import StudyStore
from xtune.search.workers import this_worker
from xtune.space.parameters import BARE, Configuration

BOUND = Requirement("rss<=8", "rss", True, 8.0)
BOUNDED = SUBJECT._replace(objective=Objective("items/s", Goal.MAXIMIZE, (BOUND,)))
FAST, FASTER = SPACE.complete({"batch": 8}), SPACE.complete({"batch": 16})


@pytest.fixture(params=["studies.db", "studies.journal"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / request.param))


def seen(value: float | None, rss: float = 7.0, **fields: object) -> Launch:
    return launch(value, requirements=((BOUND.text, rss),), **fields)


def add(store: StudyStore, *rows: tuple[Configuration, Launch]) -> None:
    for configuration, result in rows:
        number = store.claim(step(len(store.records()), configuration))
        assert number is not None
        assert store.finish(number, result)


def loaded(storage: Storage, name: str) -> optuna.Study:
    """A study as another process sees it through Optuna alone."""
    return optuna.load_study(study_name=name, storage=again(storage).backend)


def results_names(storage: Storage) -> list[str]:
    names = [one.study_name for one in again(storage).backend.get_all_studies()]
    return [name for name in names if name.endswith(" results")]


def shown(storage: Storage, name: str = "mine results") -> list[tuple[int, ...]]:
    return [tuple(trial.user_attrs["launches"]) for trial in loaded(storage, name).trials]


def store_of(storage: Storage, subject: Subject = SUBJECT, host: str | None = None) -> StudyStore:
    study = open_study(storage, subject, "mine")
    return StudyStore(study, worker=this_worker() if host is None else worker(host))


def test_optuna_shows_one_trial_for_each_configuration(storage: Storage) -> None:
    store = store_of(storage, BOUNDED)
    add(
        store,
        (BARE, seen(1.0)),
        (SPACE.default, seen(2.0, metrics=(("loss", 0.5),), secondary=Secondary(3.0))),
        (FAST, seen(9.0)),  # luck
        (FASTER, seen(50.0, rss=9.0)),
        (SPACE.default, seen(4.0, metrics=(("loss", 0.7),), secondary=Secondary(5.0))),
        (FAST, seen(1.0)),
        (FAST, seen(None, exit_code=1)),
        (SPACE.complete({"thp": "never"}), seen(None, outcome=Outcome.CUT)),
        (SPACE.complete({"thp": "always"}), seen(None)),
        (BARE, seen(1.5)),
        (SPACE.default, seen(9.0)),
    )
    store.update_results(is_last=True)
    log, results = loaded(storage, "mine"), loaded(storage, "mine results")
    assert log.best_value == 9.0, "what breaks a requirement is never best"
    states = ["FAIL", "PRUNED", "FAIL"]
    assert [one.state.name for one in log.trials[6:9]] == states
    assert [one.state.name for one in (*log.trials[:6], *log.trials[9:])] == ["COMPLETE"] * 8
    assert (log.trials[0].params, log.trials[2].params) == ({}, dict(FAST))
    assert log.trials[3].constraints == {BOUND.text: 1.0}
    assert log.trials[6].user_attrs["outcome"] == "crashed"
    assert results.best_trial.params == dict(SPACE.default)
    assert results.best_value == statistics.fmean([2.0, 4.0, 9.0])
    assert results.best_trial.intermediate_values == {1: 2.0, 2: 4.0, 3: 9.0}
    assert results.metric_names == log.metric_names == ["items/s"]
    bare, default, fast, faster, cut, failed = results.trials
    assert (bare.params, bare.value, bare.user_attrs["bare"]) == ({}, 1.25, True)
    assert default.user_attrs["launches"] == [1, 4, 10]
    assert default.user_attrs["loss"] == pytest.approx(0.6)
    assert default.user_attrs["wall_s"] == pytest.approx(8.0 / 3)
    assert (fast.value, fast.user_attrs["not measured"]) == (5.0, ["crashed"])
    assert fast.user_attrs["standard deviation"] == statistics.stdev([9.0, 1.0])
    # Neither Optuna nor its dashboard, which does not look at constraints, may call it the best.
    assert (faster.state.name, faster.user_attrs["mean"]) == ("PRUNED", 50.0)
    assert faster.user_attrs["broke"] == [BOUND.text]
    assert faster.constraints == {BOUND.text: 1.0}
    backend = again(storage).backend
    study_id = backend.get_study_id_from_name("mine results")
    assert backend.get_best_trial(study_id).params == dict(SPACE.default)
    assert (cut.state.name, failed.state.name) == ("PRUNED", "FAIL")


def test_the_plots_of_optuna_draw_it(tmp_path: Path, needs: Needs) -> None:
    needs(find_spec("plotly"), "plotly (plotly)")
    url = open_storage(str(tmp_path / "studies.journal")).shown
    search(url, tmp_path, 30, 1)
    (name,) = results_names(open_storage(url))
    study = loaded(open_storage(url), name)
    plots = optuna.visualization
    history = plots.plot_optimization_history(study)
    measured = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert list(history.data[0].y) == [trial.value for trial in measured]
    repeats = plots.plot_intermediate_values(study)
    assert sorted(len(line.y) for line in repeats.data if line.y) == sorted(
        len(trial.intermediate_values) for trial in study.trials if trial.intermediate_values
    )
    slices = plots.plot_slice(study).data
    configurations = [trial for trial in measured if trial.params]
    assert [len(one.y) for one in slices] == [len(configurations)] * len(SPACE.default)


def test_each_launch_can_be_read_with_optuna_alone(storage: Storage) -> None:
    add(store_of(storage), (FAST, launch(2.0, metrics=(("loss", 0.5),), stderr_tail="a\nb")))
    (trial,) = loaded(storage, "mine").trials
    told = {
        name: value for name, value in trial.user_attrs.items() if name not in ("token", "made")
    }
    assert told.pop("worker")["pid"]
    assert told.pop("host")
    assert told == {
        "stage": "search",
        "key": "search 0",
        "plan_hash": repr(FAST),
        "outcome": "measured",
        "began_s": 12.5,
        "secondary": {"wall_s": 0.0},
        "steadiness": "too few values",
        "metrics": {"loss": 0.5},
        "stderr_tail": ["a", "b"],
    }
    assert (trial.params, trial.value) == (dict(FAST), 2.0)
    study = loaded(storage, "mine")
    assert study.user_attrs["program"]["words"] == list(SUBJECT.program.words)
    assert [one["name"] for one in study.user_attrs["space"]["parameters"]] == list(SPACE.default)


def test_a_repeat_replaces_it_and_much_at_once_is_put_off(storage: Storage) -> None:
    others = list(itertools.islice(SPACE, 6))
    took = Secondary(len(others) / 3 * LAUNCHED_S_PER_TRIAL)
    store = store_of(storage)
    add(store, *[(one, launch(2.0)) for one in others])
    assert shown(storage) == [(number,) for number in range(len(others))]
    first = len(others)
    for number in range(2):
        add(store, (others[number], launch(3.0, secondary=took)))
        assert shown(storage)[number] == (number,), "all trials would be written for one launch"
    add(store, (others[2], launch(3.0, secondary=took)))
    assert shown(storage)[:3] == [(number, first + number) for number in range(3)]
    add(store, (others[3], launch(3.0, secondary=took)))
    assert shown(storage)[3] == (3,)
    store.update_results(is_last=True)
    assert shown(storage)[3] == (3, first + 3)
    assert len(shown(storage)) == len(others)


@pytest.mark.parametrize("trials", quick_first((1, 0, 2)))
def test_what_a_killed_worker_left_behind_is_completed(
    storage: Storage, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(storage)
    add(store, (BARE, launch(1.0)), (SPACE.default, launch(2.0)), (FAST, launch(3.0)))
    written = itertools.count()
    real = storage.uncached.create_new_trial

    def killed(*words: object, **named: object) -> int:
        if next(written) == trials:
            raise SystemExit
        return real(*words, **named)  # type: ignore[arg-type]

    number = store.claim(step(3, FAST))
    took = Secondary(3 * LAUNCHED_S_PER_TRIAL)
    with monkeypatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(storage.uncached, "create_new_trial", killed)
        store.finish(number, launch(5.0, secondary=took))
    assert len(shown(storage)) == trials
    store_of(again(storage)).update_results(is_last=True)
    assert shown(storage) == [(0,), (1,), (2, 3)]
    assert len(store_of(again(storage)).records()) == 4


def test_one_that_was_only_created_is_completed(storage: Storage) -> None:
    store = store_of(storage)
    storage.uncached.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "mine results")
    add(store, (BARE, launch(1.0)))
    store.update_results(is_last=True)
    add(store, (BARE, launch(1.0)))
    store.update_results(is_last=True)
    assert shown(storage) == [(0, 1)]


def test_a_study_of_another_tool_is_not_replaced(storage: Storage) -> None:
    theirs = optuna.create_study(storage=storage.backend, study_name="mine results")
    with pytest.raises(StudyError, match=r"'mine results' in .* is a study of another tool"):
        open_study(storage, SUBJECT, "mine")
    with pytest.raises(StudyError, match="names that end with ' results'"):
        open_study(storage, SUBJECT, "mine results")
    optuna.delete_study(study_name="mine results", storage=storage.backend)
    store = store_of(storage)
    theirs = optuna.create_study(storage=storage.backend, study_name="mine results")
    theirs.add_trial(optuna.trial.create_trial(value=1.0))
    add(store, (BARE, launch(1.0)))
    assert [trial.value for trial in loaded(storage, "mine results").trials] == [1.0]


def test_a_deleted_one_is_made_again(storage: Storage) -> None:
    store = store_of(storage)
    add(store, (BARE, launch(1.0)), (FAST, launch(2.0)))
    optuna.delete_study(study_name="mine results", storage=again(storage).backend)
    add(store, (BARE, launch(1.0)))
    assert shown(storage) == [(0, 2), (1,)]


def test_workers_of_two_machines_agree(tmp_path: Path) -> None:
    """Both repeat the same configurations at the same time, with no lock between them."""
    url = open_storage(str(tmp_path / "studies.journal")).shown
    store_of(open_storage(url))
    configurations = list(itertools.islice(SPACE, 4))
    barrier = threading.Barrier(2)

    def work(host: str) -> None:
        store = store_of(open_storage(url), host=host)
        for number, configuration in enumerate(configurations * 3):
            claimed = store.claim(step(0, configuration, key=f"{host} {number}"))
            barrier.wait()
            assert store.finish(claimed, launch(1.0))
        store.update_results(is_last=True)

    threads = [threading.Thread(target=work, args=(host,)) for host in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = shown(open_storage(url))
    assert sorted(itertools.chain(*found)) == list(range(24))
    assert sorted(map(len, found)) == [6, 6, 6, 6]


@pytest.mark.long
def test_a_killed_search_is_shown_up_to_its_last_launch(tmp_path: Path) -> None:
    url = open_storage(str(tmp_path / "studies.db")).shown
    with started_worker(url, tmp_path, 20, 1, hang_at=8) as process:
        assert process.stdout.readline() == "hanging\n"
        process.kill()
        process.wait()
    records = complete(url)
    (name,) = results_names(open_storage(url))
    numbers = list(itertools.chain(*shown(open_storage(url), name)))
    assert sorted(numbers) == [record.number for record in records]
