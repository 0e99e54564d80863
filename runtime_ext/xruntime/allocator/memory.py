# SPDX-License-Identifier: Apache-2.0
"""What is told about memory: by the allocator about its heap, by the kernel about the process."""

from __future__ import annotations

import os
import re
from typing import NamedTuple


class Stats(NamedTuple):
    """Memory in bytes; None where the allocator does not tell. docs/allocator.md has each one's source.

    The first six are the allocator's, about what went through `malloc`; Python's own small objects
    lie in regions that Python takes from the system itself. The last two are the kernel's, about
    everything in the process.
    """

    allocated: int | None
    """In use by the program. Blocks that a thread's cache holds for its next allocation count."""

    resident: int | None
    """Of the allocator's memory, what occupies physical memory."""

    mapped: int | None
    """Taken from the system, with memory behind it or about to have."""

    free: int | None
    """Of that, kept for reuse."""

    retained: int | None
    """Addresses kept without memory behind them: they cost nothing but numbers."""

    peak_mapped: int | None
    """The highest `mapped` so far."""

    process_resident: int | None
    """The process in physical memory, from /proc/self/statm, which may be some pages per CPU off."""

    process_peak_resident: int | None
    """The highest of these so far, VmHWM of /proc/self/status."""


class ProcessMemory(NamedTuple):
    """Two numbers of the kernel's, in bytes; None where /proc does not tell."""

    resident: int | None
    peak_resident: int | None


def process_memory() -> ProcessMemory:
    """The process's physical memory now and at its highest."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        resident = None
    return ProcessMemory(resident, _kilobytes("/proc/self/status", "VmHWM"))


def exact_resident() -> int | None:
    """The process's physical memory, counted page by page: milliseconds for each gigabyte.

    statm sums counters that each CPU keeps for itself, which on 64 CPUs may miss tens of MiB, see
    proc_pid_statm(5); so smaps_rollup (Linux 4.14) is preferred where a difference is asked for.
    """
    exact = _kilobytes("/proc/self/smaps_rollup", "Rss")
    return process_memory().resident if exact is None else exact


def _kilobytes(path: str, field: str) -> int | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            found = re.search(rf"^{field}:\s+(\d+) kB$", stream.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
