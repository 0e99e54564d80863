# SPDX-License-Identifier: Apache-2.0
"""Detection of the allocator that serves this process, from the file that the loader binds `malloc` to."""

from __future__ import annotations

import functools
import os

from xruntime.allocator.controller import Allocator
from xruntime.allocator.loader import LoadedFile, file_in_use
from xruntime.allocator.mallctl import prefix_of
from xruntime.errors import AllocatorUnsupportedError


@functools.cache
def current() -> Allocator:
    """Return the allocator that serves `malloc` in this process. It never changes.

    It is recognized by functions that the file which defines `malloc` exports, not by LD_PRELOAD or
    the file's name (except musl, which exports nothing of its own). Programs also get memory in other
    ways: Python's small objects, torch's own mimalloc on AArch64.
    Raises `AllocatorUnsupportedError` on systems whose loader cannot be asked.
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
    """The class for the allocator in `file`; each module is imported only when it is used."""
    if file.address_of("gnu_get_libc_version"):
        from xruntime.allocator.glibc import Glibc

        return Glibc(file)
    if prefix_of(file) is not None:
        from xruntime.allocator.jemalloc import Jemalloc

        return Jemalloc(file)
    if file.address_of("tc_version") and file.address_of("MallocExtension_GetNumericProperty"):
        from xruntime.allocator.tcmalloc import Tcmalloc, TcmallocMinimal

        # The full library is the one that has the heap profiler in it.
        return (Tcmalloc if file.address_of("HeapProfilerStart") else TcmallocMinimal)(file)
    if file.address_of("mi_version") and file.address_of("mi_process_info"):
        from xruntime.allocator.mimalloc import Mimalloc

        return Mimalloc(file)
    name = os.path.basename(file.path)
    return (Musl if name.startswith(("ld-musl-", "libc.musl-")) else UnknownAllocator)(file)


class UnknownAllocator(Allocator):
    """An allocator of which only the file is known."""

    _notes = ("this allocator is not known: there are only the kernel's numbers, and no settings",)


class Musl(Allocator):
    """musl's own malloc, old or mallocng: it has no statistics, no settings and no trim."""

    name = "musl"
    _notes = (
        "musl's malloc has no statistics and no settings: there are only the kernel's numbers",
    )
