# SPDX-License-Identifier: Apache-2.0
"""What /proc tells of running processes: who descends from whom, on which CPU, at what cost.

Each reader returns None, or leaves out, what has ended meanwhile: processes end at any moment.
"""

from __future__ import annotations

import os
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class TaskStatus(NamedTuple):
    """A thread, or a process seen as its main thread."""

    state: str
    """**Ex.:** ``R`` runs, ``S`` sleeps, ``T`` is stopped, ``Z`` is a zombie."""
    parent: int
    cpu_ticks: int
    """User and system time so far, in `TICKS_PER_SECOND`."""
    rss_bytes: int
    last_cpu: int
    """The CPU it runs on or ran on last."""


def read_status(path: str) -> TaskStatus | None:
    """The `stat` file in a folder such as ``/proc/42`` or ``/proc/42/task/43`` (see proc(5))."""
    text = read_file(f"{path}/stat")
    if text is None:
        return None
    # The name, in parentheses, may hold anything, parentheses and spaces too.
    fields = text[text.rfind(b")") + 2 :].split()
    return TaskStatus(
        state=fields[0].decode(),
        parent=int(fields[1]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        last_cpu=int(fields[36]),
    )


def threads(pid: int) -> list[int]:
    """Kernel thread ids of a process; empty when it has ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`, zombies included."""
    found: list[int] = []
    for thread in threads(pid):
        text = read_file(f"/proc/{pid}/task/{thread}/children")
        if text is None:
            if not os.path.exists("/proc/thread-self/children"):
                return _children_by_scan(pid)
            continue
        found.extend(int(word) for word in text.split())
    return found


def descendants(pid: int) -> list[int]:
    """Children of `pid`, their children, and so on; parents before their children."""
    found = children(pid)
    for process in found:
        found.extend(children(process))
    return found


def environment_value(pid: int, name: str) -> str | None:
    """A variable of a process's *initial* environment."""
    text = read_file(f"/proc/{pid}/environ")
    for entry in (text or b"").split(b"\0"):
        key, _, value = entry.partition(b"=")
        if key == name.encode():
            return os.fsdecode(value)
    return None


def process_group(pid: int) -> int | None:
    """The process group of a process, also of a zombie."""
    text = read_file(f"/proc/{pid}/stat")
    return None if text is None else int(text[text.rfind(b")") + 2 :].split()[2])


def migrations(pid: int, thread: int) -> int | None:
    """How often the kernel moved a thread to another CPU; None where the kernel keeps no count."""
    text = read_file(f"/proc/{pid}/task/{thread}/sched")
    _, found, rest = (text or b"").partition(b"nr_migrations")
    return int(rest.split(b"\n", 1)[0].strip(b" :")) if found else None


def _children_by_scan(pid: int) -> list[int]:
    """The slow way, for kernels without CONFIG_PROC_CHILDREN: ask every process for its parent."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        status = read_status(f"/proc/{name}") if name.isdigit() else None
        if status is not None and status.parent == pid:
            found.append(int(name))
    return found


def read_file(path: str) -> bytes | None:
    """The whole of a small file under /proc; None when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(descriptor, 1 << 16)
        if len(data) == 1 << 16:
            while more := os.read(descriptor, 1 << 16):
                data += more
        return data
    except OSError:
        return None
    finally:
        os.close(descriptor)
