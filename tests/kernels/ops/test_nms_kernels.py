# SPDX-License-Identifier: Apache-2.0
"""The native non-maximum suppression: its edges.

`recorded/ops/nms.py` compares its results, on every instruction set.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402
from tests.runtime_ext.nn.vision_references import nms_reference  # noqa: E402

Library = ctypes.CDLL
Load = Callable[[str], Library]


def make_boxes(count: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(count)
    boxes = torch.rand(count, 4, generator=drawn) * 10
    boxes[:, 2:] = boxes[:, :2] + torch.rand(count, 2, generator=drawn) * 40
    return boxes


def arguments(
    boxes: torch.Tensor, order: torch.Tensor, starts: torch.Tensor, kept: torch.Tensor
) -> list[Any]:
    return [
        *(boxes.data_ptr(), boxes.dtype == torch.float64, len(boxes), order.data_ptr()),
        *(starts.data_ptr(), len(starts) - 1, 0.5, kept.data_ptr()),
    ]


def run(
    library: Library,
    boxes: torch.Tensor,
    order: torch.Tensor,
    starts: list[int],
    threshold: float = 0.5,
) -> torch.Tensor:
    kept = torch.full((len(boxes),), 7, dtype=torch.uint8)
    ends = torch.tensor(starts)
    call = arguments(boxes, order, ends, kept)
    call[6] = threshold
    assert library.xk_nms(*call) == 0
    return kept


def wanted_of(boxes: torch.Tensor, order: torch.Tensor, threshold: float) -> torch.Tensor:
    """The flags of the reference, where scores fall along `order`."""
    scores = torch.empty(len(boxes))
    scores[order] = torch.arange(len(boxes), 0, -1).float()
    flags = torch.zeros(len(boxes), dtype=torch.uint8)
    flags[nms_reference(boxes, scores, threshold)] = 1
    return flags


@pytest.mark.parametrize("isa", ISAS)
def test_an_overlap_equal_to_the_threshold_does_not_suppress(load: Load, isa: str) -> None:
    """Also where the threshold lies between two fp32 numbers."""
    for height in (0.75, 0.375, 0.5):
        boxes, order = torch.tensor([[0, 0, 1, 1], [0, 0, 1, height]]), torch.arange(2)
        overlap = height
        assert run(load(isa), boxes, order, [0, 2], overlap).tolist() == [1, 1]
        assert run(load(isa), boxes, order, [0, 2], overlap + 1e-12).tolist() == [1, 1]
        assert run(load(isa), boxes, order, [0, 2], overlap - 1e-12).tolist() == [1, 0]


@pytest.mark.parametrize("isa", ISAS)
def test_nan_infinity_and_boxes_without_area(load: Load, isa: str) -> None:
    boxes = make_boxes(60)
    boxes[3] = math.nan
    boxes[11, 2] = math.nan
    boxes[20, 2] = math.inf
    boxes[30, 2:] = boxes[30, :2]
    boxes[31] = boxes[30]
    boxes[40] = boxes[40, [2, 3, 0, 1]]
    order = torch.randperm(60)
    kept = run(load(isa), boxes, order, [0, 60], 0.2)
    assert torch.equal(kept, wanted_of(boxes, order, 0.2))
