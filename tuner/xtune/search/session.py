# SPDX-License-Identifier: Apache-2.0
"""One search from its first launch to its verdict.

Ctrl-C ends it with the verdict so far. A second Ctrl-C, while the verdict is computed, is raised to the
caller.
"""

from __future__ import annotations

import contextlib
import enum
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

from xtune.errors import BudgetError, MetricNotSeenError, StorageError, TunerError
from xtune.evidence.finals import Decision
from xtune.evidence.ratios import log_ratio
from xtune.evidence.verdicts import Verdict, undecided
from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import Objective
from xtune.search.budget import MIN_FINAL, Budget, final_size, min_launches_for_final
from xtune.search.events import Observer, Outline, Progress
from xtune.search.measurer import Measurer
from xtune.search.records import Record, Stage, Step
from xtune.search.store import Store
from xtune.search.strategy import Allowance, Favourite, Resolution, Strategy
from xtune.space.parameters import BARE
from xtune.space.spaces import Space

LIMIT_TIMES = 10.0
LIMIT_MORE_S = 60.0
"""Default timeout of a launch: ten times the bare command's time plus a minute."""

KEEP_PAUSES_S = (1.0, 5.0, 15.0, 60.0)
"""Pauses before a storage that cannot be reached is tried again."""

Answer = TypeVar("Answer")

WAIT_S = 1.0
"""Polling interval while workers on other machines are launching."""

LOOKS_BEFORE_TAKING_OVER = 5
"""All launches of a final are made on one machine. Another one takes over after this many polls without
a launch under way."""

MIN_NOISE_DEGREES = 2
"""Degrees of freedom of the noise before the resolution is reported."""

NOISE_KNOWN_AFTER = 12
"""Launches after which it is reported with fewer degrees of freedom."""

Turn = Callable[[], AbstractContextManager[object]]
"""Context of each launch that excludes other launches on this host."""


class Ended(enum.Enum):
    """Why a search ended."""

    DONE = "done"
    """Nothing is left to launch."""
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    STORAGE = "storage"
    """The storage failed."""


class Result(NamedTuple):
    """The result of a search."""

    verdict: Verdict
    favourite: Favourite | None
    """The configuration that is probably best; only the verdict is evidence."""
    decision: Decision | None
    """The state of the final; None without one."""
    resolution: Resolution | None
    """The gains that its budget could show."""
    records: tuple[Record, ...]
    """All records of the study, also of earlier searches and other workers."""
    launches: int
    """Launches finished in this search."""
    ended: Ended
    trouble: str = ""
    """The error of the storage, if any."""


