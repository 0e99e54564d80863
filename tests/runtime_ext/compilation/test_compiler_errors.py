# SPDX-License-Identifier: Apache-2.0
"""Errors of torch's compiler that `mend_compiler` works around."""

from __future__ import annotations

import pytest
from tests.runtime_ext.interpreters import python

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compiler")]

POOLING = """
import ctypes, mmap
import torch
from torch import nn
from xruntime.compilation.inductor import mend_compiler

def before_a_hole(sizes, dtype):
    size = torch.Size(sizes).numel() * dtype.itemsize
    assert size % mmap.PAGESIZE == 0
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    hole = ctypes.c_void_p(address + size), ctypes.c_size_t(mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(*hole, 0) == 0
    return torch.frombuffer(memory, dtype=dtype, count=size // dtype.itemsize).view(sizes)

mend_compiler()
pool = nn.MaxPool2d(3, 2, 1)
with torch.no_grad():
    for dtype in (torch.float32, torch.bfloat16):
        images = before_a_hole((1, 64, 64, 20), dtype).normal_().permute(0, 3, 1, 2)
        print(torch.equal(torch.compile(pool)(images), pool(images)))
"""


def test_no_memory_beyond_a_tensor_is_read() -> None:
    """A row of 20 channels ends within a vector, and behind the last one there is no memory."""
    compiled_anew = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    assert python("-c", POOLING, **compiled_anew) == "True\nTrue\n"
