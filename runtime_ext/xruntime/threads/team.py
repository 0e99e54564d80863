# SPDX-License-Identifier: Apache-2.0
"""The calling thread's OpenMP team, which torch shares: its threads, CPUs and size; and MKL's number of threads.

`torch.set_num_threads` also changes the default of threads that start later. So the numbers are set for
one thread, OpenMP's by omp_set_num_threads and MKL's by MKL_Set_Num_Threads_Local.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from xlaunch.errors import XLaunchError
from xruntime.errors import AffinityRefusedError, SecondRuntimeError
from xruntime.native import CTeamMember, library, quick_library
from xruntime.threads.process_machine import openmp_runtimes


class TeamMember(NamedTuple):
    """One thread of a team.

    **Ex.:** ``TeamMember(openmp_id=1, thread_id=4127, cpu=3)`` is the first worker, on CPU 3.
    """

    openmp_id: int
    """Its number in the team; 0 is the calling thread."""

    thread_id: int
    """The kernel's thread id, as in /proc/self/task."""

    cpu: int
    """The CPU that it ran on; -1 if the kernel does not say."""


class OpenMPTeam(NamedTuple):
    """The threads that took part in one parallel region, in order of `openmp_id`."""

    members: tuple[TeamMember, ...]

    @property
    def size(self) -> int:
        """The number of threads."""
        return len(self.members)


def openmp_team() -> OpenMPTeam:
    """Run one parallel region on the calling thread's team, which torch uses too; return its threads.

    Each host thread has a team of its own; its size follows torch.set_num_threads() in that thread.
    Raises KernelsUnavailableError without the native library.
    """
    kernels = library()
    capacity = 256
    while True:
        members = (CTeamMember * capacity)()
        size = kernels.xk_openmp_team(members, capacity)
        if size <= capacity:
            break
        capacity = size
    return OpenMPTeam(tuple(TeamMember(m.openmp_id, m.thread_id, m.cpu) for m in members[:size]))


def team_size() -> int:
    """Return the maximum number of threads of the calling thread's next operator."""
    _initialize_torch()
    size: int = quick_library().xk_team_size()
    return size


def resize_team(threads: int) -> int:
    """Set the number of threads of OpenMP and MKL for the calling thread; return OpenMP's old number.

    Raises SecondRuntimeError if torch runs on another OpenMP runtime than xruntime.
    """
    _initialize_torch()
    previous: int = quick_library().xk_team_resize(threads)
    previous_mkl = set_mkl_threads(threads)
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != threads:
        quick_library().xk_team_resize(previous)
        set_mkl_threads(previous_mkl)
        raise SecondRuntimeError(
            f"the team was set to {threads} threads, and torch still has"
            f" {torch.get_num_threads()}: it runs on another OpenMP runtime than xruntime."
            f" This process has {', '.join(openmp_runtimes()) or 'no known runtime'}."
            " Start it with a single runtime, by xlaunch --omp gnu or LD_PRELOAD"
        )
    return previous


def set_mkl_threads(threads: int) -> int:
    """Set MKL's threads for the calling thread, 0: the process's; return the old number, 0 without MKL."""
    torch = sys.modules.get("torch")
    set_mkl = None if torch is None else _mkl_setter(torch.__file__)
    return 0 if set_mkl is None else int(set_mkl(threads))


def mkl_threads() -> int:
    """Return MKL's number of threads for the calling thread; 0 means the process's number."""
    _initialize_torch()
    # MKL returns it only when it is set.
    count = set_mkl_threads(0)
    set_mkl_threads(count)
    return count


def can_resize_team() -> bool:
    """Whether `team_of` works here: there is the native library, and torch runs on the same OpenMP runtime."""
    try:
        with team_of(team_size() + 1):
            return True
    except XLaunchError:
        return False


@contextlib.contextmanager
def team_of(threads: int) -> Iterator[None]:
    """Give the calling thread's native work `threads` threads within the block."""
    mkl_before = mkl_threads()
    before = resize_team(threads)
    try:
        yield
    finally:
        resize_team(before)
        set_mkl_threads(mkl_before)


def confine_team(cpus: Sequence[int], *, pin_workers: bool = False) -> int:
    """Confine the calling thread and its team's workers to `cpus`; return the team's size.

    With `pin_workers` each worker runs on one of these CPUs; the calling thread keeps all, because
    workers that the runtime starts later inherit its mask. Raises AffinityRefusedError.
    """
    act = library().xk_team_pin if pin_workers else library().xk_team_confine
    size: int = act((ctypes.c_int32 * len(cpus))(*cpus), len(cpus))
    if size < 0:
        number = ctypes.get_errno()
        reason = "not all of them are allowed" if number == errno.EINVAL else os.strerror(number)
        raise AffinityRefusedError(
            f"this thread cannot be confined to CPUs {_listed(cpus)}: {reason}."
            f" The process may use {_listed(os.sched_getaffinity(os.getpid()))}"
        )
    return size


def _listed(cpus: Collection[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


def _initialize_torch() -> None:
    # A thread's first operator sets the process's number; later it would undo ours.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.get_num_threads()


@functools.cache
def _mkl_setter(torch_file: str) -> Callable[[int], Any] | None:
    """MKL's function that sets the calling thread's number; None without MKL."""
    bundled = Path(torch_file).parent / "lib" / "libtorch_cpu.so"
    for handle in (None, *([str(bundled)] if bundled.is_file() else [])):
        setter = getattr(ctypes.CDLL(handle), "MKL_Set_Num_Threads_Local", None)
        if setter is not None:
            setter.argtypes, setter.restype = (ctypes.c_int,), ctypes.c_int
            return setter  # type: ignore[no-any-return]
    return None
