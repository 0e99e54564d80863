# SPDX-License-Identifier: Apache-2.0
"""The interfaces of a search: its input, measurements, store, events and result."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from xtune.errors import MetricNotSeenError, TunerError
from xtune.evidence.finals import Final
from xtune.evidence.ratios import log_ratio
from xtune.evidence.verdicts import MoreBudget, Verdict
from xtune.launches.launch import NO_LIMITS, Launch, Limits, Objective, Outcome
from xtune.launches.summaries import compared
from xtune.search.budget import Budget
from xtune.search.records import NextLaunch, Record, Stage
from xtune.space.parameters import Configuration


class Seed(NamedTuple):
    """A configuration worth trying first."""

    origin: str
    """**Ex.:** ``preset throughput``, ``winner of an earlier study``."""
    configuration: Configuration


class Allowance(NamedTuple):
    """Estimated number of launches that the budget allows; infinite without a limit."""

    left: float
    total: float
    """All launches of this search, including the final."""
    since: int = 0
    """Records with lower numbers belong to earlier searches of the study."""
    earlier: int = 0
    """Launches of earlier searches since the last final."""
    launch_s: float | None = None
    """Mean time of a launch if time is limited."""


class Resolution(NamedTuple):
    """The gains that a search can show with its budget, in the worst case."""

    spread: float
    """Noise between launches of the same plan: 0.03 is 3 %."""
    degrees: int
    """Degrees of freedom of `spread`."""
    gain: float
    """The smallest gain that the final finds with 80 % probability: 0.06 is 6 %."""
    low: float
    high: float
    """The same at both ends of the noise's 90 % confidence interval."""


class Favourite(NamedTuple):
    """The configuration that is probably best so far. This is not evidence; only the final is."""

    configuration: Configuration
    value: float
    """Estimated by the model, in the unit of the metric."""
    ratio: float | None
    """Ratio to the bare command, above 1 is better."""
    second: Configuration | None = None
    """The second best; None if only one was measured."""
    step: float = 0.0
    """See `Objective.step`: other than 0, `ratio` stands for a difference."""


class Outline(NamedTuple):
    """The scope of a search."""

    size: int
    """Number of configurations in the space."""
    plans: int | None
    """Number of different plans among them; None if there are too many to resolve."""
    budget: Budget
    records: int
    """Launches of earlier searches of the study."""


class Progress(NamedTuple):
    launches: int
    """Finished launches of this search."""
    left: float
    """Estimated remaining launches; infinite before a launch was timed."""
    elapsed_s: float
    stage: Stage


class EndReason(enum.Enum):
    """Why a search ended."""

    DONE = "done"
    """Nothing is left to launch."""
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    STORAGE = "storage"
    """The storage failed."""
    UNKNOWN = "unknown"


class SearchOutcome(NamedTuple):
    """The result of a search."""

    verdict: Verdict
    favourite: Favourite | None
    """The configuration that is probably best; only the verdict is evidence."""
    final: Final | None
    """The last final; None without one."""
    resolution: Resolution | None
    """The gains that its budget could show."""
    records: tuple[Record, ...]
    """All records of the study, also of earlier searches and other workers."""
    launches: int
    """Launches finished in this search."""
    end_reason: EndReason
    trouble: str = ""
    """The error of the storage, if any."""


class Observer:
    """Receives all events and does nothing. Methods may raise an interruption."""

    def started(self, outline: Outline) -> None:
        """The search begins."""

    def waiting(self, holder: str) -> None:
        """Another search launches on this host now. `holder` names it. **Ex.:** ``PID 4711``."""

    def waiting_for_others(self, hosts: Sequence[str]) -> None:
        """Launches of these machines must end first; empty while waiting for the machine of the final."""

    def stage_changed(self, stage: Stage) -> None:
        """The purpose of launches changes; controls do not count."""

    def launching(self, step: NextLaunch, progress: Progress) -> None:
        """A launch begins."""

    def launched(self, record: Record, progress: Progress) -> None:
        """A launch has ended, with any outcome."""

    def favourite_changed(self, favourite: Favourite) -> None:
        """Another configuration is probably best."""

    def resolution_known(self, resolution: Resolution) -> None:
        """The gains that the budget can show: once the noise is known, and again before the final."""

    def budget_too_small(self, made: float, more: MoreBudget) -> None:
        """After the first launch: the budget allows about `made` launches; a verdict takes `more`."""

    def rate_printed(self, name: str) -> None:
        """Wall time is compared, and the program prints a rate, which --metric can name."""

    def load_tried(self, text: str) -> None:
        """A service was put under one of several loads.

        **Ex.:** ``c=64: 1,210 requests/sec, p99 180 ms: holds``.
        """

    def suspending(self) -> None:
        """Ctrl-Z has ended the running launch, and is about to stop this process."""

    def resumed(self) -> None:
        """The process runs again, and makes that launch again."""

    def lost(self, step: NextLaunch) -> None:
        """Another worker considered this launch lost, so it does not count."""

    def edited(self) -> None:
        """The program's file has changed since the previous launch."""

    def storage_trouble(self, message: str, pause_s: float) -> None:
        """The storage cannot be reached; the next attempt is in `pause_s`."""


class Measurer(Protocol):
    """Starts the workload once under a configuration and returns the result."""

    def measure(self, configuration: Configuration, limits: Limits = NO_LIMITS) -> Launch:
        """Make one launch. Failures of the workload do not raise.

        configuration
            From the space, or `xtune.space.parameters.BARE`: the command without xlaunch.
        """
        ...

    def now_s(self) -> float:
        """The clock for budgets, in seconds; real or recorded."""
        ...


_ENDED = {
    Outcome.NOT_STARTED: "was not started",
    Outcome.CUT: "was cut",
    Outcome.OUT_OF_MEMORY: "ran out of memory",
    Outcome.SATURATED: "was under a load generator at its limit",
    Outcome.NOT_FINITE: "printed a value that is not finite",
}
"""Outcomes as they stand after "it"; others stand as they are."""


def require_baseline(launch: Launch, objective: Objective) -> None:
    """Raise unless the bare command was measured: nothing can be compared with it."""
    if launch.outcome is Outcome.MEASURED:
        log_ratio(launch.value, launch.value, compared(objective, [launch]))
        return
    told = "; ".join(launch.notes)
    outcome = _ENDED.get(launch.outcome, launch.outcome.value)
    if launch.outcome is Outcome.NO_METRIC:
        raise MetricNotSeenError(told or f"the program printed no {objective.metric!r}")
    code = f" with exit code {launch.exit_code}" if launch.exit_code else ""
    said = f": {launch.last_words}" if launch.last_words else ""
    raise TunerError(
        f"the program cannot be measured as it is, without xlaunch: it {outcome}{code}"
        f"{said}{f' ({told})' if told else ''}; run it by hand first"
    )
