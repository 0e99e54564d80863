# SPDX-License-Identifier: Apache-2.0
"""Two machines at one study: what one waits for, and when it goes on alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.tuner.search.scripted import RATE, SPACE, ScriptedMeasurer, gain
from tests.tuner.search.studies import SUBJECT
from tests.tuner.search.studies import worker as another

from xtune.evidence.verdicts import VerdictKind
from xtune.search.budget import Budget
from xtune.search.events import Allowance, EndReason, Observer, SearchOutcome
from xtune.search.records import NextLaunch, Stage
from xtune.search.storage import Storage, open_storage
from xtune.search.strategy import Strategy
from xtune.search.study import open_study
from xtune.search.study_store import StudyStore
from xtune.search.workers import Watch
from xtune.tuning import LOOKS_BEFORE_TAKING_OVER, WAIT_S, Search, next_step

LEASE_S = 3.0
LAUNCHES = 40


class Machine:
    """One that shares the study, and the clock by which it takes others for dead."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.clock_s = 0.0
        me = another(name)
        watch = Watch(me, clock=lambda: self.clock_s, lease_s=LEASE_S)
        self.store = StudyStore(open_study(storage, SUBJECT), worker=me, watch=watch)
        self.measurer = ScriptedMeasurer()
        self.strategy = Strategy(SPACE, self.measurer.plan_hash, RATE, host=self.store.host, seed=1)
        self.waited_for: list[list[str]] = []

    def search(self, while_waiting: Callable[[], object] = lambda: None) -> SearchOutcome:
        def sleep(pause_s: float) -> None:
            assert pause_s == WAIT_S
            self.clock_s += pause_s
            while_waiting()

        waits = Waits()
        found = Search(
            SPACE,
            self.strategy,
            self.measurer,
            self.store,
            RATE,
            Budget(launches=LAUNCHES),
            observer=waits,
            sleep=sleep,
        ).run()
        self.waited_for = waits.hosts
        return found

    def claim_next(self) -> tuple[int, NextLaunch] | None:
        step = next_step(self.strategy, self.store.records(), Allowance(20, LAUNCHES))
        if step is None:
            return None
        return self.store.claim(step), step

    def finals(self) -> int:
        records = [one for one in self.store.records() if one.host == self.store.host]
        return [one.step.stage for one in records].count(Stage.FINAL)


class Waits(Observer):
    """Whom the search waited for, look by look."""

    def __init__(self) -> None:
        self.hosts: list[list[str]] = []

    def waiting_for_others(self, hosts: Sequence[str]) -> None:
        self.hosts.append([host.split()[0] for host in hosts])


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with contextlib.closing(open_storage(str(tmp_path / "studies.journal"))) as made:
        yield made


@pytest.fixture
def first(storage: Storage) -> Machine:
    """Amid the final, with a launch of it under way."""
    machine = Machine(storage, "node1")
    stages: list[Stage] = []

    def stop_in_the_final(_: int) -> None:
        stages[:] = [one.step.stage for one in machine.store.records()]
        if stages.count(Stage.FINAL) == 3:
            raise KeyboardInterrupt

    machine.measurer = ScriptedMeasurer(on_launch=stop_in_the_final)
    assert machine.search().end_reason is EndReason.INTERRUPTED
    assert stages.count(Stage.FINAL) == 3
    return machine


@pytest.mark.long
def test_the_final_of_a_machine_that_died_is_gone_on_with(storage: Storage, first: Machine) -> None:
    claimed = first.claim_next()
    assert claimed[1].stage is Stage.FINAL

    second = Machine(storage, "node2")
    found = second.search()
    # As long as it may be alive, and then a little longer.
    assert second.waited_for == [["node1"]] * 3 + [[]] * LOOKS_BEFORE_TAKING_OVER
    assert second.finals() > 3
    assert (found.verdict.kind, found.end_reason) == (VerdictKind.GAIN, EndReason.DONE)
    assert gain(found.verdict.best) > 0.3


def test_a_final_is_left_to_the_machine_that_makes_it(storage: Storage, first: Machine) -> None:
    claimed = first.claim_next()

    def go_on() -> None:
        nonlocal claimed
        if claimed is not None:
            number, step = claimed
            first.store.finish(number, ScriptedMeasurer(seed=number).measure(step.configuration))
            claimed = first.claim_next()

    second = Machine(storage, "node2")
    found = second.search(while_waiting=go_on)
    assert claimed is None
    assert set(map(tuple, second.waited_for)) == {("node1",)}
    assert second.finals() == 0
    assert found.verdict.kind is VerdictKind.GAIN
    assert gain(found.verdict.best) > 0.3
