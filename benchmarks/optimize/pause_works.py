# SPDX-License-Identifier: Apache-2.0
"""The programs of `python -m benchmarks.optimize.pause`: each runs a model on batch after batch, and writes when each was done.

    python -m benchmarks.optimize.pause_works minilm done.txt --began MONOTONIC_S --seconds 30

A line of the file has the seconds from `--began`, a time of time.monotonic(), to the end of a batch. So the start
of the interpreter and all imports count.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

IMAGES = 8
SENTENCES = 32
MAX_SENTENCES = 1024


def resnet50(*, compiled: bool) -> Callable[[], object]:
    """ResNet-50 of the example, on batches of 8 photographs."""
    import resnet50 as example

    torch.manual_seed(0)
    plain = example.resnet50().eval().to(memory_format=torch.channels_last)
    model = torch.compile(plain) if compiled else plain
    images = example.photograph(IMAGES)

    @torch.inference_mode()
    def step() -> object:
        return model(images)

    return step


def minilm(*, compiled: bool) -> Callable[[], object]:
    """MiniLM as the example runs it, on 32 batches of 32 sentences of similar length, over and over."""
    import infer as example

    sentences = list(itertools.islice(example.read_sentences(), MAX_SENTENCES))
    texts = [[one.text for one in batch] for batch in example.into_batches(sentences, SENTENCES)]
    encoder = example.Encoder()
    if compiled:
        encoder.model = torch.compile(encoder.model)
    batches = itertools.cycle(texts)
    return lambda: encoder.encode(next(batches))


WORKS: dict[str, Callable[..., Callable[[], object]]] = {"resnet50": resnet50, "minilm": minilm}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("file", type=Path, help="receives a line for each batch")
    parser.add_argument("--began", type=float, required=True, help="when the start was asked for")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    parser.add_argument("--batches", type=int, help="end after so many")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    asked = parser.parse_args()
    step = WORKS[asked.work](compiled=asked.compile)
    with asked.file.open("w") as stream:
        for count in itertools.count(1):
            step()
            done_s = time.monotonic() - asked.began
            print(f"{done_s:.4f}", file=stream, flush=True)
            if done_s >= asked.seconds or count == asked.batches:
                break


if __name__ == "__main__":
    main()
