# SPDX-License-Identifier: Apache-2.0
"""Shows a running search: plain lines for files and pipes, a live status in a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from xtune.evidence.verdicts import MoreBudget
from xtune.launches.launch import Objective, Outcome
from xtune.launches.summaries import with_unit
from xtune.search.budget import Budget
from xtune.search.events import Favourite, Observer, Outline, Progress, Resolution
from xtune.search.records import NextLaunch, Record, Stage
from xtune.show.warnings import shared_with
from xtune.show.words import (
    STAGES,
    describe_favourite,
    describe_launch,
    describe_left,
    describe_outline,
    describe_resolution,
    describe_step,
    duration,
    launches,
    settings,
    time_left,
)
from xtune.space.spaces import Space

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 60.0
"""Pause between two progress lines."""

GROWTH = 1.3
"""Factor by which the pause grows."""

REFRESHES_PER_S = 1.0
"""Of the live status: the CPUs belong to the workload."""

BAR_WIDTH = 30

WAITING = "another search is using this host ({holder}); waiting for its launch to end"

RESUMED = "continued: the launch that Ctrl-Z ended does not count and is made again"


@dataclass(eq=False)
class PlainScreen(Observer):
    """Writes a line when something changes, and progress now and then, ever more rarely."""

    space: Space
    objective: Objective
    say: Callable[[str], None]
    _: KW_ONLY
    verbose: bool = False
    """Write a line for each launch."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._budget = Budget()
        self._pause_s = FIRST_PAUSE_S
        self._said_at = self.clock()
        self._favourite: Favourite | None = None
        self._told: set[object] = set()
        """What is reported once."""
        self._waited_at: float | None = None
        """When the last line about waiting was written."""

    def started(self, outline: Outline) -> None:
        self._budget = outline.budget
        self.say(describe_outline(outline))

    def waiting(self, holder: str) -> None:
        self._say_waiting(WAITING.format(holder=holder))

    def waiting_for_others(self, hosts: Sequence[str]) -> None:
        names = ", ".join(host.split()[0] for host in hosts) or "the machine that runs the final"
        self._say_waiting(
            f"waiting for {names}: the next launch depends on it (Ctrl-C ends the search)"
        )

    def _say_waiting(self, text: str) -> None:
        """Write at most one line a minute: the search asks again and again."""
        now = self.clock()
        if self._waited_at is None or now - self._waited_at >= MAX_PAUSE_S:
            self._waited_at = now
            self.say(text)

    def stage_changed(self, stage: Stage) -> None:
        if stage is not Stage.BASELINE or self.verbose:
            self.say(STAGES[stage])

    def launched(self, record: Record, progress: Progress) -> None:
        launch = record.launch
        assert launch is not None
        shared = shared_with(launch)
        if shared is not None and self._is_news("shared"):  # the user may end the other program
            self.say(f"warning: {shared}")
        self.objective = with_unit(self.objective, [launch])
        shown = describe_launch(record, self.space, self.objective)
        if self._is_news("time"):
            left_s = time_left(progress, self._budget)
            time_text = "" if left_s is None else f"; the search will take up to {duration(left_s)}"
            self.say(f"{shown}; a launch took {duration(launch.secondary.wall_s)}{time_text}")
            self._said_at = self.clock()
        elif self.verbose:
            self.say(f"{record.step.stage.value}: {shown}")
        else:
            is_failure = launch.outcome not in (Outcome.MEASURED, Outcome.CUT)
            if is_failure and self._is_news((record.step.plan_hash, launch.outcome)):
                self.say(shown)
            self._report_progress(progress)

    def favourite_changed(self, favourite: Favourite) -> None:
        self._favourite = favourite

    def resolution_known(self, resolution: Resolution) -> None:
        self.say(describe_resolution(resolution, self._budget))

    def budget_too_small(self, made: float, more: MoreBudget) -> None:
        self.say(
            f"this budget allows about {launches(made)}, and a verdict takes at least"
            f" {launches(more.launches)} (about {duration(more.seconds)}): see --budget"
        )

    def rate_printed(self, name: str) -> None:
        self.say(
            f"it prints {name}: with --metric {name}, or --metric auto, that is compared, and layouts of"
            " several instances are searched, too"
        )

    def load_tried(self, text: str) -> None:
        if self.verbose:
            self.say(text)

    def resumed(self) -> None:
        self.say(RESUMED)

    def lost(self, step: NextLaunch) -> None:
        shown = describe_step(step, self.space)
        self.say(f"{shown}: another worker gave this launch up as lost; it does not count")

    def edited(self) -> None:
        self.say(
            "warning: the program was edited during the search; earlier launches ran the old version;"
            " if the edit affects speed, start a new study with --study NAME"
        )

    def storage_trouble(self, message: str, pause_s: float) -> None:
        self.say(f"{message}; next attempt in {duration(pause_s)}")

    def _is_news(self, what: object) -> bool:
        """True the first time."""
        is_new = what not in self._told
        self._told.add(what)
        return is_new

    def _report_progress(self, progress: Progress) -> None:
        now = self.clock()
        if now - self._said_at < self._pause_s:
            return
        self._said_at = now
        self._pause_s = min(self._pause_s * GROWTH, MAX_PAUSE_S)
        best = ""
        if self._favourite is not None:
            shown = describe_favourite(self._favourite, self.space, self.objective)
            best = f"; best so far {shown}"
        self.say(f"{describe_left(progress, self._budget)}{best}")


