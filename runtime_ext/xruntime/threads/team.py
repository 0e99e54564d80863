# SPDX-License-Identifier: Apache-2.0
"""The CPUs and the number of threads of the calling thread's native work, set for it alone.

`torch.set_num_threads` also sets what threads started later begin with. So the counts are set where
they belong to one thread: OpenMP's by omp_set_num_threads, MKL's by MKL_Set_Num_Threads_Local.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from xruntime.errors import AffinityRefusedError, SecondRuntimeError
from xruntime.native import library, quick_library

RUNTIME_NAME = re.compile(r"/\S*/lib(?:gomp|iomp5|omp)\b[^/\s]*\.so\S*")
"""An OpenMP runtime in /proc/self/maps, under its own name or one that a wheel gave it."""


def team_size() -> int:
    """How many threads the calling thread's next operator uses at most."""
    _let_torch_begin()
    size: int = quick_library().xk_team_size()
    return size


def resize_team(threads: int) -> int:
    """Set that number, for OpenMP and MKL, in the calling thread alone; returns what it was.

    Raises SecondRuntimeError where torch runs on another OpenMP runtime than ours.
    """
    _let_torch_begin()
    previous: int = quick_library().xk_team_resize(threads)
    previous_mkl = set_mkl_threads(threads)
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != threads:
        quick_library().xk_team_resize(previous)
        set_mkl_threads(previous_mkl)
        raise SecondRuntimeError(
            f"the team was set to {threads} threads, and torch still has"
            f" {torch.get_num_threads()}: it runs on another OpenMP runtime than xruntime."
            f" In this process: {', '.join(openmp_runtimes()) or 'none that is known'}."
            " Start it with one runtime for all, by xlaunch --omp gnu or LD_PRELOAD"
        )
    return previous


def set_mkl_threads(threads: int) -> int:
    """Set MKL's number of threads in the calling thread alone; returns what it was.

    0 stands for the process's number. Without MKL nothing is set, and the answer is 0.
    """
    set_mkl = _mkl_setter()
    return 0 if set_mkl is None else int(set_mkl(threads))


def mkl_threads() -> int:
    """MKL's number of threads in the calling thread; 0: the process's."""
    _let_torch_begin()
    # MKL tells it only when it is set.
    count = set_mkl_threads(0)
    set_mkl_threads(count)
    return count


@contextlib.contextmanager
def team_of(threads: int) -> Iterator[None]:
    """The calling thread's native work has `threads` threads in the block, and what it had after."""
    mkl_before = mkl_threads()
    before = resize_team(threads)
    try:
        yield
    finally:
        resize_team(before)
        set_mkl_threads(mkl_before)


def confine_team(cpus: Sequence[int], *, pin_workers: bool = False) -> int:
    """Confine the calling thread and its team's workers to `cpus`; returns the team's size.

    With `pin_workers` each worker runs on one CPU of them; the calling thread keeps them all, since
    workers that the runtime starts later inherit its mask. Raises AffinityRefusedError.
    """
    act = library().xk_team_pin if pin_workers else library().xk_team_confine
    size: int = act((ctypes.c_int32 * len(cpus))(*cpus), len(cpus))
    if size < 0:
        number = ctypes.get_errno()
        allowed = "not all of them may be used" if number == errno.EINVAL else os.strerror(number)
        raise AffinityRefusedError(
            f"this thread cannot be confined to CPUs {_listed(cpus)}: {allowed}."
            f" The process may use {_listed(os.sched_getaffinity(os.getpid()))}"
        )
    return size


def openmp_runtimes() -> tuple[str, ...]:
    """The files of the OpenMP runtimes that this process has mapped."""
    maps = Path("/proc/self/maps").read_text(errors="replace")
    return tuple(sorted(set(RUNTIME_NAME.findall(maps))))


def _listed(cpus: Collection[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


def _let_torch_begin() -> None:
    # A thread's first operator gives it the process's count; done later, it would undo ours.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.get_num_threads()


def _mkl_setter() -> Callable[[int], Any] | None:
    """MKL's count of the calling thread; None where torch has no MKL, and until torch is there."""
    torch = sys.modules.get("torch")
    return None if torch is None else _find_mkl_setter(torch.__file__)


@functools.cache
def _find_mkl_setter(torch_file: str) -> Callable[[int], Any] | None:
    carried = Path(torch_file).parent / "lib" / "libtorch_cpu.so"
    for handle in (None, *([str(carried)] if carried.is_file() else [])):
        setter = getattr(ctypes.CDLL(handle), "MKL_Set_Num_Threads_Local", None)
        if setter is not None:
            setter.argtypes, setter.restype = (ctypes.c_int,), ctypes.c_int
            return setter  # type: ignore[no-any-return]
    return None
