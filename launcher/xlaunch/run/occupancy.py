# SPDX-License-Identifier: Apache-2.0
"""CPUs that others keep busy: before a run begins by processes, during it by the host's others.

An instance that shares a core with a stranger is slow, and a parallel region is as slow as its
slowest thread. Only a supervised run looks, and only where the kernel counts more than this one
process as runnable: an idle machine is not looked at longer, and a launch in place never waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.run.processes import TICKS_PER_SECOND, read_file, read_status

SAMPLE_S = 0.1
"""Ten ticks of most kernels: a share is known to a tenth."""

BUSY_SHARE = 0.5
OCCUPANT_SHARE = 0.2
"""Of a CPU, that a process must use to be named."""

MOST_NAMED = 3

STOLEN_SHARE = 0.05
LEAST_STOLEN_TICKS = 10
"""Of the time that a run wanted, and in all; below that nothing is said of what the host took."""


_BUSY = "busy with other work"
_STOLEN = "to other machines (steal in /proc/stat)"


def tells_of_others(warning: str) -> bool:
    """Whether a warning of a run is one of those made here."""
    return _BUSY in warning or _STOLEN in warning


class _Ticks(NamedTuple):
    """Of a CPU since boot (see proc_stat(5))."""

    work: int
    """That it worked, or would have, had the host not given it to others."""
    stolen: int
    total: int


class Occupant(NamedTuple):
    """A process that keeps a CPU busy."""

    pid: int
    name: str


def describe_occupancy(
    cpus: Iterable[int], *, root: str = "/proc", sleep: Callable[[float], None] = time.sleep
) -> str | None:
    """A line about those of `cpus` that others keep busy; None when none of them is.

    Takes `SAMPLE_S` when anything else runs on the machine, twice that when a CPU is busy.
    """
    if not _anything_runs(root):
        return None
    before = _times(root)
    sleep(SAMPLE_S)
    shares = _busy_shares(before, _times(root))
    busy = {cpu: shares[cpu] for cpu in cpus if shares.get(cpu, 0.0) >= BUSY_SHARE}
    if not busy:
        return None
    occupants = _find_occupants(busy.keys(), root, sleep)
    named = [f"{occupant.name} (PID {occupant.pid})" for occupant in occupants[:MOST_NAMED]]
    if len(occupants) > MOST_NAMED:
        named.append(f"{len(occupants) - MOST_NAMED} more")
    one = len(busy) == 1
    share = sum(busy.values()) / len(busy)
    return (
        f"CPU{'' if one else 's'} {format_cpu_list(busy)} {'is' if one else 'are'} {_BUSY} "
        f"({share:.0%}{'' if one else ' on average'}): "
        f"{', '.join(named) or 'of processes that are not seen from here'}; "
        "--cpus takes others"
    )


class StolenTime:
    """What the host of a virtual machine gives to others of the time that a run wants.

    A parallel region ends with its slowest thread, so little of this costs much.
    """

    def __init__(self, cpus: Iterable[int], *, root: str = "/proc") -> None:
        """Begins to count."""
        self._cpus = frozenset(cpus)
        self._root = root
        self._before = _times(root)

    def describe(self) -> str | None:
        """A line about the time since; None where it was next to nothing."""
        stolen, wanted = self._since()
        if stolen < max(LEAST_STOLEN_TICKS, STOLEN_SHARE * wanted):
            return None
        one = len(self._cpus) == 1
        return (
            f"the host gave {stolen / wanted:.0%} of the time that was wanted of CPU"
            f"{'' if one else 's'} {format_cpu_list(self._cpus)} {_STOLEN}: another run may be as"
            " much faster or slower"
        )

    def share(self) -> float:
        """Of the time since that was wanted, 0 to 1."""
        stolen, wanted = self._since()
        return stolen / wanted if wanted else 0.0

    def _since(self) -> tuple[int, int]:
        """Ticks that were stolen, and those that were stolen or worked."""
        now = _times(self._root)
        ours = [
            (self._before[cpu], now[cpu]) for cpu in self._cpus & self._before.keys() & now.keys()
        ]
        stolen = sum(after.stolen - before.stolen for before, after in ours)
        return stolen, sum(after.work - before.work for before, after in ours)


def _anything_runs(root: str) -> bool:
    """Whether the kernel counts a runnable thread besides this one (see proc_loadavg(5))."""
    fields = (read_file(f"{root}/loadavg") or b"").split()
    runnable = fields[3].partition(b"/")[0] if len(fields) > 3 else b""
    return not runnable.isdigit() or int(runnable) > 1


def _times(root: str) -> dict[int, _Ticks]:
    """Of each CPU."""
    found = {}
    for line in (read_file(f"{root}/stat") or b"").split(b"\n"):
        name, *fields = line.split()[:9] or [b""]
        if not name.startswith(b"cpu") or not name[3:].isdigit():
            continue
        ticks = [int(field) for field in fields]
        idle = sum(ticks[3:5])  # idle, and idle with input or output pending
        found[int(name[3:])] = _Ticks(sum(ticks) - idle, sum(ticks[7:8]), sum(ticks))
    return found


def _busy_shares(before: dict[int, _Ticks], after: dict[int, _Ticks]) -> dict[int, float]:
    shares = {}
    for cpu, now in after.items():
        then = before.get(cpu, now)
        if now.total > then.total:
            shares[cpu] = (now.work - then.work) / (now.total - then.total)
    return shares


def _find_occupants(
    busy: Iterable[int], root: str, sleep: Callable[[float], None]
) -> list[Occupant]:
    """The processes that use those CPUs, those that use most first."""
    members = set(busy)
    before = _process_ticks(root)
    sleep(SAMPLE_S)
    least = OCCUPANT_SHARE * SAMPLE_S * TICKS_PER_SECOND
    used = {pid: ticks - before.get(pid, ticks) for pid, ticks in _process_ticks(root).items()}
    found = []
    for pid in sorted(used, key=lambda pid: (-used[pid], pid)):
        if used[pid] < least:
            break
        if pid != os.getpid() and not members.isdisjoint(_last_cpus(root, pid)):
            name = (read_file(f"{root}/{pid}/comm") or b"?").strip().decode(errors="replace")
            found.append(Occupant(pid, name))
    return found


def _process_ticks(root: str) -> dict[int, int]:
    found = {}
    for name in os.listdir(root):
        status = read_status(f"{root}/{name}") if name.isdigit() else None
        if status is not None:
            found[int(name)] = status.cpu_ticks
    return found


def _last_cpus(root: str, pid: int) -> set[int]:
    """Where the threads of a process ran last."""
    try:
        tasks = os.listdir(f"{root}/{pid}/task")
    except OSError:
        return set()
    found = [read_status(f"{root}/{pid}/task/{task}") for task in tasks]
    return {status.last_cpu for status in found if status is not None}
