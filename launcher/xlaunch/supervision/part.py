# SPDX-License-Identifier: Apache-2.0
"""What the supervisor does beside starting and ending instances, as parts with one interface."""

from __future__ import annotations

import math

from xlaunch.output.relay import Chunk
from xlaunch.report import Report
from xlaunch.supervision.instance_run import InstanceRun


class Part:
    """A part of the supervisor, which calls these methods; most parts need a few of them. None blocks."""

    due: float = math.inf
    """When to call `look`, on the clock of `time.monotonic()`."""
    reads_output = False
    """Whether `feed` must have all output of an instance before `ended` is called."""

    def variables(self, index: int) -> dict[str, str]:
        """The variables that instance `index` gets besides its own."""
        return {}

    def started(self, run: InstanceRun) -> None:
        """An instance was started or restarted."""

    def ended(self, run: InstanceRun) -> None:
        """An instance has ended, whether or not it will be restarted."""

    def feed(self, chunk: Chunk) -> None:
        """An instance wrote to a relayed stream."""

    def look(self, now: float) -> None:
        """`due` has come."""

    def owns(self, descriptor: int) -> bool:
        """Whether `handle` is to be called when poll() reports this descriptor."""
        return False

    def handle(self, descriptor: int) -> None:
        """poll() has reported a descriptor of this part."""

    def reap(self, pid: int) -> None:
        """A child in `RunState.helpers` has ended; reap it if it is of this part."""

    def release(self) -> None:
        """The instances were asked to end; called again on each further signal."""

    def finish(self) -> None:
        """The last process has ended, and all output was fed."""

    def add_to(self, report: Report) -> Report:
        """The report with what this part knows, after `finish`."""
        return report
