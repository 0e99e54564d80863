# SPDX-License-Identifier: Apache-2.0
"""jemalloc's heap profile: which lines of native code hold the memory. `jeprof` reads the files.

It must be built in (config.prof), and asked for at the program's start (MALLOC_CONF=prof:true).
Source: jemalloc(3), opt.prof, prof.active, prof.dump.
"""

from __future__ import annotations

import os
from pathlib import Path

from xruntime.allocator.arenas import serving_jemalloc
from xruntime.allocator.controllers.jemalloc import Jemalloc
from xruntime.errors import AllocatorUnsupportedError, SettingValueError


def profiling() -> bool:
    """Whether samples are being taken now. Raises `AllocatorUnsupportedError` where they cannot be."""
    return bool(_profiled_jemalloc().read("prof.active"))


def set_profiling(active: bool) -> None:
    """Take samples from now on, or stop; those taken stay. Raises as `profiling` does."""
    _profiled_jemalloc().write("prof.active", active)


def dump_profile(path: str | os.PathLike[str]) -> Path:
    """Write what the samples tell of the blocks in use to `path`, and tell where that is.

    Raises `SettingValueError` where the file cannot be written, else as `profiling` does.
    """
    heap = _profiled_jemalloc()
    target = Path(os.path.abspath(path))
    if not os.access(target.parent, os.W_OK) or target.is_dir():
        raise SettingValueError(
            f"prof.dump = {str(target)!r}: the file cannot be written; name one in a folder that exists "
            "and that you may write"
        )
    heap.mallctl.write("prof.dump", str(target))
    return target


def _profiled_jemalloc() -> Jemalloc:
    heap = serving_jemalloc()
    if not heap.read("config.prof"):
        raise AllocatorUnsupportedError(
            f"heap profile: this jemalloc, {heap.version} in {heap.path}, is built without it "
            "(config.prof is false); use one configured with --enable-prof, as Debian's is"
        )
    if not heap.read("opt.prof"):
        raise AllocatorUnsupportedError(
            "heap profile: it is off, and only the program's start can switch it on: set "
            "MALLOC_CONF=prof:true,prof_active:false there, then set_profiling(True) when it matters"
        )
    return heap
