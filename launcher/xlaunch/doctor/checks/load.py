# SPDX-License-Identifier: Apache-2.0
"""Who else uses the CPUs now: other processes, and other virtual machines of the host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from xlaunch.doctor.checks.findings import Check, Facts, Finding, Severity, is_live

TITLE = "Load"


def show_load(facts: Facts) -> Iterator[Finding]:
    """Sample for half a second, if anything else is runnable, as a supervised run does."""
    # Imported here: they need what only Linux has.
    from xlaunch.supervision.other_work import SAMPLE_S, Occupancy, StolenTime, anything_runs

    if not anything_runs():
        yield Finding(Severity.OK, "no other process is running")
        return
    cpus = facts.machine.limits.allowed_cpus
    stolen = StolenTime(cpus)
    occupancy = Occupancy(cpus, time.monotonic())
    busy = None
    while busy is None and occupancy.due < float("inf"):
        time.sleep(SAMPLE_S)
        busy = occupancy.look(time.monotonic(), {}, {os.getpid()})
    steal = stolen.describe()
    slowest = (
        "a parallel region ends with its slowest thread (docs/supervision.md); timings vary with it"
    )
    if busy is not None:
        yield Finding(
            Severity.WARNING,
            busy.removesuffix("; --cpus takes others"),
            slowest,
            "ps -eo pid,pcpu,psr,args --sort=-pcpu | head\nxlaunch --cpus LIST PROGRAM",
        )
    if steal is not None:
        yield Finding(
            Severity.WARNING,
            steal.partition(":")[0],
            slowest,
            "vmstat 1 5  # column st; only the owner of the host can help",
        )
    if busy is None and steal is None:
        yield Finding(Severity.OK, "no CPU is busy with other work, and none is stolen")


CHECKS = (Check("load", show_load, is_live),)
