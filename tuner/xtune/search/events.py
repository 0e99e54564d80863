# SPDX-License-Identifier: Apache-2.0
"""Events of a search, for its display."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xtune.search.budget import Budget
from xtune.search.records import Record, Stage, Step
from xtune.search.strategy import Favourite, Resolution


class Outline(NamedTuple):
    """The scope of a search."""

    size: int
    """Number of configurations in the space."""
    plans: int | None
    """Number of different plans among them; None if there are too many to resolve."""
    races: bool
    """Every plan will be launched several times."""
    budget: Budget
    records: int
    """Launches of earlier searches of the study."""


class Progress(NamedTuple):
    """The progress of a search."""

    launches: int
    """Finished launches of this search."""
    left: float
    """Estimated remaining launches; infinite before a launch was timed."""
    elapsed_s: float
    left_s: float | None
    """None before a launch was timed."""
    stage: Stage


class Observer:
    """Receives all events and does nothing. Methods may raise an interruption."""

    def started(self, outline: Outline) -> None:
        """The search begins."""

    def waiting(self, holder: str) -> None:
        """Another search launches on this host now. `holder` names it. **Ex.:** ``PID 4711``."""

    def waiting_for_others(self, hosts: Sequence[str]) -> None:
        """Launches of these other machines must end first.

        Empty while waiting for the machine that runs the final.
        """

    def stage_changed(self, stage: Stage) -> None:
        """The purpose of launches changes; controls do not count."""

    def launching(self, step: Step, progress: Progress) -> None:
        """A launch begins."""

    def launched(self, record: Record, progress: Progress) -> None:
        """A launch has ended, with any outcome."""

    def favourite_changed(self, favourite: Favourite) -> None:
        """Another configuration is probably best."""

    def resolution_known(self, resolution: Resolution) -> None:
        """The noise is known, and with it the gains that the budget can show."""

    def lost(self, step: Step) -> None:
        """Another worker considered this launch lost, so it does not count."""

    def edited(self) -> None:
        """The program's file has changed since the previous launch."""

    def storage_trouble(self, message: str, pause_s: float) -> None:
        """The storage cannot be reached; the next attempt is in `pause_s`."""
