# SPDX-License-Identifier: Apache-2.0
"""How a search has something measured, whoever does it: real launches, or recorded ones."""

from __future__ import annotations

from typing import Protocol

from xtune.measurement.launches import Launch
from xtune.space.parameters import Configuration


class Measurer(Protocol):
    """Starts the workload once under a configuration and tells what was seen."""

    def plan_hash(self, configuration: Configuration) -> str | None:
        """What the configuration comes to on this machine; None when it cannot be carried out here.

        Configurations with equal hashes are one: they are measured as one.
        """
        ...

    def measure(
        self,
        configuration: Configuration,
        *,
        cut_at: float | None = None,
        limit_s: float | None = None,
    ) -> Launch:
        """One launch; it never raises for what the workload does.

        configuration
            One of the space, or `xtune.space.parameters.BARE`: the command without xlaunch.
        cut_at
            End it early, as Outcome.CUT, once its value is surely worse than this.
        limit_s
            End it after so many seconds, as Outcome.TIMED_OUT.
        """
        ...

    def now_s(self) -> float:
        """The time that budgets are counted in: seconds; a clock, or a recorded one."""
        ...
