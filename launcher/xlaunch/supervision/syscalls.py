# SPDX-License-Identifier: Apache-2.0
"""Linux system calls that Python's `os` does not offer.

Every function raises OSError with the call's errno, as `os` does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Iterable
from typing import NamedTuple

from xlaunch.planning.request import MemoryPolicy

_libc = ctypes.CDLL(None, use_errno=True)

_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_THP_DISABLE = 41
SFD_CLOEXEC = 0o2000000
SFD_NONBLOCK = 0o4000

SI_KERNEL = 0x80
"""`si_code` of a signal that the kernel sent itself: for SIGINT, the terminal's Ctrl-C."""

_MEMPOLICY_CALLS = {
    "x86_64": (238, 239),
    **dict.fromkeys(("aarch64", "riscv64", "loongarch64"), (237, 236)),
    **dict.fromkeys(("ppc64le", "ppc64"), (261, 260)),
    "s390x": (270, 269),
    **dict.fromkeys(("i686", "i386"), (276, 275)),
    "armv7l": (321, 320),
}
"""The numbers of set_mempolicy and get_mempolicy by machine (each architecture's own table)."""

MPOL_DEFAULT = 0
_MPOL_PREFERRED_MANY = 5

_POLICY_MODES = {
    MemoryPolicy.PREFERRED: 1,
    MemoryPolicy.BIND: 2,
    MemoryPolicy.INTERLEAVE: 3,
    MemoryPolicy.LOCAL: 4,
}
"""`MPOL_*` of linux/mempolicy.h."""

_MAX_NODES = 1024
"""Maximum number of NUMA nodes of any kernel (CONFIG_NODES_SHIFT is 10 at most)."""


class InheritedPolicy(NamedTuple):
    """A NUMA memory policy in the kernel's form: mode with flags, and nodes."""

    mode: int
    nodes: tuple[int, ...]


def become_subreaper() -> None:
    """Make orphaned descendants this process's children (see PR_SET_CHILD_SUBREAPER in prctl(2))."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: signal.Signals) -> None:
    """Have `number` sent to this process when the thread that forked it ends.

    It survives exec, except of a set-uid program, and children do not inherit it: see prctl(2).
    """
    _prctl(PR_SET_PDEATHSIG, int(number))


def forbid_huge_pages(forbid: bool) -> None:
    """Disable transparent huge pages for this process and its children (PR_SET_THP_DISABLE)."""
    _prctl(PR_SET_THP_DISABLE, int(forbid))


def set_memory_policy(policy: MemoryPolicy, nodes: tuple[int, ...]) -> None:
    """Set this thread's NUMA memory policy; children and programs executed inherit it.

    `policy`: not AUTO or NONE. Many containers refuse it (EPERM), some kernels lack it (ENOSYS).
    """
    mode = _POLICY_MODES[policy]
    if policy is MemoryPolicy.PREFERRED and len(nodes) > 1:
        mode = _MPOL_PREFERRED_MANY  # Linux 5.15; plain MPOL_PREFERRED uses the first node only
    restore_memory_policy(InheritedPolicy(mode, () if policy is MemoryPolicy.LOCAL else nodes))


def read_memory_policy() -> InheritedPolicy:
    """The NUMA memory policy of this thread. Raises OSError as `set_memory_policy` does."""
    mode = ctypes.c_int(0)
    mask = (ctypes.c_ulong * (_MAX_NODES // _BITS))()
    size = ctypes.c_ulong(_MAX_NODES)
    number = _mempolicy_call(1)
    _check(_libc.syscall(number, ctypes.byref(mode), mask, size, None, ctypes.c_ulong(0)))
    nodes = tuple(n for n in range(_MAX_NODES) if mask[n // _BITS] >> (n % _BITS) & 1)
    return InheritedPolicy(mode.value, nodes)


def restore_memory_policy(policy: InheritedPolicy) -> None:
    """Set a policy that `read_memory_policy` returned."""
    words = max(policy.nodes, default=0) // _BITS + 1
    mask = (ctypes.c_ulong * words)()
    for node in policy.nodes:
        mask[node // _BITS] |= 1 << (node % _BITS)
    # The kernel reads one bit less than this size (mm/mempolicy.c, get_nodes): hence the + 1.
    size = ctypes.c_ulong(words * _BITS + 1 if policy.nodes else 0)
    _check(_libc.syscall(_mempolicy_call(0), policy.mode, mask if policy.nodes else None, size))


def memory_policy_calls(machine: str, bits: int) -> tuple[int, int]:
    """The numbers of set_mempolicy and get_mempolicy. Raises OSError where they are not known."""
    numbers = _MEMPOLICY_CALLS.get(machine)
    if numbers is None:
        raise OSError(errno.ENOSYS, f"memory policy calls are not known on {machine}")
    if (bits == 32) != (machine in ("i686", "i386", "armv7l")):
        reason = f"a {bits}-bit Python on {machine} has other system call numbers; use a 64-bit one"
        raise OSError(errno.ENOSYS, reason)
    return numbers


def _mempolicy_call(position: int) -> int:
    return memory_policy_calls(os.uname().machine, _BITS)[position]


class SignalInfo(NamedTuple):
    number: int
    code: int


class SignalQueue:
    """Blocked signals as a file descriptor that is readable while one is pending: signalfd(2)."""

    def __init__(self, numbers: Iterable[int]) -> None:
        mask = ctypes.create_string_buffer(128)  # maximum size of sigset_t
        _libc.sigemptyset(mask)
        for number in numbers:
            _libc.sigaddset(mask, int(number))
        self.descriptor = int(_check(_libc.signalfd(-1, mask, SFD_CLOEXEC | SFD_NONBLOCK)))

    def read(self) -> list[SignalInfo]:
        """The signals received since the last call."""
        size = 128  # struct signalfd_siginfo
        infos: list[SignalInfo] = []
        while True:
            try:
                data = os.read(self.descriptor, 16 * size)
            except BlockingIOError:
                return infos
            for start in range(0, len(data), size):
                number, _, code = struct.unpack_from("=Iii", data, start)
                infos.append(SignalInfo(number, code))


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero))


def _check(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
