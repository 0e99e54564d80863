# SPDX-License-Identifier: Apache-2.0
"""Studies: whose they are, what is kept in them, and that Optuna can read them."""

from __future__ import annotations

import contextlib
import copy
import json
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.benchmarks.test_tuner_recordings import FULL
from tests.golden import Golden
from tests.tuner.search.scripted import RATE, SMALL, SPACE, ScriptedMeasurer
from tests.tuner.search.studies import SUBJECT, store_of, worker

from xtune.errors import StorageError, StudyError
from xtune.evidence.finals import Finalist, FinalPlan
from xtune.evidence.verdicts import Verdict, VerdictKind, undecided
from xtune.launches.launch import Goal, Launch, Objective, Outcome, Series
from xtune.search.budget import Budget
from xtune.search.encoding import PIECE
from xtune.search.events import SearchOutcome
from xtune.search.records import (
    FinalDetails,
    NextLaunch,
    Provenance,
    Record,
    Stage,
    changed_variables,
    digests,
    shown_records,
)
from xtune.search.storage import Storage, open_storage
from xtune.search.strategy import Strategy
from xtune.search.study import (
    Study,
    earlier_winners,
    find_study,
    list_studies,
    open_study,
)
from xtune.search.study_store import StudyStore
from xtune.search.workers import LEASE_S, Watch, this_worker
from xtune.space.identities import MachineIdentity
from xtune.space.parameters import BARE, Configuration
from xtune.space.spaces import Space
from xtune.tuning import Search

OTHER_MACHINE = SUBJECT._replace(
    machine=MachineIdentity((("processor", "made up"), ("cores", "64, 2 threads each")))
)
OTHER_PROGRAM = SUBJECT._replace(program=SUBJECT.program._replace(command="7ea", words=("x.py",)))
OTHER_SPACE = SUBJECT._replace(space=SMALL)
BATCH = SPACE.parameter("batch")
OTHERS = [one for one in SPACE.parameters if one != BATCH]
OTHER_VALUES = SUBJECT._replace(space=Space([BATCH._replace(values=(1, 3), default=1), *OTHERS]))
OTHER_CONDITIONS = SUBJECT._replace(space=Space(SPACE.parameters, ["batch > 1"]))
OTHER_GOAL = SUBJECT._replace(objective=Objective("loss", Goal.MINIMIZE))


@pytest.fixture(params=["studies.db", "studies.journal"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / request.param))


def again(storage: Storage) -> Storage:
    """What another process would see."""
    return open_storage(storage.shown)


def step(
    number: int = 0, configuration: Configuration | None = None, **fields: object
) -> NextLaunch:
    made = configuration or SPACE.default
    return NextLaunch(Stage.SEARCH, made, repr(made), f"search {number}")._replace(**fields)  # type: ignore[arg-type]


def launch(value: float | None = 1.5, **fields: object) -> Launch:
    outcome = Outcome.CRASHED if value is None else Outcome.MEASURED
    made = Launch(SPACE.default, "aa", outcome, value, 12.5)
    return made._replace(**fields)  # type: ignore[arg-type]


def test_a_study_is_found_again_by_its_subject(storage: Storage) -> None:
    made = open_study(storage, SUBJECT)
    assert made.name.startswith("train.py ")
    found = open_study(again(storage), SUBJECT)
    assert (found.id, found.name) == (made.id, made.name)
    assert found.subject == SUBJECT
    edited = SUBJECT._replace(program=SUBJECT.program._replace(content="def"))
    assert open_study(again(storage), edited).id == made.id, "an edited script stays itself"
    copied = SUBJECT._replace(program=SUBJECT.program._replace(place="/opt/train.py"))
    assert open_study(again(storage), copied).id == made.id, "and so does a copy elsewhere"