class LiveScreen(PlainScreen):
    """Shows stage, time left, the best so far and the running launch, below lines that stay.

    A context manager. Rich is imported only here.
    """

    def __init__(
        self, space: Space, objective: Objective, *, console: Console | None = None
    ) -> None:
        """`console`: standard error if None."""
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        place = self._console = console or Console(stderr=True, highlight=False)
        super().__init__(space, objective, lambda text: place.print(Text(f"xtune: {text}")))
        self._progress: Progress | None = None
        self._step: NextLaunch | None = None
        self._stage = ""
        self._last = ""
        """The launch that ended last."""
        self._failed = 0
        self._load = ""
        """The last one that was tried in the running launch."""
        self._since = time.monotonic()
        self._live = Live(
            console=place,
            get_renderable=self._draw,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def suspending(self) -> None:
        self._live.stop()

    def resumed(self) -> None:
        self._live.start()
        super().resumed()

    def stage_changed(self, stage: Stage) -> None:
        self._stage = STAGES[stage]

    def launching(self, step: NextLaunch, progress: Progress) -> None:
        self._step, self._progress, self._since = step, progress, time.monotonic()
        self._load = ""

    def load_tried(self, text: str) -> None:
        self._load = text

    def launched(self, record: Record, progress: Progress) -> None:
        self._progress, self._since = progress, time.monotonic()
        super().launched(record, progress)
        self._last = describe_launch(record, self.space, self.objective)
        if record.launch is not None:
            self._failed += record.launch.outcome not in (Outcome.MEASURED, Outcome.CUT)

    def _report_progress(self, progress: Progress) -> None:
        """Do nothing: progress is on the screen."""

    def _draw(self) -> RenderableType:
        """The status. It leaves room for the terminal's echo of Ctrl-C: in a full line that would wrap,
        and move the cursor away from the lines that are erased at the end.
        """
        from rich.console import Group
        from rich.constrain import Constrain
        from rich.table import Table
        from rich.text import Text

        rows = Table.grid(padding=(0, 2))
        rows.add_column(no_wrap=True, style="dim")
        rows.add_column()
        if self._stage:
            rows.add_row("stage", Text(self._stage))
        if self._step is not None:
            text = describe_step(self._step, self.space)
            rows.add_row("running", Text(f"{text}, for {duration(time.monotonic() - self._since)}"))
        if self._load:
            rows.add_row("load", Text(self._load))
        if self._last:
            failed = f"; {launches(self._failed)} failed so far" if self._failed else ""
            rows.add_row("last", Text(self._last + failed))
        if self._favourite is not None:
            text = describe_favourite(self._favourite, self.space, self.objective)
            rows.add_row("best", Text(text))
            if self._favourite.second is not None:
                rows.add_row("second", Text(settings(self._favourite.second, self.space)))
        drawn = rows if self._progress is None else Group(self._bar(self._progress), rows)
        return Constrain(drawn, self._console.width - len("^C"))

    def _bar(self, progress: Progress) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        total, text = None, launches(progress.launches)
        if math.isfinite(progress.left):
            total = max(progress.launches + progress.left, 1.0)
            if self._budget.launches is not None:
                text = f"{progress.launches:,} of up to {launches(total)}"
            left_s = time_left(progress, self._budget)
            if left_s is not None:
                left_s = max(0.0, left_s - (time.monotonic() - self._since))
                text += f", {duration(left_s)} left"
        line = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=total, completed=progress.launches, width=BAR_WIDTH)
        line.add_row(bar, Text(text))
        return line
