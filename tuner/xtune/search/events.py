# SPDX-License-Identifier: Apache-2.0
"""The events of a search, for those who show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xtune.search.budget import Budget
from xtune.search.records import Record, Stage, Step
from xtune.search.strategy import Favourite, Resolution


class Outline(NamedTuple):
    """What will be searched."""

    size: int
    """Configurations in the space."""
    plans: int | None
    """Different ways to start the workload among them; None where there are too many to look."""
    races: bool
    """All of them will be launched several times."""
    budget: Budget
    records: int
    """Launches that earlier searches of the same study have made."""


class Progress(NamedTuple):
    """How far it is."""

    launches: int
    """Of this search, finished."""
    left: float
    """Launches still to be made, as far as is known; infinite before one was timed."""
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
        """Nothing can be launched before launches of these other machines have ended.

        None of them where a final is left to the machine that makes it.
        """

    def stage_changed(self, stage: Stage) -> None:
        """The purpose of launches changes; controls do not count."""

    def launching(self, step: Step, progress: Progress) -> None:
        """A launch begins."""

    def launched(self, record: Record, progress: Progress) -> None:
        """A launch has ended, however it did."""

    def favourite_changed(self, favourite: Favourite) -> None:
        """Another configuration is probably best."""

    def resolution_known(self, resolution: Resolution) -> None:
        """The noise is known, and with it the gains that the budget can show."""

    def lost(self, step: Step) -> None:
        """Another worker took a launch made here for lost, so it does not count."""

    def edited(self) -> None:
        """The program's file has changed since the launch before."""

    def storage_trouble(self, message: str, pause_s: float) -> None:
        """The storage is out of reach; it is tried again after so many seconds."""
