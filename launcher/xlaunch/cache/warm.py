# SPDX-License-Identifier: Apache-2.0
"""Records of what `xlaunch cache warm` has run until nothing new was compiled.

Later launches of the same program with the same settings are reported as warm. Pruning a cache
removes the records that name it.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Sequence

from xlaunch.cache.directories import CacheDirectory
from xlaunch.ownership import make_private
from xlaunch.whole_files import write_whole

DIRECTORY = "warm"


def absolute(program: Sequence[str]) -> list[str]:
    """A program with its arguments, those that name files by their absolute paths."""
    return [os.path.abspath(word) if os.path.exists(word) else word for word in program]


def record_of(
    base: str, program: Sequence[str], threads: int, directories: Iterable[CacheDirectory]
) -> str:
    """The path of the record of a program with its arguments, its thread count and its caches.

    The number of threads is part of the keys of compiled graphs.
    """
    words = absolute(program)
    names = sorted([f"{it.cache}/{it.key}" for it in directories])
    digest = zlib.crc32(repr((words, threads, names)).encode(errors="surrogateescape"))
    return os.path.join(base, DIRECTORY, f"{digest:08x}.json")


def write_record(path: str, program: Sequence[str], directories: Iterable[CacheDirectory]) -> None:
    """Record that a run of `program` compiled nothing new. Raises OSError."""
    import json

    make_private(os.path.dirname(path))
    names = [f"{it.cache}/{it.key}" for it in directories]
    text = json.dumps({"program": list(program), "caches": names}, indent=1)
    write_whole(path, text.encode(errors="backslashreplace"), mode=0o600)


def forget(base: str, removed: Iterable[CacheDirectory]) -> None:
    """Remove the records of runs that used one of the directories in `removed`."""
    import json

    names = {f"{it.cache}/{it.key}" for it in removed}
    directory = os.path.join(base, DIRECTORY)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            try:
                with open(path, encoding="utf-8") as stream:
                    stale = not names.isdisjoint(json.load(stream)["caches"])
            except (OSError, ValueError, KeyError, TypeError):
                stale = True
            if stale:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