def test_different_things_never_mix(golden: Golden, storage: Storage) -> None:
    mine = open_study(storage, SUBJECT, "mine")
    assert open_study(storage, SUBJECT).id == mine.id
    others = (OTHER_MACHINE, OTHER_PROGRAM, OTHER_SPACE, OTHER_VALUES, OTHER_CONDITIONS, OTHER_GOAL)
    golden.errors(*[partial(open_study, storage, other, "mine") for other in others])
    for other in others:
        assert open_study(storage, other).id != mine.id


def test_names_of_studies_are_printable(storage: Storage) -> None:
    for name in ("a\nb", "a\x1b[31m", "a\udcff"):
        with pytest.raises(StudyError, match="choose a name of printable characters only"):
            open_study(storage, SUBJECT, name)
    odd = SUBJECT._replace(program=SUBJECT.program._replace(place="/srv/tr\udcff\n.py"))
    assert open_study(storage, odd).name.startswith("tr??.py ")


def test_studies_are_listed_and_found_by_name(storage: Storage) -> None:
    assert list_studies(storage) == ([], {})
    first, second = open_study(storage, SUBJECT), open_study(storage, OTHER_GOAL, "the other one")
    storage.backend.create_new_study([optuna.study.StudyDirection.MINIMIZE], "not ours")
    assert [study.name for study in list_studies(again(storage))[0]] == [first.name, second.name]
    assert find_study(storage, "the other one").subject == OTHER_GOAL
    assert find_study(storage, "train.py").id == first.id
    with pytest.raises(StudyError, match=r"no study named 'x'.*there are 'train.py .*'the other"):
        find_study(storage, "x")
    with pytest.raises(StudyError, match="no study named 'not ours'"):
        find_study(storage, "not ours")


def test_a_study_of_another_tool_is_left_alone(storage: Storage) -> None:
    theirs = optuna.create_study(storage=storage.backend, study_name="mine")
    theirs.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(StudyError, match="another tool"):
        open_study(storage, SUBJECT, "mine")


def test_studies_that_cannot_be_read_block_no_other(storage: Storage) -> None:
    damaged = "cannot be read: its description is damaged"
    unread = {open_study(storage, SUBJECT).name: ""}
    for attribute, value, said in (
        ("xtune:version", 5, "has format version 5; this xtune reads 3 and 4"),
        ("xtune:version", 2, "has format version 2; this xtune reads 3 and 4"),
        *[
            ("space", value, damaged)
            for value in (None, 3, {"a": 1}, {"pieces": 2}, {"pieces": "x"}, "x")
        ],
    ):
        storage = again(storage)
        found = list_studies(storage)[0][-1]
        found.set_attribute(attribute, value)
        unread[found.name] = said
        assert list_studies(again(storage))[1] == unread
        for find in (find_study, lambda where, name: open_study(where, SUBJECT, name)):
            with pytest.raises(StudyError, match=said):
                find(again(storage), found.name)
        new = open_study(again(storage), SUBJECT)
        assert new.name not in unread
        assert [one.name for one in list_studies(again(storage))[0]] == [new.name]
        assert open_study(again(storage), SUBJECT).id == new.id


def test_notes_are_kept_but_for_damaged_ones(storage: Storage) -> None:
    study = open_study(storage, SUBJECT)
    study.keep_note("options", {"budget": "10m"})
    study.keep_note("long", "x" * 3 * PIECE)
    study.keep_note("options", {"budget": "20m"})
    notes = find_study(again(storage), study.name).notes
    assert notes == {"options": {"budget": "20m"}, "long": "x" * 3 * PIECE}
    study.set_attribute("options", {"pieces": 2})
    assert find_study(again(storage), study.name).notes == {"long": "x" * 3 * PIECE}


def test_winners_of_other_studies_of_the_program_are_known(storage: Storage) -> None:
    best = SPACE.complete({"allocator": "tcmalloc", "batch": 8})
    won = Verdict(VerdictKind.GAIN, best, best, None, "")
    open_study(storage, SUBJECT).keep_verdict(won)
    open_study(storage, OTHER_MACHINE).keep_verdict(won)
    open_study(storage, OTHER_PROGRAM).keep_verdict(won)
    open_study(storage, OTHER_GOAL).keep_verdict(undecided(BARE, "too little"))
    (seed,) = earlier_winners(again(storage), OTHER_SPACE)
    assert seed.configuration == SMALL.complete({"allocator": "tcmalloc"})
    assert seed.origin.startswith("winner of study 'train.py")
    assert earlier_winners(storage, SUBJECT) == []


