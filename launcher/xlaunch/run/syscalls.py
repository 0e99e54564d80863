# SPDX-License-Identifier: Apache-2.0
"""The Linux system calls that Python's `os` does not offer, each by its own name.

Every function raises OSError with the call's errno, as `os` does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterable
from typing import NamedTuple

from xlaunch.planning.request import MemoryPolicy

_libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SFD_CLOEXEC = 0o2000000
SFD_NONBLOCK = 0o4000

SI_KERNEL = 0x80
"""`si_code` of a signal that the kernel sent itself: for SIGINT, the terminal's Ctrl-C."""

_SET_MEMPOLICY = {
    "x86_64": 238,
    "aarch64": 237,
    "riscv64": 237,
    "loongarch64": 237,
    "ppc64le": 261,
    "ppc64": 261,
    "s390x": 270,
    "i686": 276,
    "i386": 276,
    "armv7l": 321,
}
"""The system call's number by machine (each architecture's own table)."""

_POLICY_MODES = {
    MemoryPolicy.PREFERRED: 1,
    MemoryPolicy.BIND: 2,
    MemoryPolicy.INTERLEAVE: 3,
    MemoryPolicy.LOCAL: 4,
}
"""`MPOL_*` of linux/mempolicy.h."""

_DEFAULT_POLICY = 0


def become_subreaper() -> None:
    """Make orphaned descendants this process's children (see PR_SET_CHILD_SUBREAPER in prctl(2))."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: signal.Signals) -> None:
    """Have `number` sent to this process when the thread that forked it ends.

    Kept through exec (not of a set-uid program), not inherited by children: see prctl(2).
    """
    _prctl(PR_SET_PDEATHSIG, int(number))


def set_memory_policy(policy: MemoryPolicy, nodes: Iterable[int]) -> None:
    """Set this thread's NUMA memory policy; children and programs executed inherit it.

    `policy` is neither AUTO nor NONE. Refused in many containers (EPERM), absent from some
    kernels (ENOSYS). See set_mempolicy(2).
    """
    _set_mempolicy(_POLICY_MODES[policy], () if policy is MemoryPolicy.LOCAL else tuple(nodes))


def reset_memory_policy() -> None:
    """Give this thread the kernel's default policy again."""
    _set_mempolicy(_DEFAULT_POLICY, ())


def _set_mempolicy(mode: int, nodes: tuple[int, ...]) -> None:
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"set_mempolicy is not known on {os.uname().machine}")
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = max(nodes, default=0) // bits + 1
    mask = (ctypes.c_ulong * words)()
    for node in nodes:
        mask[node // bits] |= 1 << (node % bits)
    # The kernel reads one bit less than it is told (mm/mempolicy.c, get_nodes): hence the + 1.
    pointer = mask if nodes else None
    _check(_libc.syscall(number, mode, pointer, ctypes.c_ulong(words * bits + 1 if nodes else 0)))


class SignalInfo(NamedTuple):
    """A signal as it came in."""

    number: int
    code: int
    sender: int
    """PID of the sender; 0 when the kernel sent it."""


class SignalQueue:
    """A file descriptor that is readable when one of the blocked signals is pending: signalfd(2)."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        mask = ctypes.create_string_buffer(128)  # sigset_t, at its largest
        _libc.sigemptyset(mask)
        for number in numbers:
            _libc.sigaddset(mask, int(number))
        self.descriptor = int(_check(_libc.signalfd(-1, mask, SFD_CLOEXEC | SFD_NONBLOCK)))

    def read(self) -> list[SignalInfo]:
        """All that came in since the last call."""
        size = 128  # struct signalfd_siginfo
        infos: list[SignalInfo] = []
        while True:
            try:
                data = os.read(self.descriptor, 16 * size)
            except BlockingIOError:
                return infos
            for start in range(0, len(data), size):
                number, _, code, sender = struct.unpack_from("=IiiI", data, start)
                infos.append(SignalInfo(number, code, sender))


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero))


def _check(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
