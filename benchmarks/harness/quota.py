# SPDX-License-Identifier: Apache-2.0
"""Control groups with a CPU quota, as containers have."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from xlaunch.machine.limits import ControlGroups, read_counters
from xlaunch.machine.tree import Tree

PERIOD_US = 100_000
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
MAX_REMOVAL_S = 5.0
LEFT_S = 0.05
"""Pause between two looks for what is left in a group."""


class Periods(NamedTuple):
    """Periods in which the processes of a group ran."""

    all: int
    throttled: int
    """Those in which the quota was used up, and threads had to wait."""

    def share_since(self, before: Periods) -> float:
        """The share of throttled periods since `before`."""
        return (self.throttled - before.throttled) / max(1, self.all - before.all)


class QuotaGroup(NamedTuple):
    """A control group with a CPU quota."""

    directory: Path
    version: int

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` in the group."""
        return ["sh", "-c", ENTER, str(self.directory), *command]

    def periods(self) -> Periods:
        """The periods of the quota so far. Their counts are the same in both versions of control groups."""
        counters = read_counters(Tree("/"), str(self.directory / "cpu.stat"))
        return Periods(counters.get("nr_periods", 0), counters.get("nr_throttled", 0))

    def remove(self) -> None:
        """End what programs have left behind in the group, and remove it."""
        while left := (self.directory / "cgroup.procs").read_text().split():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(LEFT_S)
        deadline = time.monotonic() + MAX_REMOVAL_S
        while True:  # what was ended counts until its parent has read its exit status
            try:
                self.directory.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LEFT_S)
            else:
                return


def make_group(quota: float) -> QuotaGroup | None:
    """Make a group with a quota of so many CPUs, in the innermost group that allows it; None if none does."""
    for group in [
        level for levels in ControlGroups(Tree("/")).enclosing("cpu") for level in levels
    ]:
        directory = Path(group.directory) / f"xlaunch-benchmark-{os.getpid()}-{quota:g}"
        quota_us = f"{quota * PERIOD_US:.0f}"
        try:
            directory.mkdir()
        except OSError:
            continue
        try:
            if group.version == 2:
                (directory / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (directory / "cpu.cfs_quota_us").write_text(quota_us)
        except OSError:
            directory.rmdir()
        else:
            return QuotaGroup(directory, group.version)
    return None
