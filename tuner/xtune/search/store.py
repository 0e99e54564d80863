# SPDX-License-Identifier: Apache-2.0
"""Where records are kept while a search runs, and how a launch is made sure to be made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xtune.measurement.launches import Launch
from xtune.search.records import Record, Step


class Store(Protocol):
    """Keeps records; several workers may share what is behind it."""

    @property
    def host(self) -> str:
        """Where this worker launches; controls of one host speak for its launches."""
        ...

    def records(self) -> Sequence[Record]:
        """All that count, by number: finished ones, and those that are under way somewhere.

        A launch that nobody will finish any more is none of them.
        """
        ...

    def claim(self, step: Step) -> int | None:
        """The number of the record now under way; None where its key is another's already."""
        ...

    def finish(self, number: int, launch: Launch) -> bool:
        """Keep what was seen. False: the claim had been given up for lost, and nothing is kept."""
        ...

    def abandon(self, number: int, reason: str) -> None:
        """The launch was not made to its end, and does not count."""
        ...
