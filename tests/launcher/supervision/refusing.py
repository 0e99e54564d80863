# SPDX-License-Identifier: Apache-2.0
"""Run a program under a seccomp filter that refuses system calls with EPERM, as containers do.

``python refusing.py sched_setaffinity,set_mempolicy COMMAND...``; every process that it starts inherits
the filter. See seccomp(2) and linux/filter.h.
"""

import ctypes
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {"sched_setaffinity": 203, "mbind": 237, "set_mempolicy": 238},
    "aarch64": {"sched_setaffinity": 122, "mbind": 235, "set_mempolicy": 237},
}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ERRNO with EPERM
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K


class Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse(names: list[str]) -> None:
    """Refuse the calls in this process and its children from now on."""
    numbers = [NUMBERS[platform.machine()][name] for name in names]
    steps = [(LOAD, 0, 0, 0)]  # the number of the call
    steps += [(EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    program = Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl: {os.strerror(number)}")


if __name__ == "__main__":
    refuse(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
