# SPDX-License-Identifier: Apache-2.0
"""What the screens say, and how often."""

from __future__ import annotations

from xtune.measurement.launches import Launch, Outcome, Secondary
from xtune.measurement.objectives import WALL, Goal, Objective
from xtune.screen.plain import MAX_PAUSE_S, PlainScreen
from xtune.screen.words import describe_space, settings, time_left
from xtune.search.budget import Budget
from xtune.search.events import Outline, Progress
from xtune.search.records import Record, Stage, Step
from xtune.space.offers import LeftOut
from xtune.space.parameters import BARE, Configuration, Parameter, Where
from xtune.space.spaces import Space

SPACE = Space([Parameter("n", (1, 2), 1, Where.PROGRAM, ordered=True)])
OBJECTIVE = Objective(WALL, Goal.MINIMIZE)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def launched(number: int, outcome: Outcome = Outcome.MEASURED) -> Record:
    value = 1.0 if outcome is Outcome.MEASURED else None
    one = Configuration({"n": 2})
    tail = "" if outcome is Outcome.MEASURED else "first\nno room left\n"
    launch = Launch(one, "hash", outcome, value, 0.0, secondary=Secondary(1.0), stderr_tail=tail)
    return Record(number, Step(Stage.RACE, one, "hash", str(number)), "here", launch)


def test_what_is_left_out_takes_one_line_unless_it_is_asked_for() -> None:
    left_out = [LeftOut("smt", "no siblings"), LeftOut("omp=gnu", "the same as auto here")]
    (line,) = list(describe_space(SPACE, left_out))[2:]
    assert line == "  left out: smt, omp=gnu (-v gives the reasons)"
    (line,) = list(describe_space(SPACE, [*left_out, LeftOut("omp=llvm", "not found")]))[2:]
    assert line == "  left out: smt, 2 values of omp (-v gives the reasons)"
    assert list(describe_space(SPACE, left_out, verbose=True))[2:] == [
        "  left out: smt: no siblings",
        "  left out: omp=gnu: the same as auto here",
    ]
    assert len(list(describe_space(SPACE, []))) == 2


def test_settings_are_told_by_what_differs() -> None:
    assert settings(BARE, SPACE) == "the bare command"
    assert settings(Configuration({}), SPACE) == "xlaunch's defaults"
    assert settings(Configuration({"n": 2}), SPACE) == "n=2"


def test_the_time_left_counts_all_that_a_launch_takes_and_ends_with_the_budget() -> None:
    progress = Progress(launches=10, left=30.0, elapsed_s=20.0, left_s=3.0, stage=Stage.RACE)
    assert time_left(progress, Budget(launches=40)) == 60.0
    assert time_left(progress, Budget(time_s=50.0)) == 30.0
    assert time_left(progress._replace(launches=0), Budget(launches=40)) is None


def test_lines_come_rarely_and_ever_more_so() -> None:
    said: list[str] = []
    clock = Clock()
    screen = PlainScreen(SPACE, OBJECTIVE, said.append, clock=clock)
    screen.started(Outline(2, 2, races=True, budget=Budget(launches=2000), records=0))
    for number in range(1800):  # half an hour of launches of a second
        clock.now_s += 1.0
        progress = Progress(number + 1, 2000.0 - number, clock.now_s, None, Stage.RACE)
        screen.launched(launched(number), progress)
    assert said[0].startswith("budget: 2000 launches; 2 configurations")
    assert "a launch took 1.0 s; the search will take up to 33 min" in said[1]
    assert 1800 / MAX_PAUSE_S < len(said) < 50


def test_a_failure_is_told_once() -> None:
    said: list[str] = []
    screen = PlainScreen(SPACE, OBJECTIVE, said.append, clock=Clock())
    progress = Progress(1, 10.0, 1.0, None, Stage.RACE)
    screen.launched(launched(0), progress)
    screen.launched(launched(1, Outcome.OUT_OF_MEMORY), progress)
    screen.launched(launched(2, Outcome.OUT_OF_MEMORY), progress)
    assert said[1:] == ["n=2: out of memory: no room left"]
