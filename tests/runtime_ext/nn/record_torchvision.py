# SPDX-License-Identifier: Apache-2.0
"""Write what torchvision computes to a file, for test_recorded_torchvision.py.

    python tests/runtime_ext/nn/record_torchvision.py tests/runtime_ext/nn/recorded_torchvision.npz

Needs torch and torchvision. The array `cases` holds a JSON list of calls; the arrays of call NAME are
called NAME/ARRAY.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import numpy
import torch
import torchvision
from torchvision import ops

Arrays = dict[str, torch.Tensor]
Case = tuple[dict[str, Any], Arrays]

IMAGES = (2, 3, 11, 14)
SCALE = 0.25


def regions() -> torch.Tensor:
    """Inside, across the borders, outside, without area, inside out, and larger than the image."""
    height, width = IMAGES[2] / SCALE, IMAGES[3] / SCALE
    corners = (torch.rand(7, 2, 2) * 1.5 - 0.25).sort(1).values.view(7, 4)
    special = torch.tensor(
        [
            [0.0, 0.0, 1.0, 1.0],
            [-0.2, -0.3, 1.4, 1.2],
            [0.3, 0.4, 0.3, 0.4],
            [0.6, 0.7, 0.2, 0.1],
            [1.5, 1.5, 2.0, 2.0],
            [0.5, 0.1, 0.52, 0.9],
        ]
    )
    boxes = torch.cat([corners, special]) * torch.tensor([width, height, width, height])
    numbers = torch.arange(len(boxes)) % IMAGES[0]
    return torch.cat([numbers[:, None].float(), boxes], 1)


def roi_align_cases() -> list[Case]:
    images, boxes = torch.randn(IMAGES), regions()
    found: list[Case] = [
        ({"name": "regions", "call": "inputs"}, {"images": images, "boxes": boxes})
    ]
    sizes = ((3, 4), (1, 1), (5, 2))
    for aligned, sampling_ratio, size in itertools.product((False, True), (0, 2), sizes):
        given = images.clone().requires_grad_()
        pooled = ops.roi_align(given, boxes, size, SCALE, sampling_ratio, aligned)
        gradient = torch.randn(pooled.shape)
        pooled.backward(gradient)
        options = {
            "name": f"roi_align-{aligned}-{sampling_ratio}-{size[0]}x{size[1]}",
            "call": "roi_align",
            "output_size": size,
            "spatial_scale": SCALE,
            "sampling_ratio": sampling_ratio,
            "aligned": aligned,
        }
        assert given.grad is not None
        arrays = {"pooled": pooled.detach(), "gradient": gradient, "to_images": given.grad}
        found.append((options, arrays))
    empty = ops.roi_align(images, torch.empty(0, 5), (3, 4), SCALE)
    listed = ops.roi_align(images, [boxes[:4, 1:], boxes[4:9, 1:]], 2, SCALE, 2, True)
    found.append(({"name": "empty", "call": "roi_align_empty"}, {"pooled": empty}))
    found.append(({"name": "listed", "call": "roi_align_listed"}, {"pooled": listed}))
    return found


def nms_boxes(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    boxes = torch.rand(count, 4, dtype=dtype) * 60
    boxes[:, 2:] = boxes[:, :2] + torch.rand(count, 2, dtype=dtype) * 40
    return boxes


def nms_cases() -> list[Case]:
    scores = torch.rand(80)
    ties = (torch.rand(80) * 5).round() / 5
    with_nan = nms_boxes(80)
    with_nan[5], with_nan[17, 2], with_nan[40, 0] = float("nan"), float("nan"), float("inf")
    nan_scores = scores.clone()
    nan_scores[[3, 30]] = float("nan")
    flat = nms_boxes(80)
    flat[::7, 2:] = flat[::7, :2]
    grid = (nms_boxes(80) / 20).round() * 20
    given = {
        "plain": (nms_boxes(80), scores),
        "fp64": (nms_boxes(80, torch.float64), scores.double()),
        "ties": (nms_boxes(80), ties),
        "equal-boxes": (grid, ties),
        "nan-boxes": (with_nan, scores),
        "nan-scores": (nms_boxes(80), nan_scores),
        "without-area": (flat, scores),
        "one": (nms_boxes(1), torch.rand(1)),
        "none": (nms_boxes(0), torch.rand(0)),
    }
    found: list[Case] = []
    for (name, (boxes, of_boxes)), threshold in itertools.product(given.items(), (0.3, 0.5)):
        kept = ops.nms(boxes, of_boxes, threshold)
        found.append(
            (
                {"name": f"nms-{name}-{threshold}", "call": "nms", "threshold": threshold},
                {"boxes": boxes, "scores": of_boxes, "kept": kept},
            )
        )
    boxes, groups = nms_boxes(80), torch.randint(4, (80,))
    kept = ops.batched_nms(boxes, scores, groups, 0.4)
    found.append(
        (
            {"name": "batched_nms", "call": "batched_nms", "threshold": 0.4},
            {"boxes": boxes, "scores": scores, "groups": groups, "kept": kept},
        )
    )
    return found


def frozen_norm_cases() -> list[Case]:
    module = ops.FrozenBatchNorm2d(5, eps=1e-3)
    state = {
        "weight": torch.randn(5),
        "bias": torch.randn(5),
        "running_mean": torch.randn(5),
        "running_var": torch.rand(5),
    }
    module.load_state_dict({**state, "num_batches_tracked": torch.tensor(3)})
    images = torch.randn(2, 5, 4, 3)
    options = {
        "name": "frozen_norm",
        "call": "frozen_norm",
        "eps": 1e-3,
        "state": list(module.state_dict()),
        "repr": repr(module),
    }
    return [(options, {"images": images, "output": module(images), **state})]


def main() -> None:
    torch.manual_seed(1)
    cases = [*roi_align_cases(), *nms_cases(), *frozen_norm_cases()]
    arrays = {
        f"{options['name']}/{name}": array.numpy()
        for options, of_case in cases
        for name, array in of_case.items()
    }
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    numpy.savez_compressed(
        sys.argv[1],
        versions=numpy.array(json.dumps(versions)),
        cases=numpy.array(json.dumps([options for options, _ in cases])),
        **arrays,
    )


if __name__ == "__main__":
    main()
