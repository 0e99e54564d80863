# SPDX-License-Identifier: Apache-2.0
"""Serve ResNet-50 by streams in one process: a stream a core, one copy of the weights.

    python examples/streams.py
    python examples/streams.py --streams 16 --seconds 10

The photograph and the network are those of resnet50.py; the weights are random. It compiles the
network for streams of one core (10 to 70 s, the first time), then answers single images as fast as it
can, first by plain calls in this thread, then by the streams, and compares what they compute.

Needs `pip install pillow scikit-learn`, and a C++ compiler.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator

import torch
from resnet50 import photograph, resnet50

from xruntime import CPUPool, MultiStreamModule, compile_for_streams


def images_per_second(answers: Iterator[object], seconds: float) -> float:
    """How many of `answers`, an iterator without an end, come in a second."""
    began, count = time.perf_counter(), 0
    while (taken_s := time.perf_counter() - began) < seconds or count == 0:
        next(answers)
        count += 1
    return count / taken_s


def parse_arguments() -> argparse.Namespace:
    pool = CPUPool(smt=False)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--streams", type=int, default=len(pool), help=f"default {len(pool)}, one a core"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each (default 5)")
    return parser.parse_args()


@torch.inference_mode()
def main() -> int:
    arguments = parse_arguments()
    torch.manual_seed(0)
    model = resnet50().eval().to(memory_format=torch.channels_last)
    image = photograph(1)
    one_by_one = images_per_second(map(model, itertools.repeat(image)), arguments.seconds)
    print(f"plain calls: {one_by_one:.1f} images/s", flush=True)
    compiled = compile_for_streams(model, image, threads=1)
    print(compiled.describe(), flush=True)
    with MultiStreamModule(compiled, arguments.streams) as streams:
        print(streams.describe(), flush=True)
        together = images_per_second(streams.map(itertools.repeat(image)), arguments.seconds)
        batch = torch.cat([image] * arguments.streams)
        difference = (streams(batch) - model(batch)).abs().max().item()
    print(f"streams: {together:.1f} images/s, {together / one_by_one:.2f} times as many")
    print(f"largest difference from the plain model: {difference:.2g}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