class Search:
    """Runs a strategy until its budget is used up."""

    def __init__(
        self,
        space: Space,
        strategy: Strategy,
        measurer: Measurer,
        store: Store,
        objective: Objective,
        budget: Budget,
        *,
        observer: Observer | None = None,
        limit_s: float | None = None,
        turn: Turn = contextlib.nullcontext,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`limit_s`: timeout of a launch. Raises BudgetError for a budget without a limit."""
        if budget == Budget():
            raise BudgetError(
                "a search without a budget never ends; give one, such as --budget 10m"
            )
        self._space = space
        self._strategy = strategy
        self._measurer = measurer
        self._store = store
        self._objective = objective
        self._budget = budget
        self._observer = observer or Observer()
        self._limit_s = limit_s
        self._turn = turn
        self._sleep = sleep
        self._walls: list[float] = []
        self._began_s = measurer.now_s()
        self._since = self._earlier = 0
        self._stage: Stage | None = None
        self._favourite: Favourite | None = None
        self._resolution_told = False
        self._records: tuple[Record, ...] = ()
        """The records last read, and those made since."""
        self._trouble = ""
        self._idle_looks = 0
        """Consecutive polls at which no worker had a launch under way."""

    def run(self) -> Result:
        """Search, and conclude.

        Raises MetricNotSeenError, ObjectiveError or TunerError if the bare command cannot be measured,
        StorageError if the storage cannot be reached at the beginning.
        """
        self._records = tuple(self._store.records())
        self._since = max((record.number + 1 for record in self._records), default=0)
        self._earlier = _without_final(self._records)
        ended = Ended.INTERRUPTED
        try:
            ended = self._search()
        except KeyboardInterrupt:
            pass
        except StorageError as error:
            ended, self._trouble = Ended.STORAGE, str(error)
        return self._conclude(ended)

    def _search(self) -> Ended:
        self._observer.started(self._outline())
        while True:
            with self._turn():
                self._read()
                allowance = self._allowance()
                step = self._strategy.next(self._records, allowance)
                if step is not None and not self._is_of_others(step):
                    self._launch(step, allowance)
                    continue
            if allowance.left < 1:
                return Ended.BUDGET
            busy = sorted({record.host for record in self._records if record.launch is None})
            if step is None and not busy:
                return Ended.DONE
            # Their launches end, or count as lost after a while without a heartbeat.
            self._idle_looks = 0 if busy else self._idle_looks + 1
            self._observer.waiting_for_others(busy)
            self._sleep(WAIT_S)

    def _is_of_others(self, step: Step) -> bool:
        """Whether a launch belongs to a final that another machine runs."""
        if step.stage is not Stage.FINAL or self._idle_looks >= LOOKS_BEFORE_TAKING_OVER:
            return False
        attempt = step.details["attempt"]
        hosts = [
            record.host
            for record in self._records
            if record.step.stage is Stage.FINAL and record.step.details["attempt"] == attempt
        ]
        return bool(hosts) and hosts[-1] != self._store.host

    def _launch(self, step: Step, allowance: Allowance) -> None:
        number = self._patiently(lambda: self._store.claim(step))
        if number is None:
            return  # another worker was faster
        self._change_stage(step.stage)
        self._observer.launching(step, self._progress(allowance, step.stage))
        try:
            launch = self._measurer.measure(
                step.configuration, cut_at=step.cut_at, limit_s=self._limit()
            )
        except BaseException as error:
            self._store.abandon(number, type(error).__name__)
            raise
        self._walls.append(launch.secondary.wall_s)
        record = Record(number, step, self._store.host, launch)
        self._records = (*self._records, record)
        if not self._patiently(lambda: self._store.finish(number, launch)):
            self._records = self._records[:-1]
            self._observer.lost(step)
            return
        if step.stage is Stage.BASELINE:
            require_baseline(launch, self._objective)
        self._observer.launched(record, self._progress(self._allowance(), step.stage))
        if step.configuration != BARE:
            self._look_for_favourite()
        self._tell_resolution()

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Call the store, and try again for a while if the storage cannot be reached."""
        for pause_s in (*KEEP_PAUSES_S, None):
            try:
                return ask()
            except StorageError as error:
                if pause_s is None:
                    raise
                self._observer.storage_trouble(str(error), pause_s)
                self._sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _read(self) -> None:
        self._records = tuple(self._patiently(self._store.records))

    def _change_stage(self, stage: Stage) -> None:
        if stage not in (self._stage, Stage.CONTROL):
            self._stage = stage
            self._observer.stage_changed(stage)

    def _look_for_favourite(self) -> None:
        if type(self._observer) is Observer:
            return  # nobody listens
        favourite = self._strategy.favourite(self._records)
        before = self._favourite
        self._favourite = favourite
        if favourite is not None and (
            before is None or before.configuration != favourite.configuration
        ):
            self._observer.favourite_changed(favourite)

    def _tell_resolution(self) -> None:
        """Report the resolution once, as soon as the noise can be estimated."""
        if self._resolution_told or type(self._observer) is Observer:
            return
        found = self._strategy.resolution(self._records, self._allowance())
        if found is None:
            return
        if found.degrees >= MIN_NOISE_DEGREES or len(self._walls) >= NOISE_KNOWN_AFTER:
            self._resolution_told = True
            self._observer.resolution_known(found)

    def _outline(self) -> Outline:
        return Outline(
            size=self._space.size,
            plans=self._strategy.plans,
            races=self._strategy.races(self._allowance()),
            budget=self._budget,
            records=len(self._records),
        )

    def _allowance(self) -> Allowance:
        made = len(self._walls)
        left = self._budget.left(
            made,
            self._measurer.now_s() - self._began_s,
            statistics.fmean(self._walls) if self._walls else None,
        )
        return Allowance(left, made + left, self._since, self._earlier)

    def _progress(self, allowance: Allowance, stage: Stage) -> Progress:
        left_s = None
        if self._walls and math.isfinite(allowance.left):
            left_s = allowance.left * statistics.fmean(self._walls)
        elapsed_s = self._measurer.now_s() - self._began_s
        return Progress(len(self._walls), allowance.left, elapsed_s, left_s, stage)

    def _limit(self) -> float | None:
        if self._limit_s is not None:
            return self._limit_s
        bare = [
            record.launch.secondary.wall_s
            for record in self._records
            if record.launch is not None and record.step.configuration == BARE
        ]
        return LIMIT_TIMES * max(bare) + LIMIT_MORE_S if bare else self._budget.time_s

    def _conclude(self, ended: Ended) -> Result:
        favourite = self._strategy.favourite(self._records)
        final = self._strategy.final(self._records)
        if final is None:
            decision = None
            verdict = undecided(BARE, self._no_final(ended))
        else:
            decision = final.decision()
            verdict = decision.verdict
        return Result(
            verdict,
            favourite,
            decision,
            self._strategy.resolution(self._records, self._allowance()),
            self._records,
            len(self._walls),
            ended,
            self._trouble,
        )

    def _no_final(self, ended: Ended) -> str:
        if ended is Ended.STORAGE:
            return f"it ended before the final: {self._trouble}"
        if ended is Ended.INTERRUPTED:
            return "it was interrupted before the final; xtune resume continues it"
        allowance = self._allowance()
        if ended is Ended.DONE:  # a control launch may come before what is left, a final
            had_room, more = allowance.left >= MIN_FINAL.launches, MIN_FINAL.launches + 1
        else:
            had_room = final_size(allowance.total, self._earlier) is not None
            more = min_launches_for_final(_without_final(self._records))
        if had_room:
            return self._nothing_to_compare()
        return f"the budget was too small for a final; {more} more launches are enough for one"

    def _nothing_to_compare(self) -> str:
        """Why there was no finalist."""
        made = [one.launch for one in self._records if one.step.configuration != BARE]
        tried = [launch for launch in made if launch is not None]
        if not tried:
            return "only the bare command could be launched"
        measured = [launch for launch in tried if launch.outcome is Outcome.MEASURED]
        broke = sum(not self._objective.is_feasible(launch) for launch in measured)
        if not broke:
            return "all launches except those of the bare command failed"
        failed = f", and {len(tried) - broke} failed" if broke < len(tried) else ""
        return f"of {len(tried)} launches besides the bare command's, {broke} broke requirements{failed}"


def _without_final(records: Sequence[Record]) -> int:
    """The number of launches since the last final, or since the beginning."""
    made = [record.step.stage for record in records if record.launch is not None]
    return next((at for at, stage in enumerate(reversed(made)) if stage is Stage.FINAL), len(made))


def require_baseline(launch: Launch, objective: Objective) -> None:
    """Raise unless the bare command was measured: nothing can be compared with it."""
    if launch.outcome is Outcome.MEASURED:
        assert launch.value is not None
        log_ratio(launch.value, launch.value, objective.goal)
        return
    told = "; ".join(launch.notes)
    if launch.outcome is Outcome.NO_METRIC:
        raise MetricNotSeenError(told or f"the program printed no {objective.metric!r}")
    code = "" if launch.exit_code is None else f" with exit code {launch.exit_code}"
    lines = launch.stderr_tail.strip().splitlines()
    said = f": {lines[-1]}" if lines else ""
    raise TunerError(
        f"the program cannot be measured as it is, without xlaunch: it {launch.outcome.value}{code}"
        f"{said}{f' ({told})' if told else ''}; run it by hand first"
    )
