# SPDX-License-Identifier: Apache-2.0
"""Times candidates in turns, so that all of them see the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

ROUNDS: Final = 7
MIN_ROUND_S: Final = 0.02
"""Minimum time of a candidate's calls in one round."""

MAX_CALLS: Final = 100
"""Maximum calls of a candidate in one round."""


def median_times(candidates: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median time of a call of each candidate, in seconds."""
    calls = {}
    for name, call in candidates.items():
        call()  # the first calls of compiled code and of oneDNN prepare things
        once_s = _time(call, 1)
        calls[name] = max(1, min(MAX_CALLS, round(MIN_ROUND_S / max(once_s, 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(ROUNDS):
        names = list(candidates)
        # Neither always comes first.
        for name in names if number % 2 else reversed(names):
            times[name].append(_time(candidates[name], calls[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def _time(call: Callable[[], Any], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count
