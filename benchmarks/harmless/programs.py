# SPDX-License-Identifier: Apache-2.0
"""The programs of benchmarks.harmless without torch, as users write them: ``python programs.py NAME``.

HARMLESS_UNITS is the amount of work, HARMLESS_TASKS the number of tasks in a unit, and HARMLESS_RESULT the file for when
the work began and ended. Imports, workers and a first small piece of work come before it: they are the start-up.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

UNITS = int(os.environ.get("HARMLESS_UNITS", "1"))
TASKS = int(os.environ.get("HARMLESS_TASKS", "2"))
WORKERS = min(4, TASKS)
CHILD = "import numpy as n; n.linalg.svd(n.random.default_rng(0).standard_normal((200, 200)))"


@contextlib.contextmanager
def work() -> Iterator[None]:
    """Note when the block began and ended (time.perf_counter, which all processes share)."""
    began = time.perf_counter()
    yield
    ended = time.perf_counter()
    Path(os.environ["HARMLESS_RESULT"]).write_text(f"{began} {ended}")


def multiply(seed: int, size: int = 600, times: int = 8) -> float:
    """One task: products of a random matrix."""
    import numpy

    matrix = numpy.random.default_rng(seed).standard_normal((size, size)) / size
    result = matrix
    for _ in range(times):
        result = result @ matrix
    return float(result[0, 0])


def with_joblib() -> None:
    from joblib import Parallel, delayed

    Parallel(n_jobs=-1)(delayed(multiply)(seed, 100) for seed in range(TASKS))
    with work():
        Parallel(n_jobs=-1)(delayed(multiply)(seed) for seed in range(UNITS * TASKS))


def grid_search() -> None:
    from sklearn.datasets import make_classification
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import GridSearchCV

    rows, classes = make_classification(4000, 20, random_state=0)
    for units in (0, UNITS):
        rates = [0.05 + 0.01 * number for number in range(max(1, units))]
        model = HistGradientBoostingClassifier(max_iter=20 if units else 1)
        search = GridSearchCV(model, {"learning_rate": rates}, cv=4, n_jobs=-1)
        with work():  # the last one counts
            search.fit(rows, classes)


def with_dask() -> None:
    import dask.array
    from distributed import Client, LocalCluster

    with LocalCluster(dashboard_address=None) as cluster, Client(cluster):
        for units in (1, UNITS):
            with work():
                for seed in range(units):
                    chunks = dask.array.random.default_rng(seed).random((2000, 2000), chunks=500)
                    (chunks @ chunks.T).sum().compute()


def with_ray() -> None:
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    task = ray.remote(multiply)
    ray.get([task.remote(seed, 100) for seed in range(TASKS)])
    with work():
        ray.get([task.remote(seed) for seed in range(UNITS * TASKS)])
    ray.shutdown()


def with_spawn() -> None:
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.map(multiply, [0] * TASKS)
        with work():
            pool.map(multiply, range(UNITS * TASKS))


def subprocess_tree() -> None:
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}], check=True)"
    )

    def run(_: int) -> None:
        subprocess.run([sys.executable, "-c", parent], check=True)

    run(0)
    with work(), ThreadPoolExecutor(TASKS) as pool:
        list(pool.map(run, range(UNITS * TASKS)))


def with_numpy() -> None:
    import numpy

    multiply(0)
    with work():
        for seed in range(UNITS):
            multiply(seed, 1000)
            numpy.linalg.svd(numpy.random.default_rng(seed).standard_normal((200, 200)))


def frugal() -> None:
    """Chunks of changing sizes, one at a time."""
    import numpy

    generator = numpy.random.default_rng(0)
    sizes = itertools.cycle([1_000_000, 6_000_000, 2_500_000, 300_000, 8_000_000])
    generator.random(8_000_000).sum()
    with work():
        for size in itertools.islice(sizes, 5 * UNITS):
            chunk = generator.random(size)
            words = [str(value) for value in chunk[:20_000]]
            chunk = chunk[chunk > 0.5] * len(words)
            chunk.sum()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """What gunicorn serves: an answer that takes a small matrix product."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(multiply(len(environ["PATH_INFO"]), 200)).encode()]


def client(address: str, server: str) -> None:
    """Send requests to gunicorn, and end it. Its configuration starts this when it is ready."""
    from urllib.request import urlopen

    def request(_: int) -> None:
        with urlopen(f"http://{address}/") as answer:
            answer.read()

    with ThreadPoolExecutor(2 * WORKERS) as pool:
        list(pool.map(request, range(4 * WORKERS)))
        with work():
            list(pool.map(request, range(50 * UNITS)))
    os.kill(int(server), 15)


PROGRAMS = {
    "joblib": with_joblib,
    "grid-search": grid_search,
    "dask": with_dask,
    "ray": with_ray,
    "spawn": with_spawn,
    "subprocesses": subprocess_tree,
    "numpy": with_numpy,
    "frugal": frugal,
}

if __name__ == "__main__":
    if sys.argv[1] == "client":
        client(*sys.argv[2:])
    else:
        PROGRAMS[sys.argv[1]]()
