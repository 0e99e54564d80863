# SPDX-License-Identifier: Apache-2.0
"""Weights in pages of 2 MiB, which are read faster: the processor looks up fewer addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Final

import torch

_MADV_COLLAPSE: Final = 25
"""Linux 6.1 and newer; older ones refuse it."""

_PAGE_BYTES: Final = 2 << 20


def collapse(tensors: Iterable[torch.Tensor]) -> int:
    """Ask the kernel to put the memory of tensors into large pages, where it lies; return the bytes that are.

    Addresses and values stay. The kernel moves one page at a time, so it takes no more memory, and about a
    second for each GB. What it refuses, such as parts of a file, stays in small pages.
    """
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return 0
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    collapsed = 0
    for address, size in {(tensor.data_ptr(), tensor.nbytes) for tensor in tensors}:
        begin = -(-address // _PAGE_BYTES) * _PAGE_BYTES
        end = (address + size) // _PAGE_BYTES * _PAGE_BYTES
        if begin < end and advise(begin, end - begin, _MADV_COLLAPSE) == 0:
            collapsed += end - begin
    return collapsed
