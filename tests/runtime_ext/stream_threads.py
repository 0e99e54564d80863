# SPDX-License-Identifier: Apache-2.0
"""Threads set up as streams are, that call something at the same moment; and a new thread's count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from xruntime.threads.team import resize_team


def call_in_threads(call: Callable[[], Any], threads: int, *, team: int) -> list[Any]:
    """What `call` returned, or raised, in each of `threads` threads with teams of `team`."""
    together = threading.Barrier(threads)
    results: list[Any] = []

    def run() -> None:
        resize_team(team)
        together.wait()
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - tests look at it
            results.append(error)

    started = [threading.Thread(target=run) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return results


def call_in_thread(call: Callable[[], Any], *, team: int) -> Any:
    """What `call` returns in a thread with a team of `team`; raises what it raises."""
    (result,) = call_in_threads(call, 1, team=team)
    if isinstance(result, Exception):
        raise result
    return result


def in_threads(work: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    """What `work` returns of each value, all at once in threads; raises what one of them raises."""
    arguments = list(values)
    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(work, arguments))


def in_a_thread(call: Callable[[], Any]) -> Any:
    """What `call` returns, or raises, in a new thread."""
    return in_threads(lambda _: call(), [None])[0]


def count_of_a_new_thread() -> int:
    return in_a_thread(torch.get_num_threads)
