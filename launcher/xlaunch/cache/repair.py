# SPDX-License-Identifier: Apache-2.0
"""Remove the libraries of a run that was killed while a linker wrote them.

Linkers write into the final file, and Inductor takes any file of that name: with one that is too short
every later start would fail (see `_worker_compile_cpp` in torch/_inductor/cpp_builder.py). The next
launch looks at what was written since the last one began, if nobody uses the cache.
"""

from __future__ import annotations

import contextlib
import os

from xlaunch.cache.directories import CacheDirectory, not_in_use
from xlaunch.cache.table import BY_NAME, Format

CLOCK_STEP_S = 0.1
"""Time stamps of files may be earlier than the clock by a tick of the kernel."""


def remove_cut_libraries(directory: CacheDirectory, since_s: float) -> list[str]:
    """Remove what was linked since then (seconds since the epoch) and is not whole; the paths.

    Caches keep libraries at most one directory deep. Raises OSError.
    """
    if not any(entries.format is Format.ELF for entries in BY_NAME[directory.cache].entries):
        return []
    changed = _changed_directories(directory.path, since_s - CLOCK_STEP_S)
    if not changed:
        return []
    removed: list[str] = []
    with not_in_use(directory) as free:
        for path in changed if free else ():
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.endswith(".so") and entry.is_file(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):
                            written_s = entry.stat(follow_symlinks=False).st_mtime
                            if written_s >= since_s - CLOCK_STEP_S and _is_cut(entry.path):
                                os.unlink(entry.path)
                                removed.append(entry.path)
    return removed


def _changed_directories(path: str, since_s: float) -> list[str]:
    with os.scandir(path) as entries:
        return [
            entry.path
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            and entry.stat(follow_symlinks=False).st_mtime >= since_s
        ]


def _is_cut(path: str) -> bool:
    from xlaunch.cache.formats import damage

    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        return damage(stream, Format.ELF) is not None
