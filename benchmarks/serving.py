# SPDX-License-Identifier: Apache-2.0
"""Serves one model by streams in one process, a request of one item a stream.

    python benchmarks/serving.py FOLDER resnet50 --dtype bfloat16 --streams 16 --threads 4

With --batches a batch of one item a stream comes at a time, is split and joined.

Forms of the model: compiled (xruntime.compile_for_streams), package (AOTInductor, called without the interpreter's lock), script (TorchScript), eager.
As many requests are in flight as there are streams, by the turns of FOLDER. With --prepare it only
compiles, so that what can be cached is there when it counts.
"""

from __future__ import annotations

import argparse
import os
import queue
import tempfile
import warnings
from concurrent.futures import Future
from pathlib import Path

import torch
from turns import Turn
from workloads import DTYPES, MODELS, Work, work_on

from xruntime import CPUPool, MultiStreamModule, compile_for_streams

TOLERANCE = 0.05
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
        # Many layers with random weights blow small differences up.
        return compile_for_streams(model, work.batch, threads=threads, tolerance=TOLERANCE)
    if form == "package":
        from xruntime.packages.package import compile_package, load_package

        if not package.exists():
            compile_package(model, work.batch, package, threads=threads)
        return load_package(package, runners=streams)
    if form == "script":
        return torch.jit.freeze(torch.jit.trace(model, work.batch))
    return model


def serve(folder: Path, streams: MultiStreamModule, batch: torch.Tensor) -> None:
    """Request after request, by turns, for ever: a step is from submission to result."""
    count = streams.num_streams
    turns = [Turn(folder, slot, count) for slot in range(count)]
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(count):
        free.put(slot)
    while True:
        slot = free.get()
        turns[slot].__enter__()

        def answered(future: Future, slot: int = slot) -> None:
            if future.exception() is not None:
                os._exit(1)
            turns[slot].__exit__(None, None, None)
            free.put(slot)

        streams.submit(batch).add_done_callback(answered)


def serve_batches(folder: Path, streams: MultiStreamModule, item: torch.Tensor) -> None:
    """Batch after batch, by turns, for ever: a step is from the batch to its joined output."""
    batch = torch.cat([item] * streams.num_streams)
    work_on(folder, lambda: streams(batch))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the benchmark's turns")
    parser.add_argument("work", choices=MODELS)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True, help="threads of each stream")
    parser.add_argument("--form", choices=FORMS, default="compiled")
    parser.add_argument("--packages", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--batches", action="store_true", help="instead of requests")
    parser.add_argument("--prepare", action="store_true", help="compile, and measure nothing")
    options = parser.parse_args()
    torch.manual_seed(0)
    warnings.simplefilter("ignore", DeprecationWarning)
    work = MODELS[options.work](1, DTYPES[options.dtype])
    name = f"{options.work}-{options.dtype}-{options.threads}-{torch.__version__}.pt2"
    with torch.inference_mode():
        model = in_form(
            work,
            options.form,
            streams=options.streams,
            threads=options.threads,
            package=options.packages / name,
        )
        if options.prepare:
            return
        pool = CPUPool(smt=False)
        pool = CPUPool(pool.core_ids[: options.streams * options.threads])
        with MultiStreamModule(model, options.streams, pool) as streams:
            feed = serve_batches if options.batches else serve
            feed(options.folder, streams, work.batch)


if __name__ == "__main__":
    main()
