# SPDX-License-Identifier: Apache-2.0
"""Energy used by the machine's processors and memory, if the system allows reading it.

The kernel's powercap tree counts microjoules (Documentation/power/powercap/powercap.rst); since
CVE-2020-8694 only root may read them. Packages and their memory are summed; a package includes its
cores and graphics. The counters include other processes.
"""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.machine.files import Tree

POWERCAP = "/sys/class/powercap"
CONTROL_TYPE = "intel-rapl"
"""Also the name for AMD's processors. ``intel-rapl-mmio`` counts the same energy again."""

MAX_PAUSE_S = 60.0
"""Maximum time between samples: at 4 kW, a counter of 2^32 units of 61 microjoules wraps after 65 s."""


class _Counter(NamedTuple):
    path: str
    range_uj: int
    """The counter wraps beyond this."""


class EnergyMeter:
    """Measures energy since its creation. Call `sample` at least every `MAX_PAUSE_S`."""

    def __init__(self, root: str = "/") -> None:
        """`root`: root of the file tree to read."""
        self._tree = Tree(root)
        self._counters = _find(self._tree)
        self._last = [self._read(counter) for counter in self._counters]
        self._total_uj = 0
        self._lost = not self._counters or None in self._last

    def sample(self) -> None:
        """Add the energy since the last sample."""
        for position, counter in enumerate(self._counters):
            before, now = self._last[position], self._read(counter)
            if before is None or now is None:
                self._lost = True
                return
            moved = now - before
            self._total_uj += moved if moved >= 0 else moved + counter.range_uj
            self._last[position] = now

    def joules(self) -> float | None:
        """Energy so far; None if a counter cannot be read."""
        if not self._lost:
            self.sample()
        return None if self._lost else self._total_uj / 1e6

    def _read(self, counter: _Counter) -> int | None:
        return self._tree.read_int(f"{counter.path}/energy_uj")


def _find(tree: Tree) -> list[_Counter]:
    """The counters of packages and of their memory."""
    found = []
    for name in sorted(tree.names(POWERCAP)):
        kind, _, numbers = name.partition(":")
        label = tree.read(f"{POWERCAP}/{name}/name") or ""
        is_package = ":" not in numbers and label.startswith("package-")
        if kind != CONTROL_TYPE or not (is_package or label == "dram"):
            continue
        range_uj = tree.read_int(f"{POWERCAP}/{name}/max_energy_range_uj")
        if range_uj is not None:
            found.append(_Counter(f"{POWERCAP}/{name}", range_uj))
    return found
