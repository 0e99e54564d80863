# SPDX-License-Identifier: Apache-2.0
"""The interfaces of a search: how it measures, and where it keeps its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xtune.errors import MetricNotSeenError, TunerError
from xtune.evidence.ratios import log_ratio
from xtune.launches.launch import Launch, Objective, Outcome
from xtune.search.records import Record, Step
from xtune.space.parameters import Configuration


class Measurer(Protocol):
    """Starts the workload once under a configuration and returns the result."""

    def plan_hash(self, configuration: Configuration) -> str | None:
        """Hash of a configuration's plan on this machine; None if it cannot be carried out.

        Configurations with equal hashes are measured as one.
        """
        ...

    def measure(
        self,
        configuration: Configuration,
        *,
        cut_at: float | None = None,
        limit_s: float | None = None,
    ) -> Launch:
        """Make one launch. Failures of the workload do not raise.

        configuration
            From the space, or `xtune.space.parameters.BARE`: the command without xlaunch.
        cut_at
            End it early, as Outcome.CUT, once it cannot reach this value any more.
        limit_s
            Time limit; it ends the launch as Outcome.TIMED_OUT.
        """
        ...

    def now_s(self) -> float:
        """The clock for budgets, in seconds; real or recorded."""
        ...


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


class Store(Protocol):
    """Stores records; several workers may share the storage behind it."""

    @property
    def host(self) -> str:
        """The host of this worker."""
        ...

    def records(self) -> Sequence[Record]:
        """All records that count, by number: finished launches and those under way anywhere.

        Launches whose worker is dead are left out.
        """
        ...

    def claim(self, step: Step) -> int | None:
        """The number of the new record; None if another worker has its key."""
        ...

    def finish(self, number: int, launch: Launch) -> bool:
        """Store the result. False: another worker considered the launch lost; nothing is stored."""
        ...

    def abandon(self, number: int, reason: str) -> None:
        """Withdraw a launch that was not finished; it does not count."""
        ...
