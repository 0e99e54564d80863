# SPDX-License-Identifier: Apache-2.0
"""Other processes: who uses the CPUs now, and whether a container's first one waits for orphans."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from xlaunch.doctor.checks.findings import Check, Facts, Finding, advice, is_live, ok, warning
from xlaunch.text import counted

REAPERS = (
    *("systemd", "init", "tini", "docker-init", "dumb-init", "catatonit", "s6-svscan", "runit"),
    *("xlaunch", "bash", "sh", "dash", "busybox", "supervisord"),
)
"""Programs, shells among them, that reap children which they did not start."""
MIN_ZOMBIES = 3
"""Minimum number of zombies that is reported: a few may be reaped at any moment."""
REAP_S = 0.3
"""After this time zombies are looked for again: most first processes reap within it."""


def show_load(facts: Facts) -> Iterator[Finding]:
    """Sample for half a second, if anything else is runnable, as a supervised run does."""
    # Imported here: they need what only Linux has.
    from xlaunch.supervision.watches import SAMPLE_S, Occupancy, StolenTime, anything_runs

    if not anything_runs():
        yield ok("no other process is running")
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
        yield warning(
            busy,
            slowest,
            "ps -eo pid,pcpu,psr,args --sort=-pcpu | head\nxlaunch --cpus LIST PROGRAM",
        )
    if steal is not None:
        yield warning(
            steal.partition(":")[0],
            slowest,
            "vmstat 1 5  # column st; only the owner of the host can help",
        )
    if busy is None and steal is None:
        yield ok("no CPU is busy with other work, and none is stolen")


def show_first_process(facts: Facts) -> Iterator[Finding]:
    """Whether PID 1 leaves dead processes in the table."""
    name = facts.tree.read("/proc/1/comm")
    if name is None:
        return
    zombies = set(_zombies(facts))
    if facts.live and len(zombies) >= MIN_ZOMBIES:
        time.sleep(REAP_S)
        zombies &= set(_zombies(facts))
    if len(zombies) >= MIN_ZOMBIES and name not in REAPERS:
        yield warning(
            f"PID 1 ({name}) does not wait for orphans: {counted(len(zombies), 'zombie')}",
            "each holds a process ID until the container ends, and a limit of them (pids.max) fills up: "
            "then no loader worker starts (wait(2), Notes)",
            "docker run --init IMAGE",
        )
    elif name.startswith(("python", "pypy", "torchrun", "node", "java")):
        yield advice(
            f"PID 1 is {name}, which waits for no orphans",
            "loader workers that outlive their parent stay as zombies, and SIGTERM is ignored by a PID 1 "
            "that does not handle it (pid_namespaces(7))",
            "docker run --init IMAGE",
        )
    else:
        yield ok(f"PID 1 is {name}")


def _zombies(facts: Facts) -> list[int]:
    """Zombies whose parent is PID 1, see proc_pid_stat(5)."""
    zombies = []
    for pid in facts.tree.numbered("/proc", ""):
        fields = (facts.tree.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        if fields[:2] == ["Z", "1"]:
            zombies.append(pid)
    return zombies


LOAD = (Check("load", show_load, is_live),)
CONTAINER = (Check("first-process", show_first_process),)
