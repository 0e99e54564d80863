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
    # For two kernels, compiling the headers first takes longer than it saves.
    compiled_anew |= {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    assert python("-c", POOLING, **compiled_anew) == "True\nTrue\n"


PROBE = """
import subprocess, sys
import torch._inductor.cpu_vec_isa as probes
from xruntime.compilation.inductor import mend_compiler

# As in torch before 2.13. The library is found in torch's directory only.
probes.VecISA._avx_py_load = '''
import torch
from ctypes import cdll
cdll.LoadLibrary("__lib_path__")
'''
mend_compiler()
loading = probes.VecISA._avx_py_load.replace("__lib_path__", "libtorch_cpu.so")
command = [sys.executable, "-c", loading + "import sys; print('torch' in sys.modules)"]
subprocess.run(command, env=probes.python_subprocess_env(), check=True)
"""


def test_vector_instructions_are_tried_without_importing_torch() -> None:
    assert python("-c", PROBE) == "False\n"
