# SPDX-License-Identifier: Apache-2.0
"""The cases of roi_align, nms and FrozenBatchNorm2d; torchvision is a peer where it is installed.

Regions are of 50 to 300 pixels on the map of an eighth of the image, as in a feature pyramid. Goal for
roi_align in fp32: 1.7 times as fast as torchvision on two CPUs, 6 times on eight; torchvision's runs
on one thread and computes channels first. IPEX's roi_align is a peer without a goal.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.harness.comparison import Comparison, RatioGoal, repeated
from benchmarks.harness.measurement import Case
from benchmarks.harness.other_python import ipex_cases
from benchmarks.operators.inputs import (
    CHANNELS,
    FORMATS,
    SHORT_DTYPES,
    draw_regions,
    pooling,
    poolings,
)
from xruntime import nn


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("vision")
    group.add_argument("--boxes", type=int, default=5000, help="of nms; default 5000")


def torchvision_operators() -> Any:
    """Return torchvision.ops, or None."""
    if importlib.util.find_spec("torchvision") is None:
        return None
    import torchvision

    return torchvision.ops


def roi_align_comparisons(options: argparse.Namespace, peers: Any) -> Iterator[Comparison]:
    """Yield comparisons for samples by the size of a region and two samples in each axis of a bin."""
    images, boxes = draw_regions()
    goal = RatioGoal(6.0 if torch.get_num_threads() >= 8 else 1.7, ("torchvision, fp32",))
    for ratio in (2, 0):
        calls = poolings("xruntime", nn.roi_align, images, boxes, ratio)
        if peers is not None:
            calls["torchvision, fp32"] = pooling(peers.roi_align, images, boxes, ratio)
        for kind in ("forward", "training"):
            cases = [repeated(name, of_case[kind]) for name, of_case in calls.items()]
            names = [f"IPEX, {label}, {layout}" for layout in FORMATS for label in SHORT_DTYPES]
            cases += ipex_cases(options, names, "operators.ipex", "vision", kind, str(ratio))
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
        weight, bias, variance, mean = (tensor.reshape(1, -1, 1, 1) for tensor in names)
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
