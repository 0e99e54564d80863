# SPDX-License-Identifier: Apache-2.0
"""The peer of ops_cases_vision.py in a Python with Intel's extension for PyTorch.

    PYTHON ops_ipex_vision.py forward|training SAMPLING_RATIO HEIGHT WIDTH CHANNELS REGIONS MIN_MEASURED_S

HEIGHT and WIDTH are those of the images. For each line "IPEX, DTYPE, FORMAT" that it reads it works for a
moment and writes the seconds of one call. It imports nothing that needs this project, which that Python does
not have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from intel_extension_for_pytorch.cpu.nn._roi_align_helper import roi_align

from benchmarks.harness.other_python_side import measure_by_name

STRIDE = 8
SIZE = 7
FORMATS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    kind = sys.argv[1]
    ratio, height, width, channels, regions = map(int, sys.argv[2:7])
    torch.manual_seed(0)
    images = torch.randn(2, channels, height // STRIDE, width // STRIDE)
    sides = 50 + torch.rand(regions, 2) * 250
    corners = torch.rand(regions, 2) * (torch.tensor([width, height]) - sides).clamp(min=0)
    numbers = torch.randint(2, (regions, 1)).float()
    boxes = torch.cat([numbers, corners, corners + sides], 1)
    calls = {}
    for name, memory_format in FORMATS.items():
        for label, dtype in DTYPES.items():
            given = images.to(dtype).contiguous(memory_format=memory_format).requires_grad_()
            calls[f"IPEX, {label}, {name}"] = call_of(kind, given, boxes, ratio)
    measure_by_name(calls, float(sys.argv[7]))


def call_of(
    kind: str, images: torch.Tensor, boxes: torch.Tensor, ratio: int
) -> Callable[[], object]:
    """Forward, or forward with backward."""

    def forward() -> torch.Tensor:
        return roi_align(images, boxes, SIZE, 1 / STRIDE, ratio, True)

    gradient = torch.randn_like(forward())

    def without_grad() -> torch.Tensor:
        with torch.no_grad():
            return forward()

    if kind == "forward":
        return without_grad
    return lambda: torch.autograd.grad(forward(), images, gradient)


if __name__ == "__main__":
    main()