@pytest.mark.parametrize(
    "seen",
    [
        FULL._replace(outcome=Outcome.MEASURED),
        FULL,
        launch(None, outcome=Outcome.CUT),
        launch(float("nan")),
        pytest.param(
            launch(series=(Series(0, "items/s", *[tuple(n / 7 for n in range(20_000))] * 2),)),
            marks=pytest.mark.long,
        ),
    ],
    ids=["measured", "crashed", "cut", "nan", "many samples"],
)
def test_every_raw_sample_is_kept(storage: Storage, seen: Launch) -> None:
    store = store_of(storage)
    plan = FinalPlan(BARE, (Finalist(SPACE.default),))
    details = FinalDetails(0, 3, 1, plan, ("a", "b"))
    made = step(stage=Stage.FINAL, details=details, origin="a preset", cut_at=0.5)
    number = store.claim(made)
    assert store.records() == (Record(number, made, store.host, None),)
    assert store.finish(number, seen)
    (record,) = store_of(again(storage)).records()
    seen = seen._replace(configuration=made.configuration, plan_hash=made.plan_hash)
    assert record.step == made
    assert record.host == store.host
    times = [round(t, 6) for one in seen.series for t in one.times_s]
    # NaN differs from itself, so it is compared as text.
    assert repr(record.launch.value) == repr(seen.value)
    assert record.launch._replace(series=(), value=None) == seen._replace(series=(), value=None)
    assert [t for one in record.launch.series for t in one.times_s] == times
    assert [one.values for one in record.launch.series] == [one.values for one in seen.series]


def put(*path: object) -> Callable[[Any], None]:
    """Set the last but one of `path` to the last one, which may be missing: `KeyError`."""
    *above, name, value = path

    def damage(plain: Any) -> None:
        for one in above:
            plain = plain[one]
        if value is KeyError:
            del plain[name]
        else:
            plain[name] = value

    return damage


DAMAGES = (
    put("stage", KeyError),
    put("stage", "x"),
    put("key", 3),
    put("plan_hash", None),
    put("plan_hash", KeyError),
    put("cut_at", float("nan")),
    put("details", []),
    put("details", "block", KeyError),
    put("details", "attempt", "x"),
    put("details", "candidate", 2),
    put("details", "plans", 3),
    put("details", "plan", {}),
    put("details", "plan", "planned", "x"),
    put("worker", "pid", KeyError),
    put("worker", "name", 3),
    put("made", None),
    put("made", "installed", {"a": 1}),
    put("outcome", KeyError),
    put("outcome", "x"),
    put("outcome", "crashed"),
    put("value", "fast"),
    put("value", float("nan")),
    put("value", None),
    put("began_s", True),
    put("secondary", "wall_s", float("nan")),
    put("secondary", "wall_s", "1"),
    put("series 0", "times_s", [1.0]),
    put("series 0", "values", ["a", "b"]),
    put("series 0", {"pieces": 2}),
    put("series 1", {}),
    put("metrics", {"loss": "x"}),
    put("notes", [1]),
    *[
        put(key, value)
        for key in ("worker", "made", "outcome", "began_s")
        for value in (None, "x", {"pieces": 1})
    ],
)


