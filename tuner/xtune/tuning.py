# SPDX-License-Identifier: Apache-2.0
"""How xtune finds the best way to run a program, from top to bottom.

`next_step` is the algorithm: it chooses the next launch from all launches so far. `Search` makes the
launches until the budget is used up; Ctrl-C ends it with the verdict so far, and a second one, while the
verdict is computed, is raised to the caller. `xtune.tune` is the library call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, TypeVar

from xtune.errors import BudgetError, StorageError
from xtune.evidence.verdicts import MoreBudget, undecided
from xtune.launches.launch import Limits, Objective, Outcome
from xtune.launches.suspension import Suspended, suspend, suspendable
from xtune.search.budget import MIN_FINAL, Budget, final_size, min_launches_for_final
from xtune.search.events import (
    Allowance,
    EndReason,
    Favourite,
    Measurer,
    Observer,
    Outline,
    Progress,
    SearchOutcome,
    require_baseline,
)
from xtune.search.records import NextLaunch, Record, Stage, bare_walls_s, ended_launches
from xtune.search.strategy import Strategy, final_records
from xtune.space.parameters import BARE
from xtune.space.spaces import Space

if TYPE_CHECKING:
    from xtune.search.study_store import StudyStore

LIMIT_TIMES = 10.0
LIMIT_MORE_S = 60.0
"""Default timeout of a launch: ten times the bare command's time plus a minute."""

KEEP_PAUSES_S = (1.0, 5.0, 15.0, 60.0)
"""Pauses before a storage that cannot be reached is tried again."""

WAIT_S = 1.0
"""Polling interval while workers on other machines are launching."""

LOOKS_BEFORE_TAKING_OVER = 5
"""A final is made on one machine; another takes over after so many polls without a launch."""

MIN_NOISE_DEGREES = 2
"""Degrees of freedom of the noise before the resolution is reported."""

NOISE_KNOWN_AFTER = 12
"""Number of launches after which the resolution is reported with fewer degrees of freedom, too."""

Answer = TypeVar("Answer")


def next_step(
    strategy: Strategy, records: Sequence[Record], allowance: Allowance
) -> NextLaunch | None:
    """The next launch. None: finished, or other workers must finish theirs first."""
    if allowance.left < 1:
        return None

    # A final that has begun is continued until its result is clear or the budget is used up. After a
    # clear one of an earlier search, this search goes on and has a final of its own, and so it does if
    # every finalist failed and there is room for others.
    final = strategy.final(records)
    if final is not None:
        final_launches = [record for _, record in final_records(records)]
        if _is_under_way(final_launches):
            return None
        step = strategy.final_step(final, allowance.left)
        goes_on = final_launches[-1].number < allowance.since or (
            final.is_deserted and allowance.left > MIN_FINAL.launches
        )
        if step is not None or not (final.is_over and goes_on):
            return step

    # First of all the bare command: everything is compared with it.
    if step := strategy.bare_command(records):
        return step

    # A third of the budget is kept for the final, and always what the smallest one takes. If the best is clearly ahead, each of its changes is
    # left out once before that, to tell what mattered and to drop what does nothing.
    size = strategy.size_of_final(records, allowance)
    if size is not None:
        spare = allowance.left - strategy.cost_of_final(records, size, allowance)
        if spare <= strategy.checks_left(records):
            step = strategy.check(records) if spare > 0 else None
            step = step or strategy.first_of_final(records, size.with_rest(allowance.left))
            if step is not None:
                return step

    # The search itself. The bare command is repeated now and then to see noise and drift.
    step = (
        strategy.control(records) or strategy.starting_point(records) or strategy.proposal(records)
    )
    if step is not None or _is_under_way(records):
        return step

    # Nothing is left to search: the rest of the budget is for the final.
    rest_size = strategy.size_of_final(records, allowance, rest=True)
    if rest_size is None:
        return None
    if rest_size.launches + strategy.checks_left(records) <= allowance.left and (
        step := strategy.check(records)
    ):
        return step
    return strategy.first_of_final(records, rest_size)


def _is_under_way(records: Sequence[Record]) -> bool:
    return any(record.launch is None for record in records)


