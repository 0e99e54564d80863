# SPDX-License-Identifier: Apache-2.0
"""The settings of the mailbox's Python side; tests/kernels tests the mailbox itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xruntime.threads.cpu_pool import CPUPool


@pytest.mark.parametrize(("cpus", "spin_us"), [(1, 0), (2, 50)])
def test_waiting_spins_only_if_the_other_side_can_run(
    cpus: int, spin_us: int, two: CPUPool
) -> None:
    script = (
        f"import os; os.sched_setaffinity(0, {two.core_ids[:cpus]});"
        " from xruntime.threads.mailbox import SPIN_US; print(SPIN_US)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{spin_us}\n"
