# SPDX-License-Identifier: Apache-2.0
"""The cases of roi_align, nms and FrozenBatchNorm2d; torchvision is a peer where it is installed.

Regions are of 50 to 300 pixels on the map of an eighth of the image, as in a feature pyramid. Goal for
roi_align in fp32: 1.7 times as fast as torchvision on two CPUs, 6 times on eight; torchvision's runs
on one thread and computes channels first. IPEX's roi_align is a peer without a goal.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.harness.comparison import MIN_MEASURED_S, Comparison, RatioGoal, repeated
from benchmarks.harness.measurement import Case
from benchmarks.harness.other_python import cases_of
from xruntime import nn

HEIGHT, WIDTH, CHANNELS = 800, 1088, 256
REGIONS = 512
"""Of two images."""
STRIDE = 8
SIZE = 7
FORMATS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Pool = Callable[..., torch.Tensor]


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("vision")
    group.add_argument("--boxes", type=int, default=5000, help="of nms; default 5000")


def torchvision_operators() -> Any:
    """Return torchvision.ops, or None."""
    if importlib.util.find_spec("torchvision") is None:
        return None
    import torchvision

    return torchvision.ops


def draw_regions() -> torch.Tensor:
    sides = 50 + torch.rand(REGIONS, 2) * 250
    corners = torch.rand(REGIONS, 2) * (torch.tensor([WIDTH, HEIGHT]) - sides)
    numbers = torch.randint(2, (REGIONS, 1)).float()
    return torch.cat([numbers, corners, corners + sides], 1)


def pooling(
    pool: Pool, images: torch.Tensor, boxes: torch.Tensor, ratio: int
) -> dict[str, Callable[[], object]]:
    """Forward, and forward with backward."""
    given = images.clone(memory_format=torch.preserve_format).requires_grad_()

    def forward() -> torch.Tensor:
        return pool(given, boxes, SIZE, 1 / STRIDE, ratio, True)

    gradient = torch.randn_like(forward())

    def without_grad() -> torch.Tensor:
        with torch.no_grad():
            return forward()

    return {
        "forward": without_grad,
        "training": lambda: torch.autograd.grad(forward(), given, gradient),
    }


def ipex_cases(options: argparse.Namespace, kind: str, ratio: int) -> list[Case]:
    if options.ipex_python is None:
        return []
    module = "benchmarks.operators.ipex_vision"
    sizes = ratio, HEIGHT, WIDTH, CHANNELS, REGIONS
    words = [kind, *map(str, sizes), str(MIN_MEASURED_S)]
    names = [f"IPEX, {label}, {name}" for name in FORMATS for label in DTYPES]
    return cases_of(names, [options.ipex_python, "-m", module, *words])


def roi_align_comparisons(options: argparse.Namespace, peers: Any) -> Iterator[Comparison]:
    """Yield comparisons for samples by the size of a region and two samples in each axis of a bin."""
    torch.manual_seed(0)
    images = torch.randn(2, CHANNELS, HEIGHT // STRIDE, WIDTH // STRIDE)
    boxes = draw_regions()
    goal = RatioGoal(6.0 if torch.get_num_threads() >= 8 else 1.7, ("torchvision, fp32",))
    for ratio in (2, 0):
        calls: dict[str, dict[str, Callable[[], object]]] = {}
        for name, memory_format in FORMATS.items():
            for label, dtype in DTYPES.items():
                given = images.to(dtype).contiguous(memory_format=memory_format)
                calls[f"xruntime, {label}, {name}"] = pooling(nn.roi_align, given, boxes, ratio)
        if peers is not None:
            calls["torchvision, fp32"] = pooling(peers.roi_align, images, boxes, ratio)
        for kind in ("forward", "training"):
            cases = [repeated(name, of_case[kind]) for name, of_case in calls.items()]
            cases += ipex_cases(options, kind, ratio)
            title = f"roi_align, {kind}, {len(boxes)} regions, {CHANNELS} channels"
            for ours in (name for name in calls if name.startswith("xruntime, fp32")):
                yield Comparison(
                    f"{title}, sampling_ratio={ratio}, {ours}",
                    ours,
                    [
                        case
                        for case in cases
                        if case.name == ours or "xruntime, fp32" not in case.name
                    ],
                    goal if peers is not None else None,
                )


def nms_comparison(options: argparse.Namespace, peers: Any) -> Comparison:
    torch.manual_seed(0)
    boxes = torch.rand(options.boxes, 4) * 500
    boxes[:, 2:] = boxes[:, :2] + torch.rand(options.boxes, 2) * 100
    scores = torch.rand(options.boxes)
    cases: list[Case] = [repeated("xruntime", lambda: nn.nms(boxes, scores, 0.5))]
    if peers is not None:
        cases.append(repeated("torchvision", lambda: peers.nms(boxes, scores, 0.5)))
    return Comparison(f"nms of {options.boxes} boxes", "xruntime", cases)


def frozen_norm_comparison(options: argparse.Namespace, dtype: torch.dtype) -> Comparison:
    """Compare with the expression that torchvision's module computes."""
    torch.manual_seed(0)
    images = torch.randn(8, CHANNELS, 56, 56).to(dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    module = nn.FrozenBatchNorm2d(CHANNELS).to(dtype)

    def expression(x: torch.Tensor) -> torch.Tensor:
        names = (module.weight, module.bias, module.running_var, module.running_mean)
        weight, bias, variance, mean = (one.reshape(1, -1, 1, 1) for one in names)
        scale = weight * (variance + module.eps).rsqrt()
        return x * scale + (bias - mean * scale)

    functions = {"xruntime": module, "torchvision's expression, eager": expression}
    if not options.no_compile:
        torch.compiler.reset()
        functions["torchvision's expression, compiled"] = torch.compile(expression)
    cases = [
        repeated(name, lambda function=function: function(images))
        for name, function in functions.items()
    ]
    return Comparison(f"FrozenBatchNorm2d, {CHANNELS} channels, {dtype}", "xruntime", cases)


def comparisons(options: argparse.Namespace) -> Iterator[Comparison]:
    """Yield those of roi_align, of nms and of FrozenBatchNorm2d."""
    peers = torchvision_operators()
    yield from roi_align_comparisons(options, peers)
    yield nms_comparison(options, peers)
    for dtype in (torch.float32, torch.bfloat16):
        yield frozen_norm_comparison(options, dtype)