@dataclass(eq=False)
class Search:
    """Makes the launches of a strategy until its budget is used up.

    Raises BudgetError for a budget without a limit.
    """

    space: Space
    strategy: Strategy
    measurer: Measurer
    store: StudyStore
    objective: Objective
    budget: Budget
    _: KW_ONLY
    observer: Observer = field(default_factory=Observer)
    limit_s: float | None = None
    """Timeout of a launch."""
    host_lock: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    """Makes the context of each launch, which excludes other launches on this host."""
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        if self.budget == Budget():
            raise BudgetError(
                "a search without a budget never ends; give one, such as --budget 10m"
            )
        self._held_lock: contextlib.ExitStack | None = None
        """Holds the lock of this host; None outside of it."""
        self._walls: list[float] = []
        self._began_s = self.measurer.now_s()
        self._since = self._earlier = 0
        self._stage: Stage | None = None
        self._favourite: Favourite | None = None
        self._resolution_told: Stage | None = None
        self._records: tuple[Record, ...] = ()
        """The records last read, and those made since."""
        self._trouble = ""
        self._idle_looks = 0
        """Consecutive polls at which no worker had a launch under way."""

    def run(self) -> SearchOutcome:
        """Search, and conclude.

        Raises MetricNotSeenError, ObjectiveError or TunerError if the bare command cannot be measured,
        StorageError if the storage cannot be reached at the beginning.
        """
        self._records = tuple(self.store.records())
        self._since = max((record.number + 1 for record in self._records), default=0)
        self._earlier = _without_final(self._records)
        end_reason = EndReason.INTERRUPTED
        try:
            end_reason = self._search()
        except KeyboardInterrupt:
            pass
        except StorageError as error:
            end_reason, self._trouble = EndReason.STORAGE, str(error)
        if end_reason is not EndReason.INTERRUPTED:
            # A first interruption comes too late now to end anything.
            with contextlib.suppress(KeyboardInterrupt):
                return self._conclude(end_reason)
        return self._conclude(end_reason)

    def _search(self) -> EndReason:
        size, plans, earlier = self.space.size, self.strategy.plans, len(self._records)
        self.observer.started(Outline(size, plans, self.budget, earlier))
        while True:
            try:
                with self._host_locked():
                    self._records = tuple(self._patiently(self.store.records))
                    allowance = self._allowance()
                    step = next_step(self.strategy, self._records, allowance)
                    if step is not None and not self._is_of_others(step):
                        self._launch(step, allowance)
                        continue
            except Suspended:
                self._suspend()
                continue
            if allowance.left < 1:
                return EndReason.BUDGET
            busy = sorted({record.host for record in self._records if record.launch is None})
            if step is None and not busy:
                return EndReason.DONE
            # Their launches end, or count as lost after a while without a heartbeat.
            self._idle_looks = 0 if busy else self._idle_looks + 1
            self.observer.waiting_for_others(busy)
            self.sleep(WAIT_S)

    def _launch(self, step: NextLaunch, allowance: Allowance) -> None:
        number = self._patiently(lambda: self.store.claim(step))
        if number is None:
            return  # another worker was faster
        if step.stage not in (self._stage, Stage.CONTROL):
            self._stage = step.stage
            self.observer.stage_changed(step.stage)
        self.observer.launching(step, self._progress(allowance, step.stage))
        try:
            with suspendable():
                limits = Limits(step.cut_at, self._limit())
                launch = self.measurer.measure(step.configuration, limits)
        except BaseException as error:
            self.store.abandon(number, type(error).__name__)
            raise
        self._walls.append(launch.secondary.wall_s)
        record = Record(number, step, self.store.host, launch)
        self._records = (*self._records, record)
        if not self._patiently(lambda: self.store.finish(number, launch)):
            self._records = self._records[:-1]
            self.observer.lost(step)
            return
        if step.stage is Stage.BASELINE:
            require_baseline(launch, self.objective)
        self.observer.launched(record, self._progress(self._allowance(), step.stage))
        if len(self._walls) == 1 and final_size(self._allowance().total, self._earlier) is None:
            needed = self._needed_for_final(self._earlier)
            self.observer.budget_too_small(self._allowance().total, needed)
        if type(self.observer) is not Observer:  # somebody listens
            self._tell(step)

    def _needed_for_final(self, earlier: int) -> MoreBudget:
        """The launches that a final takes, after `earlier` without one."""
        needed = min_launches_for_final(earlier)
        launch_s = self._elapsed_s() / max(1, len(self._walls))
        return MoreBudget(0, needed, needed * launch_s)

    def _elapsed_s(self) -> float:
        return self.measurer.now_s() - self._began_s

    def _suspend(self) -> None:
        """Stop this process until the shell continues it; the time does not count."""
        self.observer.suspending()
        stopped_s = self.measurer.now_s()
        suspend()
        self._began_s += self.measurer.now_s() - stopped_s
        self.observer.resumed()

    def _is_of_others(self, step: NextLaunch) -> bool:
        """Whether a launch belongs to a final that another machine runs."""
        if step.details is None or self._idle_looks >= LOOKS_BEFORE_TAKING_OVER:
            return False
        rows = final_records(self._records)
        hosts = [record.host for details, record in rows if details.plan == step.details.plan]
        return bool(hosts) and hosts[-1] != self.store.host

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Call the store, and try again for a while if the storage cannot be reached."""
        for pause_s in (*KEEP_PAUSES_S, None):
            try:
                return ask()
            except StorageError as error:
                if pause_s is None:
                    raise
                self.observer.storage_trouble(str(error), pause_s)
                self._pause(pause_s)
        raise AssertionError("the last attempt returns or raises")

    @contextlib.contextmanager
    def _host_locked(self) -> Iterator[None]:
        with contextlib.ExitStack() as lock:
            lock.enter_context(self.host_lock())
            self._held_lock = lock
            try:
                yield
            finally:
                self._held_lock = None

    def _pause(self, pause_s: float) -> None:
        """Sleep while other searches on this host may launch."""
        held = self._held_lock
        if held is not None:
            held.close()
        self.sleep(pause_s)
        if held is not None:
            held.enter_context(self.host_lock())

    def _tell(self, step: NextLaunch) -> None:
        """Report another favourite, and the resolution: once the noise is known, and with the final."""
        before = self._favourite
        if step.configuration != BARE:
            self._favourite = self.strategy.favourite(self._records)
        now = self._favourite
        if now is not None and (before is None or before.configuration != now.configuration):
            self.observer.favourite_changed(now)
        if self._resolution_told is None or (
            step.stage is Stage.FINAL and self._resolution_told is not Stage.FINAL
        ):
            resolution = self.strategy.resolution(self._records, self._allowance())
            if resolution is not None and (
                resolution.degrees >= MIN_NOISE_DEGREES or len(self._walls) >= NOISE_KNOWN_AFTER
            ):
                self._resolution_told = step.stage
                self.observer.resolution_known(resolution)

    def _allowance(self) -> Allowance:
        launches, elapsed_s = len(self._walls), self._elapsed_s()
        # With what xtune itself does between launches.
        launch_s = elapsed_s / launches if launches else None
        left = self.budget.left(launches, elapsed_s, launch_s)
        limited_s = launch_s if self.budget.time_s is not None else None
        return Allowance(left, launches + left, self._since, self._earlier, limited_s)

    def _progress(self, allowance: Allowance, stage: Stage) -> Progress:
        return Progress(len(self._walls), allowance.left, self._elapsed_s(), stage)

    def _limit(self) -> float | None:
        if self.limit_s is not None:
            return self.limit_s
        bare_s = bare_walls_s(self._records)
        return LIMIT_TIMES * max(bare_s) + LIMIT_MORE_S if bare_s else self.budget.time_s

    def _conclude(self, end_reason: EndReason) -> SearchOutcome:
        final = self.strategy.final(self._records)
        if final is not None:
            verdict = final.verdict()
        else:
            reason, more = self._no_final(end_reason)
            verdict = undecided(BARE, reason)._replace(more=more)
        return SearchOutcome(
            verdict,
            self.strategy.favourite(self._records),
            final,
            self.strategy.resolution(self._records, self._allowance()),
            self._records,
            len(self._walls),
            end_reason,
            self._trouble,
        )

    def _no_final(self, end_reason: EndReason) -> tuple[str, MoreBudget | None]:
        """Why there was none, and the launches for one if the budget was too small."""
        if end_reason is EndReason.STORAGE:
            return f"it ended before the final: {self._trouble}", None
        if end_reason is EndReason.INTERRUPTED:
            return "it was interrupted before the final", None
        allowance = self._allowance()
        needed = self._needed_for_final(_without_final(self._records))
        if end_reason is EndReason.DONE:  # a control launch may come before what is left, a final
            had_room = allowance.left >= MIN_FINAL.launches
            needed = needed._replace(launches=MIN_FINAL.launches + 1)
        else:
            had_room = final_size(allowance.total, self._earlier) is not None
        if had_room:
            return self._nothing_to_compare(), None
        enough = f"{needed.launches} more launches are enough for one"
        return f"the budget was too small for a final; {enough}", needed

    def _nothing_to_compare(self) -> str:
        """The reason why there was no finalist."""
        tried = [launch for launch in ended_launches(self._records) if launch.configuration != BARE]
        if not tried:
            return "only the bare command could be launched"
        measured = [launch for launch in tried if launch.outcome is Outcome.MEASURED]
        broke = sum(not self.objective.is_feasible(launch) for launch in measured)
        if not broke:
            return "all launches except those of the bare command failed"
        failed = f", and {len(tried) - broke} failed" if broke < len(tried) else ""
        return f"of {len(tried)} launches besides the bare command's, {broke} broke requirements{failed}"


def _without_final(records: Sequence[Record]) -> int:
    """The number of launches since the last final, or since the beginning."""
    stages = [record.step.stage for record in records if record.launch is not None]
    finals = [at for at, stage in enumerate(stages, start=1) if stage is Stage.FINAL]
    return len(stages) - max(finals, default=0)
