# SPDX-License-Identifier: Apache-2.0
"""What a run compiled: new files in its caches, and the counters of torch where they can be had."""

from __future__ import annotations

import contextlib
import os
import time
from typing import NamedTuple

from xlaunch.cache import staging
from xlaunch.cache.usage import LOCAL_KINDS, usage_by_kind
from xlaunch.environment import Environment

COUNTERS = "XLAUNCH_COMPILE_COUNTERS"
"""Directory in which each process that imports xruntime writes torch's counters when it ends."""


class CacheReport(NamedTuple):
    """One cache that the program may have used."""

    cache: str
    directory: str
    warmth: str
    """At the start: ``cold`` (empty) or ``used``."""
    new_files: int
    """Files written during the run, locks and unfinished ones left out; also by other launches with the same cache."""
    new_bytes: int


class TorchCompilation(NamedTuple):
    """Counters of torch, summed over the processes that imported xruntime."""

    processes: int
    backend_compile_s: float
    """Seconds in Inductor, loading from its caches included."""
    graph_hits: int
    """Graphs that Inductor found in its cache."""
    graph_misses: int


class CompilationWatch:
    """Observes the caches of one run from its start to its end."""

    def __init__(self, environment: Environment) -> None:
        """Take the time, and make the directory for counters."""
        self._used = environment.caches.used
        self._directory: str | None = None
        # A file's time stamp is that of the kernel's last tick, up to 10 ms before the true time.
        self._since_s = time.time() - 0.01
        base = environment.caches.base
        if base is not None and self._used:
            path = os.path.join(base, f"{staging.COUNTERS}{os.getpid()}-{os.urandom(4).hex()}")
            try:
                os.mkdir(path, 0o700)
                self._directory = path
            except OSError:
                pass

    def variables(self) -> dict[str, str]:
        """What every instance gets, so that it writes its counters."""
        return {} if self._directory is None else {COUNTERS: self._directory}

    def finish(self) -> tuple[tuple[CacheReport, ...], TorchCompilation | None]:
        """The caches of the run, and torch's counters; None where nobody wrote them."""
        reports = []
        for directory, warmth in self._used:
            usage = usage_by_kind(directory, self._since_s)
            new = [it for kind, it in usage.items() if kind not in LOCAL_KINDS]
            files, size_bytes = sum([it.files for it in new]), sum([it.size_bytes for it in new])
            reports.append(CacheReport(directory.cache, directory.path, warmth, files, size_bytes))
        return tuple(reports), self._counters()

    def _counters(self) -> TorchCompilation | None:
        if self._directory is None:
            return None
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)
            return None  # nobody wrote any
        import json
        import shutil

        found = []
        names = os.listdir(self._directory) if os.path.isdir(self._directory) else []
        for name in names:
            try:
                with open(os.path.join(self._directory, name), encoding="utf-8") as stream:
                    found.append(TorchCompilation(1, **json.load(stream)))
            except (OSError, ValueError, TypeError):  # its process was killed while it wrote
                continue
        shutil.rmtree(self._directory, ignore_errors=True)
        return TorchCompilation(*map(sum, zip(*found, strict=True))) if found else None
