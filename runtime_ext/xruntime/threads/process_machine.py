# SPDX-License-Identifier: Apache-2.0
"""The machine of the process and the CPUs that it may use, read once in each process."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from xlaunch.machine.topology import Machine
from xruntime.errors import CPUPoolError

OPENMP_RUNTIMES = ("libgomp", "libiomp5", "libomp.", "libomp-", "libomp5")
"""Prefixes of the file names of OpenMP runtimes, including those that wheels bundle."""


def process_machine() -> Machine:
    """Return the machine with the CPUs that the process may use, as read in the first call.

    These are the main thread's affinity mask, whichever thread calls, or all of OpenMP's places if
    OpenMP shrank that mask to one of them. A forked process reads them again.
    Raises `CPUPoolError` on systems other than Linux.
    """
    return _machine_of(os.getpid())


@functools.cache
def _machine_of(process_id: int) -> Machine:
    if not sys.platform.startswith("linux"):
        raise CPUPoolError(
            f"CPU pools need Linux: on {sys.platform} threads cannot be confined to CPUs"
        )
    from xlaunch.machine import read_machine

    mask = os.sched_getaffinity(process_id)
    places = _openmp_places()
    if mask in places:  # OpenMP shrank it to one of them
        mask = mask.union(*places)
    if mask == os.sched_getaffinity(0):
        return read_machine()
    # read_machine reads the calling thread's mask; a helper thread is given the process's mask.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, mask)) as reader:
        return reader.submit(read_machine).result()


def _openmp_places() -> list[set[int]]:
    """The CPUs of each place that an OpenMP runtime in this process binds its threads to.

    libgomp binds the main thread while it is loaded, Intel's and LLVM's runtimes in their first
    parallel region; their lists of places keep the original mask. They are only asked if a variable
    makes them bind, because the question initializes Intel's and LLVM's.
    """
    from xlaunch.environment.openmp import BINDING

    if not any(os.environ.get(name) for name in BINDING):
        return []
    places: list[set[int]] = []
    for path in openmp_runtimes():
        try:
            runtime = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
            for place in range(runtime.omp_get_num_places()):
                cpus = (ctypes.c_int * runtime.omp_get_place_num_procs(place))()
                runtime.omp_get_place_proc_ids(place, cpus)
                places.append(set(cpus))
        except (OSError, AttributeError):
            # Older than places (OpenMP 4.5), or its file was deleted since.
            continue
    return places


def openmp_runtimes() -> list[str]:
    """Return the files of the OpenMP runtimes that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        fields = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    paths = {field[5] for field in fields if len(field) == 6}
    return sorted(p for p in paths if os.path.basename(p).startswith(OPENMP_RUNTIMES))
