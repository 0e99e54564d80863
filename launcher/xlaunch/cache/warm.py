# SPDX-License-Identifier: Apache-2.0
"""What runs compile: new files in their caches, and torch's counters if the program imports xruntime."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from xlaunch.cache import store
from xlaunch.cache.use import CacheSettings

COUNTERS = "XLAUNCH_COMPILE_COUNTERS"
"""Directory in which each process that imports xruntime writes torch's counters when it ends."""


class CacheReport(NamedTuple):
    """One cache that the program may have used."""

    cache: str
    directory: str
    warmth: str
    """At the start: ``cold`` (empty) or ``used``."""
    new_files: int
    """Files written during the run, also by other launches; without locks and unfinished files."""
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

    def __init__(self, caches: CacheSettings) -> None:
        """Record the time, and make the directory for counters."""
        self._used = caches.used
        self._directory: str | None = None
        # A file's time stamp is that of the kernel's last tick, up to 10 ms before the true time.
        self._since_s = time.time() - 0.01
        if caches.base is not None and self._used:
            name = f"{store.COUNTERS}{os.getpid()}-{os.urandom(4).hex()}"
            path = os.path.join(caches.base, name)
            with contextlib.suppress(OSError):
                os.mkdir(path, 0o700)
                self._directory = path

    def variables(self) -> dict[str, str]:
        """The variables that make every instance write its counters."""
        return {} if self._directory is None else {COUNTERS: self._directory}

    def finish(self) -> tuple[tuple[CacheReport, ...], TorchCompilation | None]:
        """The caches of the run, and torch's counters; None if no process wrote them."""
        from xlaunch.cache import contents

        reports = []
        for directory, warmth in self._used:
            files = [it for _, it in contents.compiled_files(directory)]
            new = contents.total([it for it in files if it.changed_s >= self._since_s])
            reports.append(CacheReport(directory.cache, directory.path, warmth, *new))
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
            path = os.path.join(self._directory, name)
            # A process that is killed while it writes leaves half a file.
            with (
                contextlib.suppress(OSError, ValueError, TypeError),
                open(path, encoding="utf-8") as stream,
            ):
                found.append(TorchCompilation(1, **json.load(stream)))
        shutil.rmtree(self._directory, ignore_errors=True)
        return TorchCompilation(*map(sum, zip(*found, strict=True))) if found else None


def compiled_files(caches: CacheSettings) -> dict[str, tuple[str, str]]:
    """Cache and kind of each file in the caches, by its path; without locks and unfinished files."""
    from xlaunch.cache import contents

    return {
        file.path: (directory.cache, kind)
        for directory, _ in caches.used
        for kind, file in contents.compiled_files(directory)
    }


def count_by_kind(files: Iterable[tuple[str, str]]) -> str:
    """**Ex.:** ``inductor (compiled graphs 1, libraries 7)``."""
    words: dict[str, list[str]] = {}
    for (cache, kind), count in sorted(Counter(files).items()):
        words.setdefault(cache, []).append(f"{kind} {count}")
    return "; ".join([f"{cache} ({', '.join(kinds)})" for cache, kinds in words.items()])
