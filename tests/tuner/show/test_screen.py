# SPDX-License-Identifier: Apache-2.0
"""What the screens say, and how often."""

from __future__ import annotations

import pytest
from tests.golden import Golden
from tests.tuner.show.made_up import FOUR, RATE, SPACE, TWO, launch, recorded

from xtune.launches.launch import WALL, Goal, Objective, Outcome, Secondary
from xtune.launches.requirements import parse_requirement
from xtune.search.budget import Budget
from xtune.search.events import Favourite, Outline, Progress, Resolution
from xtune.search.records import NextLaunch, Record, Stage
from xtune.show.screens import MAX_PAUSE_S, PlainScreen
from xtune.show.words import (
    aim,
    describe_favourite,
    describe_gains,
    describe_left,
    describe_outline,
    describe_space,
    describe_step,
    settings,
    time_left,
    unmet,
)
from xtune.space.offers import LeftOut
from xtune.space.parameters import BARE, Configuration, Parameter, Target
from xtune.space.spaces import Space

PROGRESS = Progress(launches=12, left=28.0, elapsed_s=24.0, stage=Stage.SEARCH)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def screen(said: list[str], clock: Clock) -> PlainScreen:
    return PlainScreen(SPACE, RATE, said.append, clock=clock)


def launched(number: int, outcome: Outcome = Outcome.MEASURED) -> Record:
    value, tail = (1.0, "") if outcome is Outcome.MEASURED else (None, "first\nno room left\n")
    one = launch(TWO, value, outcome=outcome, secondary=Secondary(1.0), stderr_tail=tail)
    return recorded([one])[0]._replace(number=number)


def test_what_is_searched_takes_two_lines_and_details_on_request() -> None:
    many = Parameter("huge", tuple("abcdef"), "a", Target.OPTION)
    space = Space([*SPACE.parameters, many])
    counted, names = describe_space(space, [LeftOut("smt", "no siblings")])
    assert counted.endswith(" configurations (-v lists all values, and what is left out)")
    first = SPACE.parameters[0]
    assert names.startswith(f"  {first.name}={'|'.join(map(str, first.values))}, ")
    assert names.endswith(", huge (6 values)")
    shown = list(describe_space(space, [LeftOut("smt", "no siblings")], verbose=True))
    assert shown[-2].split() == ["huge", *"abcdef"]
    assert shown[-1] == "  left out: smt: no siblings"


def test_settings_are_told_by_what_differs(golden: Golden) -> None:
    golden([settings(one, SPACE) for one in (BARE, Configuration({}), TWO)])


def test_the_time_left_counts_all_that_a_launch_takes_and_ends_with_the_budget() -> None:
    progress = Progress(launches=10, left=30.0, elapsed_s=20.0, stage=Stage.SEARCH)
    assert time_left(progress, Budget(launches=40)) == 60.0
    assert time_left(progress, Budget(time_s=50.0)) == 30.0
    assert time_left(progress._replace(launches=0), Budget(launches=40)) is None


def test_lines_come_rarely_and_ever_more_so(
    said: list[str], screen: PlainScreen, clock: Clock
) -> None:
    screen.started(Outline(2, 2, budget=Budget(launches=2000), records=0))
    for number in range(1800):  # half an hour of launches of a second
        clock.now_s += 1.0
        progress = Progress(number + 1, 2000.0 - number, clock.now_s, Stage.SEARCH)
        screen.launched(launched(number), progress)
    assert said[0].startswith("budget: 2000 launches")
    assert "a launch took 1.0 s; the search will take up to 33 min" in said[1]
    assert 1800 / MAX_PAUSE_S < len(said) < 50


def test_a_failure_is_told_once(golden: Golden, said: list[str], screen: PlainScreen) -> None:
    screen.launched(launched(0), PROGRESS)
    screen.launched(launched(1, Outcome.OUT_OF_MEMORY), PROGRESS)
    screen.launched(launched(2, Outcome.OUT_OF_MEMORY), PROGRESS)
    golden(said)


def test_waiting_is_told_once_a_minute(
    golden: Golden, said: list[str], screen: PlainScreen, clock: Clock
) -> None:
    for _ in range(121):
        screen.waiting("PID 42")
        clock.now_s += 1.0
    assert len(said) == 3
    clock.now_s += MAX_PAUSE_S
    screen.waiting_for_others(["node1 4711", "node2 4712"])
    clock.now_s += MAX_PAUSE_S
    screen.waiting_for_others([])
    golden(said)


