# SPDX-License-Identifier: Apache-2.0
"""Memory statistics: of the heap by the allocator, of the process by the kernel."""

from __future__ import annotations

import os
import re
from typing import NamedTuple


class Stats(NamedTuple):
    """Memory in bytes; None for a number that the allocator does not have. docs/allocator.md has sources.

    The first six are the allocator's, of what went through `malloc`; Python's own small objects
    lie in regions that Python maps itself. The last two are the kernel's, of the whole process.
    """

    allocated: int | None = None
    """In use by the program, including blocks in threads' caches."""

    resident: int | None = None
    """The part of the allocator's memory that is in physical memory."""

    mapped: int | None = None
    """Taken from the system and usable: with physical memory, or with a claim to it."""

    free: int | None = None
    """The part of `mapped` that is kept for reuse."""

    retained: int | None = None
    """Addresses kept without memory behind them, which cost nothing."""

    peak_mapped: int | None = None
    """The highest `mapped` so far."""

    process_resident: int | None = None
    """The process in physical memory, from /proc/self/statm, which may be off by some pages per CPU."""

    process_peak_resident: int | None = None
    """Its peak, VmHWM of /proc/self/status."""


def stats_of(**heap: int | None) -> Stats:
    """Join what an allocator reports with what the kernel reports."""
    return Stats(
        **heap,
        process_resident=resident(),
        process_peak_resident=_kilobytes("/proc/self/status", "VmHWM"),
    )


def resident() -> int | None:
    """Read the process's physical memory; None where /proc does not have it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def exact_resident() -> int | None:
    """Read the process's physical memory, counted page by page: some milliseconds per gigabyte.

    statm adds counters that each CPU keeps for itself, which on 64 CPUs may miss tens of MiB, see
    proc_pid_statm(5); so smaps_rollup (Linux 4.14) is preferred where a difference is needed.
    """
    exact = _kilobytes("/proc/self/smaps_rollup", "Rss")
    return resident() if exact is None else exact


def _kilobytes(path: str, field: str) -> int | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            match = re.search(rf"^{field}:\s+(\d+) kB$", stream.read(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None