def test_damaged_launches_are_left_out(golden: Golden, storage: Storage) -> None:
    plan = FinalPlan(BARE, (Finalist(SPACE.default),))
    details = FinalDetails(0, 0, 1, plan, ("a",))
    store = store_of(storage)
    series = Series(0, "items/s", (0.1, 0.2), (1.5, float("nan")))
    for number in range(2):
        claimed = store.claim(step(number, stage=Stage.FINAL, details=details))
        store.finish(claimed, launch(series=(series,)))
    study = open_study(storage, SUBJECT)

    # What is stored cannot be changed, so damaged copies of it are added.
    added = []
    for damage in DAMAGES:
        trial = copy.deepcopy(storage.backend.get_all_trials(study.id)[1])
        damage(trial.user_attrs)
        storage.backend.create_new_trial(study.id, template_trial=trial)
        added.append(repr(sorted(trial.user_attrs.items())))

    store = StudyStore(open_study(again(storage), SUBJECT))
    assert [record.number for record in store.records()] == [0, 1]
    assert list(store.damaged) == list(range(2, 2 + len(DAMAGES)))
    assert not any("\n" in reason for reason in store.damaged.values())
    golden([*store.damaged.values()])
    assert store.claim(step(1)) is not None
    kept = again(storage).backend.get_all_trials(study.id)[2:-1]
    assert [repr(sorted(trial.user_attrs.items())) for trial in kept] == added


def test_trials_of_other_tools_are_no_damage(storage: Storage) -> None:
    study = open_study(storage, SUBJECT)
    storage.backend.create_new_trial(study.id, template_trial=optuna.trial.create_trial(value=1.0))
    store = StudyStore(study)
    store.abandon(store.claim(step()), "KeyboardInterrupt")
    assert (store.records(), store.damaged) == ((), {})


def test_launches_that_optuna_cannot_read_are_left_out(tmp_path: Path) -> None:
    changes = (
        "trial_user_attributes SET value_json = substr(value_json, 1, 9) WHERE key = 'worker' AND",
        "trial_user_attributes SET value_json = '' WHERE key = 'outcome' AND",
        "trial_params SET distribution_json = '{' WHERE",
        "trial_params SET param_value = 99 WHERE",
        "trials SET state = 'x' WHERE",
    )
    path = tmp_path / "studies.db"
    storage = open_storage(str(path))
    store = store_of(storage)
    for number in range(7):
        store.finish(store.claim(step(number)), launch())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for number, change in enumerate(changes, 1):
            trial = f"(SELECT trial_id FROM trials WHERE study_id = 1 AND number = {number})"
            database.execute(f"UPDATE {change} trial_id = {trial}")
    store = store_of(again(storage))
    assert [record.number for record in store.records()] == [0, 6]
    assert list(store.damaged) == [1, 2, 3, 4, 5]
    assert all(store.damaged.values())
    number = store.claim(step(1))
    assert store.finish(number, launch())
    assert [record.number for record in store_of(again(storage)).records()] == [0, 6, 7]
    store.update_results(is_last=True)
    assert [one.user_attrs["launches"] for one in results_of(storage)] == [[0, 6, 7]]


def results_of(storage: Storage) -> list[optuna.trial.FrozenTrial]:
    """The trials of the study of results, as another tool sees them."""
    study = open_study(storage, SUBJECT)
    return optuna.load_study(
        study_name=f"{study.name} results", storage=again(storage).backend
    ).trials


def test_no_attribute_is_longer_than_any_database_takes(storage: Storage) -> None:
    noise = tuple(float(hash((n, "x")) % 10**9) for n in range(20_000))
    store = store_of(storage)
    number = store.claim(step())
    store.finish(number, launch(series=(Series(0, "items/s", noise, noise),)))
    (trial,) = storage.backend.get_all_trials(open_study(storage, SUBJECT).id)
    lengths = [len(json.dumps(value)) for value in trial.user_attrs.values()]
    assert max(lengths) < 2**16
    assert sum(lengths) > 4 * PIECE


def test_a_key_is_claimed_once(storage: Storage) -> None:
    first = store_of(storage, worker("a"))
    second = store_of(again(storage), worker("b"))
    assert first.claim(step(1)) is not None
    assert second.claim(step(1)) is None
    assert second.claim(step(2)) is not None
    for store in (first, second):
        records = store.records()
        assert [record.step.key for record in records] == ["search 1", "search 2"]
        assert [record.host for record in records] == ["a boot", "b boot"]
    assert first.finish(records[0].number, launch())
    assert second.claim(step(1)) is None, "it was made"
    assert len(second.records()) == 2