def test_work_of_others_is_told_once(golden: Golden, said: list[str], screen: PlainScreen) -> None:
    for number in range(3):
        record = launched(number)
        busy = record.launch._replace(shared_cpus=("CPU 0 is busy with other work",))
        screen.launched(record._replace(launch=busy), PROGRESS)
    golden(said)


def test_a_verbose_screen_tells_each_launch(golden: Golden, said: list[str], clock: Clock) -> None:
    screen = PlainScreen(SPACE, RATE, said.append, verbose=True, clock=clock)
    screen.stage_changed(Stage.BASELINE)
    for number in range(2):
        screen.launched(launched(number), PROGRESS)
    screen.launched(launched(2, Outcome.CRASHED), PROGRESS)
    golden(said)


def test_what_happens_to_a_search_is_told(
    golden: Golden, said: list[str], screen: PlainScreen
) -> None:
    screen.stage_changed(Stage.BASELINE)
    screen.stage_changed(Stage.FINAL)
    screen.lost(NextLaunch(Stage.SEED, FOUR, "hash", "1", origin="preset mine.toml"))
    screen.edited()
    screen.storage_trouble("the storage cannot be reached", 10.0)
    golden(said)


def test_what_the_budget_can_show_is_told(
    golden: Golden, said: list[str], screen: PlainScreen
) -> None:
    screen.started(Outline(3, 2, budget=Budget(launches=40), records=7))
    screen.resolution_known(Resolution(spread=0.031, degrees=9, gain=0.123, low=0.0951, high=0.182))
    golden(said)


def test_an_outline_says_what_is_known(golden: Golden) -> None:
    golden(
        describe_outline(Outline(3, None, Budget(time_s=600.0), 0)),
        describe_outline(Outline(3, 3, Budget(launches=40), 1)),
    )


def test_gains_that_no_noise_hides_have_no_absurd_bounds(golden: Golden) -> None:
    bounds = ((0.0951, 0.182), (3.1, 212.0), (10.1, 9.9e7))
    golden(
        [describe_gains(Resolution(0.6, 2, gain=low, low=low, high=high)) for low, high in bounds]
    )


def test_progress_names_the_best_so_far(
    golden: Golden, said: list[str], screen: PlainScreen, clock: Clock
) -> None:
    screen.started(Outline(3, 3, budget=Budget(launches=40), records=0))
    screen.launched(launched(0), PROGRESS)
    screen.favourite_changed(Favourite(FOUR, 402.0, 3.98))
    clock.now_s += MAX_PAUSE_S
    screen.launched(launched(1), PROGRESS)
    golden(said)


def test_a_favourite_that_is_behind_comes_after_the_bare_command(golden: Golden) -> None:
    behind = Favourite(FOUR, 99.0, 0.99)
    alone = behind._replace(ratio=None)
    golden([describe_favourite(one, SPACE, RATE) for one in (behind, alone)])


def test_how_much_is_left(golden: Golden) -> None:
    untimed, none = PROGRESS._replace(left=float("inf")), PROGRESS._replace(left=0.0)
    golden(
        describe_left(PROGRESS, Budget(launches=40)),
        describe_left(PROGRESS, Budget(time_s=60.0)),
        describe_left(untimed, Budget(launches=40)),
        describe_left(none, Budget(launches=12)),
    )


def test_the_aim_and_what_breaks_it(golden: Golden) -> None:
    small, quick = parse_requirement("rss<=1GiB"), parse_requirement("p99(ms)<=5ms")
    objective = RATE._replace(requirements=(small, quick))
    why = "--require 'p99(ms)<=5ms': p99 takes 100 values"
    seen = launch(
        FOUR, 1.0, requirements=((small.text, 2.0**31), (quick.text, None)), notes=("slow", why)
    )
    golden(aim(objective), aim(Objective(WALL, Goal.MINIMIZE)), unmet(seen, objective))


def test_the_bare_command_needs_no_origin(golden: Golden) -> None:
    step = NextLaunch(Stage.CONTROL, BARE, "hash", "1", origin="a control")
    golden(describe_step(step, SPACE), describe_step(step._replace(configuration=FOUR), SPACE))
