# SPDX-License-Identifier: Apache-2.0
"""The interface through which a search measures: real launches, recorded or simulated ones."""

from __future__ import annotations

from typing import Protocol

from xtune.errors import MetricNotSeenError, TunerError
from xtune.evidence.ratios import log_ratio
from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import Objective
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