def test_what_was_abandoned_does_not_count_and_is_free_again(storage: Storage) -> None:
    store = store_of(storage)
    number = store.claim(step(1))
    store.abandon(number, "KeyboardInterrupt")
    assert store.records() == ()
    assert store_of(again(storage)).claim(step(1)) is not None


@pytest.mark.parametrize(
    "fields", [{"pid": 2**22 - 1}, {"start_ticks": 1}], ids=["gone", "another's number"]
)
def test_a_process_that_is_gone_on_this_system_is_lost_at_once(
    storage: Storage, fields: dict[str, int]
) -> None:
    me = store_of(storage)
    assert store_of(storage, me.worker._replace(**fields)).claim(step(1)) is not None
    assert me.records() == ()
    assert me.claim(step(1)) is not None


def test_a_worker_elsewhere_is_lost_when_it_counts_no_more(storage: Storage) -> None:
    now = [0.0]
    far, me = worker("far"), worker("near")
    theirs = store_of(storage, far)
    number = theirs.claim(step(1))
    mine = store_of(again(storage), me, Watch(me, clock=lambda: now[0]))
    trial_id = theirs._claimed[number][0]
    for beat in (1, 2, 3):
        storage.backend.set_trial_system_attr(trial_id, "xtune:beat", beat)
        assert len(mine.records()) == 1
        now[0] += 0.9 * LEASE_S
    assert len(mine.records()) == 1
    now[0] += 0.2 * LEASE_S
    assert mine.records() == ()
    assert mine.claim(step(1)) is not None


def test_who_comes_back_too_late_is_not_counted(storage: Storage) -> None:
    now = [0.0]
    me = worker("near")
    theirs = store_of(storage, worker("far"))
    number = theirs.claim(step(1))
    mine = store_of(again(storage), me, Watch(me, clock=lambda: now[0]))
    mine.records()
    now[0] += 2 * LEASE_S
    retaken = mine.claim(step(1))
    assert not theirs.finish(number, launch(1.0))
    assert mine.finish(retaken, launch(2.0))
    for store in (mine, theirs, store_of(again(storage))):
        (record,) = store.records()
        assert record.launch.value == 2.0


def test_who_only_reads_leaves_launches_of_dead_workers_as_they_are(storage: Storage) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    dead = this_worker()._replace(pid=ended.pid, start_ticks=1)
    study = open_study(storage, SUBJECT)
    assert store_of(storage, dead).claim(step(1)) is not None

    def states() -> list[str]:
        return [one.state.name for one in again(storage).backend.get_all_trials(study.id)]

    store = StudyStore(study)
    assert store.records() == ()
    assert states() == ["RUNNING"]
    assert store.claim(step(2)) is not None
    assert states() == ["FAIL", "RUNNING"]


def test_a_claim_whose_storage_was_lost_is_free_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(storage)
    with monkeypatch.context() as patch:

        def lost(*_: object, **__: object) -> None:
            raise OSError("it went away")

        patch.setattr(storage.backend, "get_all_trials", lost)
        with pytest.raises(StorageError, match="it went away"):
            store.claim(step(1))
    assert store.records() == ()
    number = store.claim(step(1))
    assert store.finish(number, launch())


def search(
    study: Study, plan: Callable[[Configuration], str], launches: int
) -> tuple[StudyStore, SearchOutcome]:
    measurer = ScriptedMeasurer(plan=plan, noise=0.03)
    store = StudyStore(study, plan_hash=plan)
    strategy = Strategy(SPACE, plan, RATE, host=store.host)
    return store, Search(SPACE, strategy, measurer, store, RATE, Budget(launches=launches)).run()


