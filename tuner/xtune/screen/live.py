# SPDX-License-Identifier: Apache-2.0
"""Shows a search in a terminal: a status that is updated in place, below lines that stay.

It is drawn once a second only, because the CPUs belong to the workload.
"""

from __future__ import annotations

import math
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from xtune.launches.objectives import Objective
from xtune.screen.plain import PlainScreen
from xtune.screen.quantities import duration, launches
from xtune.screen.words import STAGES, describe_favourite, describe_step, time_left
from xtune.search.events import Favourite, Progress
from xtune.search.records import Record, Stage, Step
from xtune.space.spaces import Space

REFRESHES_PER_S = 1.0
BAR_WIDTH = 30


class LiveScreen(PlainScreen):
    """Shows stage, time left, the best so far and the running launch. A context manager."""

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        console: Console | None = None,
        verbose: bool = False,
    ) -> None:
        """`console`: standard error if None."""
        self._console = console or Console(stderr=True, highlight=False)
        super().__init__(space, objective, self._print, verbose=verbose)
        self._progress: Progress | None = None
        self._step: Step | None = None
        self._stage = ""
        self._since = time.monotonic()
        self._live = Live(
            console=self._console,
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

    def stage_changed(self, stage: Stage) -> None:
        self._stage = STAGES[stage]

    def launching(self, step: Step, progress: Progress) -> None:
        self._step, self._progress, self._since = step, progress, time.monotonic()

    def launched(self, record: Record, progress: Progress) -> None:
        self._progress, self._since = progress, time.monotonic()
        super().launched(record, progress)

    def favourite_changed(self, favourite: Favourite) -> None:
        self._favourite = favourite

    def _report_progress(self, progress: Progress) -> None:
        """Do nothing: progress is on the screen."""

    def _print(self, text: str) -> None:
        self._console.print(Text(f"xtune: {text}"))

    def _draw(self) -> RenderableType:
        rows = Table.grid(padding=(0, 2))
        rows.add_column(no_wrap=True, style="dim")
        rows.add_column()
        if self._stage:
            rows.add_row("stage", Text(self._stage))
        if self._step is not None:
            text = describe_step(self._step, self._space)
            rows.add_row("running", Text(f"{text}, for {duration(time.monotonic() - self._since)}"))
        if self._favourite is not None:
            text = describe_favourite(self._favourite, self._space, self._objective)
            rows.add_row("best", Text(text))
        if self._progress is None:
            return rows
        return Group(self._bar(self._progress), rows)

    def _bar(self, progress: Progress) -> RenderableType:
        line = Table.grid(padding=(0, 2))
        made = launches(progress.launches)
        if not math.isfinite(progress.left):
            line.add_row(ProgressBar(total=None, width=BAR_WIDTH), Text(made))
            return line
        total = progress.launches + progress.left
        if self._budget.launches is None:
            text = made
        else:
            text = f"{progress.launches:,} of up to {launches(total)}"
        left_s = time_left(progress, self._budget)
        if left_s is not None:
            left_s = max(0.0, left_s - (time.monotonic() - self._since))
            text += f", {duration(left_s)} left"
        bar = ProgressBar(total=max(total, 1.0), completed=progress.launches, width=BAR_WIDTH)
        line.add_row(bar, Text(text))
        return line
