# SPDX-License-Identifier: Apache-2.0
"""Serve one model by streams in one process, with requests of one item.

    python -m benchmarks.streams.serving DIRECTORY resnet50 --dtype bfloat16 --streams 16 --threads 4

With --batches it splits and joins batches of one item for each stream instead.

Forms of the model: compiled (xruntime.compile_for_streams), package (AOTInductor, called without the
GIL), script (TorchScript), eager. As many requests are in flight as there are streams, in the turns of
DIRECTORY. With --prepare it only compiles, to fill the caches before the measurement.
"""

from __future__ import annotations

import os
import queue
import tempfile
import warnings
from concurrent.futures import Future
from pathlib import Path

import torch

from benchmarks.harness.measurement import command_parser
from benchmarks.harness.step_gate import StepGate
from benchmarks.harness.workloads import DTYPES, MODELS, Work, work_on
from xruntime import CPUPool, MultiStreamModule, compile_for_streams

TOLERANCE = 0.05
"""Many layers with random weights amplify small differences."""

FORMS = ("compiled", "package", "script", "eager")


class FirstOutput(torch.nn.Module):
    """A model whose output is one tensor, as torch.jit.trace needs it.

    index
        Of the output, where there are several; of BERT, 1 is the vector of the sequence.
    """

    def __init__(self, model: torch.nn.Module, index: int = 0) -> None:
        super().__init__()
        self.model = model
        self.index = index

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output = self.model(batch)
        return output if isinstance(output, torch.Tensor) else output[self.index]


def in_form(work: Work, form: str, *, streams: int, threads: int, package: Path) -> object:
    """Return the model in the form that the streams call."""
    model = FirstOutput(work.model).eval()
    if form == "compiled":
        return compile_for_streams(model, work.batch, threads=threads, tolerance=TOLERANCE)
    if form == "package":
        from xruntime import compile_package, load_package

        if not package.exists():
            compile_package(model, work.batch, package, threads=threads)
        return load_package(package, runners=streams)
    if form == "script":
        return torch.jit.freeze(torch.jit.trace(model, work.batch))
    return model


def streams_pool(count: int, threads: int) -> CPUPool:
    """Return the cores of that many streams."""
    return CPUPool(CPUPool(smt=False).core_ids[: count * threads])


def serve(directory: Path, streams: MultiStreamModule, batch: torch.Tensor) -> None:
    """Serve requests in turns, forever; a step is from submission to result."""
    count = streams.num_streams
    gates = [StepGate(directory, slot, count) for slot in range(count)]
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(count):
        free.put(slot)
    while True:
        slot = free.get()
        gates[slot].__enter__()

        def answered(future: Future, slot: int = slot) -> None:
            if future.exception() is not None:
                os._exit(1)
            gates[slot].__exit__(None, None, None)
            free.put(slot)

        streams.submit(batch).add_done_callback(answered)


def serve_batches(directory: Path, streams: MultiStreamModule, item: torch.Tensor) -> None:
    """Serve batches in turns, forever; a step is from the batch to its joined output."""
    batch = torch.cat([item] * streams.num_streams)
    work_on(directory, lambda: streams(batch))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("directory", type=Path, help="directory of the benchmark's turns")
    parser.add_argument("work", choices=MODELS)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True, help="threads of each stream")
    parser.add_argument("--form", choices=FORMS, default="compiled")
    parser.add_argument("--packages", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--batches", action="store_true", help="instead of requests")
    parser.add_argument("--prepare", action="store_true", help="only compile")
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
        pool = streams_pool(options.streams, options.threads)
        with MultiStreamModule(model, options.streams, pool) as streams:
            feed = serve_batches if options.batches else serve
            feed(options.directory, streams, work.batch)


if __name__ == "__main__":
    main()
