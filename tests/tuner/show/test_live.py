# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows while a search runs."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from tests.tuner.show.made_up import FOUR, RATE, SPACE, TWO, launch, recorded

from xtune.search.budget import Budget
from xtune.search.events import Favourite, Outline, Progress
from xtune.search.records import NextLaunch, Stage
from xtune.show.screens import LiveScreen

FIRST = Progress(launches=0, left=float("inf"), elapsed_s=0.0, stage=Stage.BASELINE)
LATER = Progress(launches=10, left=30.0, elapsed_s=100_005.0, stage=Stage.SEARCH)
"""Far from a full minute: a second more or less is not seen."""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setenv("TERM", "xterm")
    return Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None)


def shown(terminal: Console) -> str:
    """What has been written, with each run of white space as one space.

    It is drawn once a second, and when the screen is left.
    """
    stream = terminal.file
    assert isinstance(stream, io.StringIO)
    return " ".join(stream.getvalue().split())


def outline(budget: Budget) -> Outline:
    return Outline(3, 3, budget=budget, records=0)


def test_before_the_first_launch_has_ended(terminal: Console) -> None:
    with LiveScreen(SPACE, RATE, console=terminal) as screen:
        screen.started(outline(Budget(launches=40)))
        screen.stage_changed(Stage.BASELINE)
        screen.launching(
            NextLaunch(Stage.SEARCH, FOUR, "hash", "1", origin="preset mine.toml"), FIRST
        )
    drawn = shown(terminal)
    assert "xtune: budget: 40 launches" in drawn
    assert " 0 launches" in drawn
    assert "stage the bare command running n=4 (preset mine.toml), for " in drawn
    assert " left" not in drawn
    assert "best" not in drawn


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(launches=40), "10 of up to 40 launches, 83 h 20 min left"),
        (Budget(time_s=172_800.0), "10 launches, 20 h 13 min left"),
    ],
)
def test_stage_best_and_what_is_left_are_drawn(
    terminal: Console, budget: Budget, said: str
) -> None:
    with LiveScreen(SPACE, RATE, console=terminal) as screen:
        screen.started(outline(budget))
        (record,) = recorded([launch(FOUR, 400.0)])
        screen.launched(record, LATER)
        screen.favourite_changed(Favourite(FOUR, 400.0, 4.0, second=TWO))
        screen.stage_changed(Stage.SEARCH)
    drawn = shown(terminal)
    assert "xtune: n=4: 400 items/s; a launch took 2.0 s" in drawn
    assert said in drawn
    assert "stage searching" in drawn
    assert "best n=4: 400 items/s, 4.00 times the bare command" in drawn
    assert "second n=2" in drawn
    assert "last n=4: 400 items/s" in drawn


def test_failures_stay_above_and_progress_is_only_drawn(terminal: Console) -> None:
    with LiveScreen(SPACE, RATE, console=terminal) as screen:
        screen.started(outline(Budget(launches=40)))
        launches = [launch(FOUR, 400.0), *[launch(FOUR, None, stderr_tail="no room")] * 2]
        for record in recorded(launches):
            screen.launched(record, LATER)
    assert shown(terminal).count("xtune: n=4: crashed: no room") == 1
    assert "last n=4: crashed: no room; 2 launches failed so far" in shown(terminal)
    assert "up to 30 left" not in shown(terminal)


def test_the_status_leaves_room_for_the_echo_of_ctrl_c(terminal: Console) -> None:
    step = NextLaunch(Stage.SEARCH, FOUR, "hash", "1", origin="a long origin " * 20)
    with LiveScreen(SPACE, RATE, console=terminal) as screen:
        screen.launching(step, LATER)
    assert isinstance(terminal.file, io.StringIO)
    lines = [
        re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", line).strip("\r")
        for line in terminal.file.getvalue().splitlines()
    ]
    assert 120 < max(map(len, lines)) <= 140 - len("^C")