def test_launches_count_only_while_they_are_started_in_the_same_way(tmp_path: Path) -> None:
    study = open_study(open_storage(str(tmp_path / "studies.journal")), SUBJECT)
    _, first = search(study, lambda one: f"one {one!r}", 30)
    assert first.final is not None
    again, second = search(study, lambda one: f"other {one!r}", 30)
    assert len(again.left_out) == len(first.records)
    assert {record.step.plan_hash.split()[0] for record in second.records} == {"other"}
    assert second.final is not None
    store, third = search(study, lambda one: f"one {one!r}", 2)
    assert third.records[: len(first.records)] == first.records
    assert len(store.left_out) == len(second.records)
    assert len(StudyStore(study).records()) == sum(len(r.records) for r in (first, second)) + 2


def test_who_looks_sees_what_counted_in_the_search_of_the_latest_launch(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "studies.journal"))

    def search(environment: str, values: Sequence[float]) -> None:
        now = open_study(again(storage), SUBJECT)
        store = StudyStore(now, plan_hash=lambda one: f"{environment} {one!r}")
        store.records()
        store.made = Provenance(
            variables=digests({"FOO": environment, "BAR": "1"}),
            left_out=tuple([one.number for one in store.left_out]),
        )
        for value in values:
            number = store.claim(step(int(value), plan_hash=f"{environment} {SPACE.default!r}"))
            assert store.finish(number, launch(value))

    def records() -> Sequence[Record]:
        return StudyStore(open_study(again(storage), SUBJECT)).records()

    def shown() -> tuple[list[float | None], int]:
        seen = records()
        found = shown_records(seen)
        values = [one.launch.value for one in found if one.launch is not None]
        return values, len(seen) - len(found)

    assert shown() == ([], 0)
    search("one", [1.0, 2.0])
    assert shown() == ([1.0, 2.0], 0)
    search("other", [])
    assert shown() == ([1.0, 2.0], 0)
    search("other", [3.0])
    assert shown() == ([3.0], 2)
    search("one", [4.0])
    assert shown() == ([1.0, 2.0, 4.0], 1)
    one = Provenance(variables=digests({"FOO": "one", "BAR": "1"}))
    lone = Provenance(variables=digests({"FOO": "one"}))
    assert changed_variables(records()[2:3], one) == (["FOO"], True)
    assert changed_variables(records()[:2], lone) == (["BAR"], True)
    assert changed_variables(records()[2:], one) == (["FOO"], False)


@pytest.mark.long
def test_a_final_counts_as_a_whole(tmp_path: Path) -> None:
    # The bare command is started as ever: its turns in a final of other plans do not count.
    study = open_study(open_storage(str(tmp_path / "studies.journal")), SUBJECT)

    def with_library(name: str) -> Callable[[Configuration], str]:
        return lambda one: "bare" if one == BARE else f"{name} {one!r}"

    _, first = search(study, with_library("old"), 30)
    finals = [record for record in first.records if record.step.stage is Stage.FINAL]
    others = [one for one in first.records if one.step.configuration == BARE and one not in finals]
    assert finals
    store, second = search(study, with_library("new"), 30)
    assert second.records[: len(others)] == tuple(others)
    assert len(store.left_out) == len(first.records) - len(others)
    assert second.final is not None
    _, again = search(study, with_library("old"), 30)
    assert [one for one in again.records if one in finals] == finals


def test_a_worker_counts_while_it_launches(storage: Storage) -> None:
    study = open_study(storage, SUBJECT)
    store = StudyStore(study, beat_s=0.005)
    number = store.claim(step(1))

    def beats() -> int:
        (trial,) = again(storage).backend.get_all_trials(study.id)
        count = trial.system_attrs.get("xtune:beat", 0)
        assert isinstance(count, int)
        return count

    first = beats()
    while beats() <= first + 1:
        pass
    store.finish(number, launch())
    assert not store._claimed


@pytest.mark.long
def test_a_storage_that_went_away_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    store = store_of(open_storage(str(path)))
    path.write_text("overwritten by somebody" * 1000)
    with pytest.raises(StorageError, match=r"studies.db cannot be used: ") as caught:
        store.claim(step(1))
    assert "\n" not in str(caught.value)
    assert RATE.metric not in str(caught.value)
