# SPDX-License-Identifier: Apache-2.0
"""What runs in the process of another Python: see other_python.py.

It imports the standard library alone, since that Python has nothing of this project.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

MIN_MEASURED_S = 0.2
"""How long a case repeats its call."""


def seconds_of_one(call: Callable[[], object], min_measured_s: float) -> float:
    """Repeat a call for `min_measured_s`, and return the seconds of one."""
    count, began = 0, time.perf_counter()
    while (taken_s := time.perf_counter() - began) < min_measured_s:
        call()
        count += 1
    return taken_s / count


def measure_by_name(calls: Mapping[str, Callable[[], object]], min_measured_s: float) -> None:
    """For each line of the input, a name, measure its call and write the seconds of one."""
    for line in sys.stdin:
        print(seconds_of_one(calls[line.rstrip("\n")], min_measured_s), flush=True)
