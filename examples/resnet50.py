# SPDX-License-Identifier: Apache-2.0
"""Measure ResNet-50 on a photograph: images per second and latencies.

    xlaunch --instances 2 --ncores 1 examples/resnet50.py --batch 1 --seconds 10
    python examples/resnet50.py --batch 16 --dtype bfloat16 --compile

The network is defined here, layer by layer as in "Deep Residual Learning for Image Recognition"
(He et al., 2015), with the stride in the 3 x 3 convolution as torchvision has it: 25,557,032
parameters. Its weights are random, so it measures speed and recognises nothing. The photograph is
scikit-learn's china.jpg, cut to 224 x 224.

Needs `pip install pillow scikit-learn`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import torch
from sklearn.datasets import load_sample_image
from torch import nn

PARAMETERS = 25_557_032
IMAGE_SIZE = 224
CHANNEL_MEANS = (0.485, 0.456, 0.406)
CHANNEL_DEVIATIONS = (0.229, 0.224, 0.225)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size (but for the stride), and its batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """Narrow, look around, widen four times, and add what came in."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.narrow = convolution(inputs, width, 1)
        self.look = convolution(width, width, 3, stride)
        self.widen = convolution(width, outputs, 1)
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same_shape else convolution(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.narrow(x))
        y = self.relu(self.look(y))
        return self.relu(self.widen(y) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Sequential:
    """ResNet-50: stages of 3, 4, 6 and 3 bottlenecks on images of (n, 3, 224, 224)."""
    layers: list[nn.Module] = [
        convolution(3, 64, 7, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, stride if block == 0 else 1))
            channels = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


def photograph(batch: int) -> torch.Tensor:
    """The photograph, its middle square scaled and normalised, `batch` times: (batch, 3, 224, 224).

    Channels-last, the layout that CPU convolutions are fastest in.
    """
    pixels = torch.tensor(load_sample_image("china.jpg")).permute(2, 0, 1).float() / 255
    height, width = pixels.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = pixels[:, top : top + side, left : left + side].unsqueeze(0)
    image = nn.functional.interpolate(
        square, size=(IMAGE_SIZE, IMAGE_SIZE), mode="bilinear", antialias=True
    )
    mean = torch.tensor(CHANNEL_MEANS).view(1, 3, 1, 1)
    deviation = torch.tensor(CHANNEL_DEVIATIONS).view(1, 3, 1, 1)
    images = ((image - mean) / deviation).expand(batch, -1, -1, -1)
    return images.contiguous(memory_format=torch.channels_last)


def measure(model: nn.Module, images: torch.Tensor, seconds: float) -> list[float]:
    """Run for `seconds`, at least once; return the seconds that each batch took."""
    latencies_s = []
    end = time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        model(images)
        now = time.perf_counter()
        latencies_s.append(now - start)
        if now >= end:
            return latencies_s


def wait_for_others() -> None:
    """Wait until every instance is warm, where a launcher holds them for it; then all measure at once."""
    if barrier := os.environ.get("XLAUNCH_BARRIER"):
        with open(barrier) as file:
            file.read()


def percentile(values: list[float], percent: int) -> float:
    """The value that `percent` per cent lie at or below, between neighbours by proportion."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=1, help="images at a time (default 1)")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="of all tensors")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long (default 10)")
    arguments = parser.parse_args()
    if arguments.batch < 1:
        parser.error("--batch is at least 1")
    return arguments


@torch.inference_mode()
def main() -> int:
    arguments = parse_arguments()
    torch.manual_seed(0)
    model = resnet50().eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters != PARAMETERS:
        print(f"not ResNet-50: {parameters:,} parameters, not {PARAMETERS:,}", file=sys.stderr)
        return 1
    dtype = DTYPES[arguments.dtype]
    model = model.to(dtype=dtype, memory_format=torch.channels_last)
    images = photograph(arguments.batch).to(dtype)
    run = torch.compile(model) if arguments.compile else model

    start = time.perf_counter()
    logits = run(images)
    first_s = time.perf_counter() - start
    if logits.shape != (arguments.batch, 1000) or not bool(logits.isfinite().all()):
        print(f"wrong output: shape {tuple(logits.shape)} or not finite", file=sys.stderr)
        return 1
    measure(run, images, min(1.0, arguments.seconds / 5))  # warm-up
    wait_for_others()
    latencies_s = measure(run, images, arguments.seconds)

    rate = arguments.batch * len(latencies_s) / sum(latencies_s)
    p50, p90, p99 = (1000 * percentile(latencies_s, percent) for percent in (50, 90, 99))
    print(
        f"instance {os.environ.get('XLAUNCH_INSTANCE_INDEX', '0')}: ResNet-50, {parameters:,}"
        f" parameters, {arguments.dtype}, batch {arguments.batch},"
        f" {'compiled' if arguments.compile else 'eager'}, {torch.get_num_threads()} thread(s)"
    )
    print(f"{rate:.1f} images/s over {len(latencies_s)} batches; the first took {first_s:.2f} s")
    print(f"latency of a batch: p50 {p50:.1f} ms, p90 {p90:.1f} ms, p99 {p99:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
