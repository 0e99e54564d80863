# SPDX-License-Identifier: Apache-2.0
"""Compare the round trip of a call to another thread: xruntime's Task and Python's own means.

    python -m benchmarks.streams.task
    python -m benchmarks.streams.task --rounds 20 --json task.json
    python -m benchmarks.streams.task --threads 4

It times submit, wait and result of a tiny module (a linear layer of 4 x 4, inference mode). Direct
calls are the lower bound; ThreadPoolExecutor and a thread behind queue.SimpleQueue are the peers. With
--threads that many threads submit at once, each to a worker of its own, and the table has time over calls. Goals on 2 CPUs: at most 20 us, and at most a quarter of
ThreadPoolExecutor; on 64 CPUs at most 15 us.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from benchmarks.harness.measurement import (
    Case,
    goal_line,
    machine_line,
    measure_rounds,
    option_parser,
    print_table,
    quartiles,
    ratio,
    time_cell,
    write_json,
)
from xruntime.streams.task import Task
from xruntime.threads.cpu_pool import CPUPool

CALLS = 3000
TASK = "xruntime Task"
EXECUTOR = "ThreadPoolExecutor"


class QueueWorker:
    """A thread that takes calls from one SimpleQueue and returns results through another."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._results: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def __call__(self, function: Callable, *args: object) -> object:
        self._calls.put((function, args))
        return self._results.get()

    def _serve(self) -> None:
        with torch.inference_mode():
            while True:
                function, args = self._calls.get()
                self._results.put(function(*args))


def seconds_of(calls: Sequence[Callable[[], object]]) -> float:
    """Time CALLS repetitions of each of `calls`, each in its own thread; return seconds over calls."""
    start = threading.Barrier(len(calls))

    def repeat(call: Callable[[], object]) -> float:
        with torch.inference_mode():
            for _ in range(CALLS // 10):
                call()
            start.wait()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
        return began

    others = [threading.Thread(target=repeat, args=(call,)) for call in calls[1:]]
    for thread in others:
        thread.start()
    began = repeat(calls[0])
    for thread in others:
        thread.join()
    return (time.perf_counter() - began) / (CALLS * len(calls))


def one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))


def main() -> int:
    parser = option_parser(__doc__, rounds=9)
    parser.add_argument(
        "--threads", type=int, default=1, help="threads that submit at once (default 1)"
    )
    options = parser.parse_args()
    if options.threads < 1:
        parser.error("--threads is at least 1")
    cpus = sorted(os.sched_getaffinity(0))
    layer = torch.nn.Linear(4, 4).eval()
    batch = torch.randn(1, 4)
    workers = range(options.threads)
    queued = [QueueWorker() for _ in workers]
    with contextlib.ExitStack() as opened:
        opened.enter_context(torch.inference_mode())
        pools = [CPUPool([cpus[-1 - at % len(cpus)]]) for at in workers]
        tasks = [opened.enter_context(Task(layer, pool)) for pool in pools]
        executors = [opened.enter_context(one_thread()) for _ in workers]
        ways = {
            "direct call": [lambda: layer(batch)] * options.threads,
            TASK: [lambda task=task: task(batch).result() for task in tasks],
            EXECUTOR: [lambda pool=pool: pool.submit(layer, batch).result() for pool in executors],
            "queue.SimpleQueue": [lambda run=run: run(layer, batch) for run in queued],
        }
        cases = [Case(name, partial(seconds_of, calls)) for name, calls in ways.items()]
        results = measure_rounds(cases, options.rounds)
    print(f"{machine_line()}; torch {torch.__version__}")
    by_name = {result.name: result for result in results}
    rows = []
    for result in results:
        times = ratio(result, by_name[TASK]).median
        rows.append([result.name, time_cell(result.seconds, "us", 1), f"{times:.2f}"])
    print_table(["a round trip, by", "time (quartiles)", "times Task"], rows)
    few_cpus = len(cpus) < 8
    taken_us = quartiles(by_name[TASK].seconds).median * 1e6
    share = ratio(by_name[TASK], by_name[EXECUTOR]).median
    goals = []
    if options.threads == 1:
        goals.append(goal_line("round trip", taken_us, 20.0 if few_cpus else 15.0, "us"))
        if few_cpus:
            goals.append(goal_line("share of ThreadPoolExecutor's", share, 0.25, ""))
    print(*goals, sep="\n")
    write_json(options.json, "task", results, goals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
