# SPDX-License-Identifier: Apache-2.0
"""How long a call keeps other Python threads from running."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 3
TICK_S = 1e-4


def gil_held_share(call: Callable[[], Any]) -> float:
    """The longest pause of another Python thread during a call, relative to the call's time.

    Other work only adds to a pause, so the smallest of several rounds counts.
    """
    return min(_pause(call) for _ in range(ROUNDS))


def _pause(call: Callable[[], Any]) -> float:
    ticks: list[float] = []
    ended = threading.Event()

    def tick() -> None:
        while not ended.is_set():
            ticks.append(time.perf_counter())
            time.sleep(TICK_S)

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(10 * TICK_S)
    began = time.perf_counter()
    call()
    end = time.perf_counter()
    ended.set()
    thread.join()
    during = [began, *(at for at in ticks if began < at < end), end]
    return max(b - a for a, b in itertools.pairwise(during)) / (end - began)
