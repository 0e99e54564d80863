# SPDX-License-Identifier: Apache-2.0
"""Memory: huge pages, swap, the limit, and the shared memory of loader workers."""

from __future__ import annotations

import os
from collections.abc import Iterator

from xlaunch.doctor.checks.findings import (
    Check,
    Facts,
    Finding,
    Severity,
    advice,
    is_live,
    ok,
    serious,
    warning,
)
from xlaunch.machine.limits import (
    SYSTEM_MODE_FILE,
    ControlGroup,
    ControlGroups,
    SystemMode,
    read_counters,
    system_mode,
    usable_memory_bytes,
)
from xlaunch.machine.tree import parse_fields
from xlaunch.text import size

SWAPPED_SHARE = 0.01
"""Minimum share of the memory in swap that is serious; less is left from long ago on most desktops."""
FULL_SHARE = 0.9
"""Minimum share of a memory limit in use that is serious."""
MARGIN_SHARE = 0.1
"""Share of the memory that stays available where a remedy fills memory."""
TORCH_BYTES = 224 << 20
"""Measured memory of a process that has imported torch 2.13 (CPU build) and called one layer."""
SHARED = "/dev/shm"  # noqa: S108
MIN_SHARED_BYTES = 1 << 30
"""Of /dev/shm. Containers have 64 MiB unless told otherwise: a batch of 64 images of 224 x 224 in
fp32 has 37 MiB, and each worker prefetches two."""
ENOUGH_SHARED_BYTES = 8 << 30
LARGEST = "ps -eo pid,rss,args --sort=-rss | head"
"""The remedy that always fits: see what fills the memory."""


def show_huge_pages(facts: Facts) -> Iterator[Finding]:
    """The mode of transparent huge pages."""
    mode = system_mode(facts.machine.root.rstrip("/") + SYSTEM_MODE_FILE)
    if mode is SystemMode.NEVER:
        yield advice(
            "transparent huge pages: never",
            "with 16 threads or more they made ResNet-50 and BERT training 4 to 6% faster, within the noise "
            "(docs/decisions.md)",
            f"echo madvise | sudo tee {SYSTEM_MODE_FILE}",
        )
    elif mode is not SystemMode.UNKNOWN:
        yield ok(f"transparent huge pages: {mode.value}")


def show_swap(facts: Facts) -> Iterator[Finding]:
    """Whether memory has been written to swap."""
    memory = _read_meminfo(facts)
    total, swap, free = (memory.get(name) for name in ("MemTotal", "SwapTotal", "SwapFree"))
    if total is None or swap is None or free is None:
        return
    used = swap - free
    if used == 0:
        yield ok("no swap is in use")
        return
    fits = used <= room_bytes(facts)
    yield Finding(
        Severity.SERIOUS if used >= SWAPPED_SHARE * total else Severity.ADVICE,
        f"{size(used)} of memory are in swap ({used / total:.1%} of {size(total)})",
        "each page that is touched there is read from disk first, and memory was short at some time "
        "(kernel, admin-guide/mm/concepts.rst, Reclaim)"
        + ("" if fits else "; too little memory is available to read it all back"),
        LARGEST + ("\nsudo swapoff -a && sudo swapon -a" if fits else ""),
    )


def room_bytes(facts: Facts) -> float:
    """How much memory may be filled, so that a margin stays; 0 where that is unknown."""
    memory = _read_meminfo(facts)
    room = memory.get("MemAvailable", 0) - MARGIN_SHARE * memory.get("MemTotal", 0)
    limit = facts.machine.limits.memory_limit_bytes
    if limit is not None and limit < memory.get("MemTotal", 0):
        used = _used_below(facts, limit)
        room = 0 if used is None else min(room, (1 - MARGIN_SHARE) * limit - used)
    return max(0, room)


def show_available(facts: Facts) -> Iterator[Finding]:
    """How much memory is available for another program."""
    memory = _read_meminfo(facts)
    total, available = memory.get("MemTotal"), memory.get("MemAvailable")
    if not total or available is None:
        return
    memory_text = f"{size(available)} of {size(total)} of memory are available"
    if available >= (1 - FULL_SHARE) * total:
        yield ok(memory_text)
        return
    yield warning(
        memory_text,
        "the kernel ends processes when it has no more (kernel, admin-guide/mm/concepts.rst, OOM killer)",
        LARGEST,
    )


def _read_meminfo(facts: Facts) -> dict[str, int]:
    """The sizes of ``/proc/meminfo``, in bytes."""
    fields = parse_fields(facts.tree.read("/proc/meminfo") or "")
    values = {name: value.partition(" ") for name, value in fields.items()}
    return {
        name: int(number) * (1024 if unit == "kB" else 1)
        for name, (number, _, unit) in values.items()
        if number.isdecimal()
    }


