# SPDX-License-Identifier: Apache-2.0
"""Threads, pins and streams hold under each OpenMP runtime: their tests, run again.

A runtime is chosen once, when a process starts, so each run is a process of its own. torch's own
libgomp is what they run on anyway.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.runtimes import intel_runtime, llvm_runtime

SUITE = [
    Path(__file__).parent / name
    for name in ("threads/test_pin.py", "streams/test_task.py", "streams/test_multi_stream.py")
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("find", "package"),
    [(intel_runtime, "PyPI's intel-openmp"), (llvm_runtime, "Debian's libomp5")],
    ids=["libiomp5", "libomp"],
)
def test_threads_under(find, package: str, needs: Needs) -> None:
    runtime = find()
    needs(runtime, package)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *SUITE],
        # Waiting workers of these runtimes spin for 200 ms, and here many threads share two CPUs.
        env=os.environ | {"LD_PRELOAD": str(runtime), "KMP_BLOCKTIME": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) > 50
