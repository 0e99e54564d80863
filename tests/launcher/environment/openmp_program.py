# SPDX-License-Identifier: Apache-2.0
"""A program for the tests: tells, as JSON, which OpenMP runtime runs torch, and on which CPUs."""

import ctypes
import json
import os
import subprocess
import sys


class Symbol(ctypes.Structure):
    """What dladdr(3) tells."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def runtime():
    """The file whose omp_get_max_threads every library in this process calls."""
    everything = ctypes.CDLL(None)
    function = ctypes.cast(everything.omp_get_max_threads, ctypes.c_void_p)
    symbol = Symbol()
    assert everything.dladdr(function, ctypes.byref(symbol))
    return os.path.realpath(symbol.file.decode())


def threads():
    return len(os.listdir("/proc/self/task"))


def mask():
    return sorted(os.sched_getaffinity(0))


def mask_of_forked_child():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(mask()).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as stream:
        told = json.load(stream)
    os.wait()
    return told


started = 0  # by parallel regions; imports may start threads of another kind
if "sklearn first" in sys.argv:
    import numpy as np
    from sklearn.metrics import pairwise_distances_argmin

    points = np.random.default_rng(1).random((20_000, 16))
    before = threads()
    pairwise_distances_argmin(points, points[:50])  # a region on scikit-learn's own copy
    started += threads() - before
import torch  # noqa: E402 - the order is what is tested

after_import = mask()
before = threads()
torch.ones(1 << 22).add_(1).sum().item()  # a parallel region
started += threads() - before
command = (sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))")
print(
    json.dumps(
        {
            "runtime": runtime(),
            "threads": torch.get_num_threads(),
            "started": started,
            "after_import": after_import,
            "mask": mask(),
            "forked": mask_of_forked_child(),
            "spawned": [
                int(word)
                for word in subprocess.run(
                    command, stdout=subprocess.PIPE, text=True, check=True
                ).stdout.split()
            ],
        }
    )
)
