# SPDX-License-Identifier: Apache-2.0
"""Serves one model by streams in one process, a request of one item a stream; prints a line of JSON.

    python benchmarks/serving.py resnet50 --dtype bfloat16 --streams 16 --threads 4 --form compiled

Forms of the model: compiled (xruntime.compile_for_streams), package (AOTInductor, called without the
interpreter's lock), script (TorchScript), eager. Throughput is that of `map` over many requests.
Latency is a request's, from submission to its result, with as many in flight as there are streams.
With --prepare it only compiles, so that what can be cached is there when it counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import torch
from workloads import DTYPES, MODELS, Work, memory_mib

from xruntime import CPUPool, MultiStreamModule, compile_for_streams

FORMS = ("compiled", "package", "script", "eager")


class FirstOutput(torch.nn.Module):
    """A model whose output is one tensor, which is all that torch.jit.trace takes."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output = self.model(batch)
        return output if isinstance(output, torch.Tensor) else output[0]


def in_form(work: Work, form: str, *, streams: int, threads: int, package: Path) -> object:
    """The model as the streams shall call it."""
    model = FirstOutput(work.model).eval()
    if form == "compiled":
        # Random weights make outputs that nothing is known about but that they are close.
        return compile_for_streams(model, work.batch, threads=threads)
    if form == "package":
        from xruntime.streams.packages import compile_package, load_package

        if not package.exists():
            compile_package(model, work.batch, package, threads=threads)
        return load_package(package, runners=streams)
    if form == "script":
        return torch.jit.freeze(torch.jit.trace(model, work.batch))
    return model


def throughput(streams: MultiStreamModule, batch: torch.Tensor, seconds: float) -> float:
    """Requests per second over `seconds`, after a warm-up of two for each stream."""
    for _ in streams.map(itertools.repeat(batch, 2 * streams.num_streams)):
        pass
    until = time.perf_counter() + seconds
    requests = itertools.takewhile(lambda _: time.perf_counter() < until, itertools.repeat(batch))
    began = time.perf_counter()
    answered = sum(1 for _ in streams.map(requests))
    return answered / (time.perf_counter() - began)


def latencies_ms(streams: MultiStreamModule, batch: torch.Tensor, seconds: float) -> list[float]:
    """Milliseconds from submission to result, with one request a stream in flight."""
    taken: list[float] = []
    room = threading.Semaphore(streams.num_streams)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        room.acquire()
        began = time.perf_counter()

        def answered(_: object, began: float = began) -> None:
            taken.append((time.perf_counter() - began) * 1e3)
            room.release()

        streams.submit(batch).add_done_callback(answered)
    for _ in range(streams.num_streams):
        room.acquire()
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=MODELS)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True, help="threads of each stream")
    parser.add_argument("--form", choices=FORMS, default="compiled")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--packages", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--prepare", action="store_true", help="compile, and measure nothing")
    options = parser.parse_args()
    torch.manual_seed(0)
    warnings.simplefilter("ignore", DeprecationWarning)
    work = MODELS[options.work](1, DTYPES[options.dtype])
    name = f"{options.work}-{options.dtype}-{options.threads}-{torch.__version__}.pt2"
    began = time.perf_counter()
    with torch.inference_mode():
        model = in_form(
            work,
            options.form,
            streams=options.streams,
            threads=options.threads,
            package=options.packages / name,
        )
        made_s = time.perf_counter() - began
        values = {"made_s": made_s}
        if not options.prepare:
            pool = CPUPool(smt=False)
            pool = CPUPool(pool.core_ids[: options.streams * options.threads])
            with MultiStreamModule(model, options.streams, pool) as streams:
                values["rate"] = throughput(streams, work.batch, options.seconds)
                taken = latencies_ms(streams, work.batch, options.seconds)
            cuts = statistics.quantiles(taken, n=100, method="inclusive")
            values |= {"p50_ms": cuts[49], "p99_ms": cuts[98], "requests": len(taken)}
            values["peak_mib"], values["resting_mib"] = memory_mib()
    print(json.dumps(values | {"torch": torch.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
