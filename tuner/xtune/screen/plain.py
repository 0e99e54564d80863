# SPDX-License-Identifier: Apache-2.0
"""Shows a search as plain lines, for files and pipes: the longer it takes, the rarer they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import Objective
from xtune.screen.cautions import shared_with
from xtune.screen.quantities import duration
from xtune.screen.words import (
    STAGES,
    describe_favourite,
    describe_launch,
    describe_left,
    describe_outline,
    describe_resolution,
    describe_step,
    time_left,
)
from xtune.search.budget import Budget
from xtune.search.events import Favourite, Observer, Outline, Progress, Resolution
from xtune.search.records import Record, Stage, Step
from xtune.space.spaces import Space

FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 60.0
"""Pause between two progress lines."""

GROWTH = 1.3
"""Factor by which the pause grows."""

WAITING = "another search is using this host ({holder}); waiting for its launch to end"

Say = Callable[[str], None]


class PlainScreen(Observer):
    """Writes a line when something changes, and progress now and then."""

    def __init__(
        self,
        space: Space,
        objective: Objective,
        say: Say,
        *,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`verbose`: write a line for each launch."""
        self._space = space
        self._objective = objective
        self._say = say
        self._verbose = verbose
        self._clock = clock
        self._budget = Budget()
        self._pause_s = FIRST_PAUSE_S
        self._said_at = clock()
        self._favourite: Favourite | None = None
        self._failed: set[tuple[str, str]] = set()
        self._time_reported = False
        self._shared_reported = False
        self._waited_at: float | None = None
        """When the last line about waiting was written."""

    def started(self, outline: Outline) -> None:
        self._budget = outline.budget
        self._say(describe_outline(outline))

    def waiting(self, holder: str) -> None:
        self._say_waiting(WAITING.format(holder=holder))

    def waiting_for_others(self, hosts: Sequence[str]) -> None:
        names = ", ".join(host.split()[0] for host in hosts) or "the machine that runs the final"
        self._say_waiting(
            f"waiting for {names}: the next launch depends on it (Ctrl-C ends the search)"
        )

    def _say_waiting(self, text: str) -> None:
        """Write at most one line a minute: the search asks again and again."""
        now = self._clock()
        if self._waited_at is None or now - self._waited_at >= MAX_PAUSE_S:
            self._waited_at = now
            self._say(text)

    def stage_changed(self, stage: Stage) -> None:
        if stage is not Stage.BASELINE or self._verbose:
            self._say(STAGES[stage])

    def launched(self, record: Record, progress: Progress) -> None:
        assert record.launch is not None
        self._report_shared(record.launch)
        if not self._time_reported:
            self._time_reported = True
            self._report_time(record, progress)
        elif self._verbose:
            self._say(f"{record.step.stage.value}: {self._described(record)}")
        else:
            self._report_failure(record)
            self._report_progress(progress)

    def favourite_changed(self, favourite: Favourite) -> None:
        self._favourite = favourite

    def resolution_known(self, resolution: Resolution) -> None:
        self._say(describe_resolution(resolution, self._budget))

    def lost(self, step: Step) -> None:
        shown = describe_step(step, self._space)
        self._say(f"{shown}: another worker gave this launch up as lost; it does not count")

    def edited(self) -> None:
        self._say(
            "warning: the program was edited during the search; earlier launches ran the old version;"
            " if the edit affects speed, start a new study with --study NAME"
        )

    def storage_trouble(self, message: str, pause_s: float) -> None:
        self._say(f"{message}; next attempt in {duration(pause_s)}")

    def _described(self, record: Record) -> str:
        return describe_launch(record, self._space, self._objective)

    def _report_shared(self, launch: Launch) -> None:
        """Warn at the first such launch: the user may end the other program in time."""
        note = shared_with(launch)
        if note is not None and not self._shared_reported:
            self._shared_reported = True
            self._say(f"warning: {note}")

    def _report_time(self, record: Record, progress: Progress) -> None:
        assert record.launch is not None
        took_s = record.launch.secondary.wall_s
        left_s = time_left(progress, self._budget)
        rest = "" if left_s is None else f"; the search will take up to {duration(left_s)}"
        self._say(f"{self._described(record)}; a launch took {duration(took_s)}{rest}")
        self._said_at = self._clock()

    def _report_failure(self, record: Record) -> None:
        launch = record.launch
        assert launch is not None
        if launch.outcome in (Outcome.MEASURED, Outcome.CUT):
            return
        kind = (record.step.plan_hash, launch.outcome.value)
        if kind not in self._failed:
            self._failed.add(kind)
            self._say(self._described(record))

    def _report_progress(self, progress: Progress) -> None:
        now = self._clock()
        if now - self._said_at < self._pause_s:
            return
        self._said_at = now
        self._pause_s = min(self._pause_s * GROWTH, MAX_PAUSE_S)
        best = ""
        if self._favourite is not None:
            shown = describe_favourite(self._favourite, self._space, self._objective)
            best = f"; best so far {shown}"
        self._say(f"{describe_left(progress, self._budget)}{best}")