def show_limit(facts: Facts) -> Iterator[Finding]:
    """Whether the control group has room below its limit for what runs in it."""
    limit = facts.machine.limits.memory_limit_bytes
    if limit is None:
        return
    limit_text = f"memory limit {size(limit)}"
    total = facts.machine.limits.memory_total_bytes
    if total is not None and limit >= total:
        yield ok(f"{limit_text}: as much as the machine has")
        return
    if limit < TORCH_BYTES:
        yield serious(
            limit_text,
            f"importing torch and calling one layer takes {size(TORCH_BYTES)} (torch 2.13, CPU build, "
            "measured): the kernel ends the process before it works",
            _raise_limit(facts, limit, 2 << 30),
        )
        return
    used = _used_below(facts, limit)
    if used is None or used < FULL_SHARE * limit:
        if past := _past_shortage(facts, limit):
            yield past._replace(found=f"{limit_text}, {past.found}")
            return
        yield ok(limit_text + (f", {size(used)} in use" if used is not None else ""))
        return
    yield serious(
        f"{limit_text}, and {size(used)} are in use already",
        f"{used / limit:.0%} of the limit, page cache not counted: at the limit the kernel ends a process "
        "of the group (kernel, admin-guide/cgroup-v2.rst, memory.max)",
        _raise_limit(facts, limit, 2 * limit),
    )


def _raise_limit(facts: Facts, limit: int, wanted: int) -> str:
    """The command that raises the limit, where the machine has the memory for it."""
    memory = _read_meminfo(facts)
    margin = MARGIN_SHARE * memory.get("MemTotal", 0)
    if wanted - limit > memory.get("MemAvailable", 0) - margin:
        return LARGEST
    return f"docker update --memory {wanted >> 20}m --memory-swap {wanted >> 20}m CONTAINER"


def _past_shortage(facts: Facts, limit: int) -> Finding | None:
    """What the group's counters say of earlier programs in it."""
    group = _group_with(facts, limit)
    if group is None:
        return None
    events = read_counters(facts.tree, group.file("memory", "events"))
    peak = facts.tree.read_int(group.file("memory", "peak"))
    advise = _raise_limit(facts, limit, 2 * limit)
    if killed := events.get("oom_kill", 0):
        return warning(
            f"and {killed} {'process' if killed == 1 else 'processes'} of the group ended at it",
            "the kernel killed what needed more memory; its program may have shown no reason (kernel, "
            "admin-guide/cgroup-v2.rst, memory.events, oom_kill)",
            advise,
        )
    if peak is not None and peak > FULL_SHARE * limit:
        return advice(
            f"of which {size(peak)} were in use at some time",
            f"{peak / limit:.0%} of the limit, page cache counted: a little more may end a process of the "
            "group (kernel, admin-guide/cgroup-v2.rst, memory.peak)",
            advise,
        )
    return None


def _group_with(facts: Facts, limit: int) -> ControlGroup | None:
    """The group of this process that has the limit."""
    for group in ControlGroups(facts.tree).all_enclosing("memory"):
        files = [group.file("memory", name) for name in ("max", "high")]
        if limit in map(facts.tree.read_int, files):
            return group
    return None


def _used_below(facts: Facts, limit: int) -> int | None:
    """The memory in use by the group that has the limit, without page cache; None if unknown."""
    group = _group_with(facts, limit)
    if group is None:
        return None
    used = facts.tree.read_int(group.file("memory", "current"))
    stat = read_counters(facts.tree, group.file("memory", "stat"))
    cached = stat.get("inactive_file" if group.version == 2 else "total_inactive_file", 0)
    return None if used is None else max(0, used - cached)


def show_shared_memory(facts: Facts) -> Iterator[Finding]:
    """The size of /dev/shm, where loader workers put their batches."""
    try:
        status = os.statvfs(SHARED)
    except (OSError, AttributeError):
        total = None
    else:
        total = status.f_blocks * status.f_frsize
    # More than half of the memory is no remedy: what fills it cannot be reclaimed.
    memory_bytes = usable_memory_bytes(facts.machine.limits)
    half = [] if memory_bytes is None else [memory_bytes // 2 >> 20 << 20]
    if total is not None and total >= min([MIN_SHARED_BYTES, *half]):
        free = status.f_bavail * status.f_frsize
        yield ok(f"{SHARED}: {size(free)} of {size(total)} are free")
        return
    wanted_mib = min([ENOUGH_SHARED_BYTES, *half]) >> 20
    yield warning(
        f"there is no {SHARED}" if total is None else f"{SHARED} has {size(total)} only",
        "workers of a DataLoader hand their batches over in it, and die of SIGBUS when it is full: 64 "
        "images of 224 x 224 in fp32 have 37 MiB, and each worker prefetches 2 batches",
        f"docker run --shm-size {wanted_mib}m IMAGE\n"
        + (
            f"sudo mkdir -p {SHARED} && sudo mount -t tmpfs -o size={wanted_mib}m tmpfs {SHARED}"
            if total is None
            else f"sudo mount -o remount,size={wanted_mib}m {SHARED}"
        ),
    )


CHECKS = (
    Check("huge-pages", show_huge_pages),
    Check("swap", show_swap),
    Check("available-memory", show_available),
    Check("memory-limit", show_limit),
    Check("shared-memory", show_shared_memory, is_live),
)
