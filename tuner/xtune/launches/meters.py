# SPDX-License-Identifier: Apache-2.0
"""Secondary readings during a launch: energy, waiting for CPUs, and counters of exhausted memory.

The kernel's powercap tree counts microjoules (Documentation/power/powercap/powercap.rst); since
CVE-2020-8694 only root may read them. Packages and their memory are summed; a package includes its
cores and graphics. The counters include other processes.
"""

from __future__ import annotations

import os
import re
import time

from xlaunch.machine.limits import ControlGroups, read_counters
from xlaunch.machine.processes import TICKS_PER_SECOND
from xlaunch.machine.tree import Tree

POWERCAP = "/sys/class/powercap"
CONTROL_TYPE = "intel-rapl"
"""The name of the counters, also on AMD. ``intel-rapl-mmio`` counts the same energy again."""

MAX_PAUSE_S = 60.0
"""Maximum time between samples: at 4 kW, a counter of 2^32 units of 61 microjoules wraps after 65 s."""

_WORDS = re.compile(
    r"\bMemoryError\b|\bstd::bad_alloc\b|\bcan(?:no|')t allocate memory\b|\bout of memory\b"
    r"|\bKilled\b|\bENOMEM\b|\bnot enough memory\b",
    re.IGNORECASE,
)
"""Messages of interpreters, allocators and shells about exhausted memory."""


class EnergyMeter:
    """Measures energy since its creation. Call `sample` at least every `MAX_PAUSE_S`."""

    def __init__(self, root: str = "/") -> None:
        """`root`: root of the file tree to read."""
        self._tree = Tree(root)
        self._ranges_uj = dict(self._find())
        """Each counter's maximum by its directory; above it the counter wraps."""
        self._last = {path: self._read(path) for path in self._ranges_uj}
        self._total_uj = 0
        self._is_lost = not self._last or None in self._last.values()

    def sample(self) -> None:
        """Add the energy since the last sample."""
        for path, before in self._last.items():
            now = self._read(path)
            if before is None or now is None:
                self._is_lost = True
                return
            moved = now - before
            self._total_uj += moved if moved >= 0 else moved + self._ranges_uj[path]
            self._last[path] = now

    def joules(self) -> float | None:
        """Energy so far; None if a counter cannot be read."""
        if not self._is_lost:
            self.sample()
        return None if self._is_lost else self._total_uj / 1e6

    def _read(self, path: str) -> int | None:
        return self._tree.read_int(f"{path}/energy_uj")

    def _find(self) -> list[tuple[str, int]]:
        """The counters of packages and of their memory, each with its range."""
        counters = []
        for name in sorted(self._tree.names(POWERCAP)):
            kind, _, numbers = name.partition(":")
            label = self._tree.read(f"{POWERCAP}/{name}/name") or ""
            is_package = ":" not in numbers and label.startswith("package-")
            range_uj = self._tree.read_int(f"{POWERCAP}/{name}/max_energy_range_uj")
            if kind == CONTROL_TYPE and (is_package or label == "dram") and range_uj is not None:
                counters.append((f"{POWERCAP}/{name}", range_uj))
        return counters


class CpuWait:
    """Measures since its creation how long tasks waited for CPUs that other programs used.

    The pressure of this process's control group, or of the system, is the time in which some task
    waited for a CPU (Documentation/accounting/psi.rst). Threads of the launch also wait for each
    other, so no more counts than others ran on the allowed CPUs, time stolen by a host included.
    """

    def __init__(self, root: str = "/") -> None:
        """`root`: root of the file tree to read."""
        self._tree = Tree(root)
        groups = [levels[0] for levels in ControlGroups(self._tree).enclosing("cpu") if levels]
        paths = [f"{group.directory}/cpu.pressure" for group in groups if group.version == 2]
        self._paths = (*paths, "/proc/pressure/cpu")
        self._names = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
        self._before = self._now()

    def share(self, cpu_s: float | None) -> float | None:
        """The share of the time, 0 to 1; None if unknown. `cpu_s`: what the launch itself used."""
        before, after = self._before, self._now()
        if before is None or after is None or cpu_s is None or after[0] <= before[0]:
            return None
        time_s, waited_s, busy_s = (now - then for now, then in zip(after, before, strict=True))
        return min(max(0.0, min(waited_s, busy_s - cpu_s)) / time_s, 1.0)

    def _now(self) -> tuple[float, float, float] | None:
        """The time, the time with a waiting task, and that of the CPUs that was not idle."""
        texts = (self._tree.read(path) for path in self._paths)
        some = re.search(r"^some .*total=(\d+)", next(filter(None, texts), ""))
        rows = [line.split() for line in (self._tree.read("/proc/stat") or "").splitlines()]
        busy = [sum(map(int, row[1:4] + row[6:9])) for row in rows if row and row[0] in self._names]
        if some is None or not busy:
            return None
        return time.monotonic(), int(some[1]) / 1e6, sum(busy) / TICKS_PER_SECOND


class MemoryWatch:
    """Watches the counters of the system, and of every enclosing control group, from its creation on."""

    def __init__(self, root: str = "/") -> None:
        """`root`: root of the file tree to read."""
        self._tree = Tree(root)
        self._groups = ControlGroups(self._tree).all_enclosing("memory")
        self._before = self._counts()

    def explain(self, *, killed: bool, stderr: str) -> str | None:
        """Why a failed launch seems to have lacked memory; None without evidence.

        killed
            SIGKILL ended one of its processes, and was not sent by the tuner.
        stderr
            The end of its standard error.
        """
        said = _WORDS.search(stderr)
        # The largest increases: one event is counted in many places.
        kills, full = (
            max([now - then for now, then in zip(*counts, strict=True)], default=0)
            for counts in zip(self._counts(), self._before, strict=True)
        )
        if kills > 0 and (killed or said):
            return f"the kernel's out-of-memory killer ran {_times(kills)} meanwhile"
        if killed and full > 0:
            return f"it was killed, and its control group reached its memory limit {_times(full)}"
        if said is not None:
            line = next(line for line in stderr.splitlines() if said[0] in line)
            return f"it printed {line.strip()[:200]!r}"
        return None

    def _counts(self) -> tuple[list[int], list[int]]:
        """Kills by the kernel's out-of-memory killer, and how often a control group reached its limit."""
        kills, full = [read_counters(self._tree, "/proc/vmstat").get("oom_kill", 0)], []
        for group in self._groups:
            events = read_counters(self._tree, group.file("memory", "events"))
            failures = self._tree.read_int(group.file("memory", "failcnt"))
            kills.append(events.get("oom_kill", 0))
            full.append((failures if group.version == 1 else events.get("max")) or 0)
        return kills, full


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
