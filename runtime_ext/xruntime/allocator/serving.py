# SPDX-License-Identifier: Apache-2.0
"""Finds out which allocator serves this process, from what the loader has bound `malloc` to."""

from __future__ import annotations

import functools
import os

from xruntime.allocator.controller import Allocator
from xruntime.allocator.loader import LoadedFile, file_in_use
from xruntime.allocator.mallctl import prefix_of
from xruntime.errors import AllocatorUnsupportedError


@functools.cache
def current() -> Allocator:
    """The allocator that serves `malloc` in this process; it cannot change while the process lives.

    It is known by functions that the file which defines `malloc` exports itself, never by
    LD_PRELOAD or the file's name (musl's excepted, which exports nothing of its own). A program may
    get memory in other ways besides: Python's small objects, torch's own mimalloc on AArch64.
    Raises `AllocatorUnsupportedError` on systems without a loader that can be asked.
    """
    try:
        file = file_in_use("malloc")
    except (AttributeError, OSError) as error:
        raise AllocatorUnsupportedError(
            f"the loader cannot be asked which allocator serves this process: {error}; "
            "this works on Linux only"
        ) from error
    if file is None:
        raise AllocatorUnsupportedError(
            "no loaded file exports malloc, as in a program that is linked statically; use a Python "
            "that is linked to the system's C library"
        )
    return controller_of(file)


def controller_of(file: LoadedFile) -> Allocator:
    """The controller for the allocator that lives in `file`. Each is imported only when it is used."""
    if file.address_of("gnu_get_libc_version"):
        from xruntime.allocator.controllers.glibc import Glibc

        return Glibc(file)
    if prefix_of(file) is not None:
        from xruntime.allocator.controllers.jemalloc import Jemalloc

        return Jemalloc(file)
    if file.address_of("tc_version") and file.address_of("MallocExtension_GetNumericProperty"):
        from xruntime.allocator.controllers.tcmalloc import Tcmalloc, TcmallocMinimal

        # The full library is the one that has the heap profiler in it.
        return (Tcmalloc if file.address_of("HeapProfilerStart") else TcmallocMinimal)(file)
    if file.address_of("mi_version") and file.address_of("mi_process_info"):
        from xruntime.allocator.controllers.mimalloc import Mimalloc

        return Mimalloc(file)
    from xruntime.allocator.controllers.other import Musl, Unknown

    name = os.path.basename(file.path)
    return (Musl if name.startswith(("ld-musl-", "libc.musl-")) else Unknown)(file)
