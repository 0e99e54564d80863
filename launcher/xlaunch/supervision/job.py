# SPDX-License-Identifier: Apache-2.0
"""What is run: one launch, as the keeper hands it to the supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xlaunch.environment import Environment
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import RunRequest

if TYPE_CHECKING:
    from xlaunch.leases import Lease
    from xlaunch.metrics.live import LiveWriter


class Job(NamedTuple):
    """One launch."""

    plan: Plan
    environment: Environment
    run: RunRequest
    table: bool
    """Print warnings, and the report as a table."""
    explain: bool = False
    """Explain the columns of the table."""
    live_line: bool = False
    """Show on a terminal what sampled devices do."""
    live: LiveWriter | None = None
    """Receives metric values as they come in."""
    report_descriptor: int | None = None
    """Where the pickled report goes."""
    lease: Lease | None = None
    """The record of this launch, where the command line has made one."""
