# SPDX-License-Identifier: Apache-2.0
"""Watch a run for others that share its CPUs: its own CPU time is known here, theirs is the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from xlaunch.machine.processes import TICKS_PER_SECOND, descendants
from xlaunch.report.observation import Observer
from xlaunch.report.occupancy import Occupancy
from xlaunch.supervision.running import Running


class Sharing:
    """The occupancy of the CPUs of one run, sampled by its supervisor. `look` when `due` has come."""

    def __init__(
        self,
        cpus: Iterable[int],
        observer: Observer,
        runs: Callable[[], Sequence[Running]],
        *,
        bound: bool,
    ) -> None:
        """Begin to sample. `runs`: all runs of instances so far. `bound`: the plan is."""
        self._observer = observer
        self._runs = runs
        self._supervisor_began_s = time.process_time()
        self._occupancy = Occupancy(cpus, time.monotonic(), bound=bound)

    @property
    def due(self) -> float:
        """On the clock of `time.monotonic()`; infinity once there is nothing more to say."""
        return self._occupancy.due

    def look(self, *, at_end: bool = False) -> str | None:
        """A warning about CPUs that others keep busy, once. `at_end`: the last instance has ended."""
        self._observer.look()
        supervisor_s = time.process_time() - self._supervisor_began_s

        def own(cpu: int) -> int:
            # Where the supervisor ran is not known: it may have been anywhere.
            used = sum(run.ticks_on(cpu) for run in self._runs())
            return used + round(supervisor_s * TICKS_PER_SECOND)

        step = self._occupancy.finish if at_end else self._occupancy.look
        ours = {os.getppid(), os.getpid(), *descendants(os.getpid())}
        return step(time.monotonic(), own, ours)
