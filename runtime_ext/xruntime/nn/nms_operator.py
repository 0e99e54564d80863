# SPDX-License-Identifier: Apache-2.0
"""Non-maximum suppression: removes boxes that overlap with better ones."""

from __future__ import annotations

import ctypes

import torch

from xruntime import native
from xruntime.errors import OperatorError
from xruntime.nn.native_operators import define

_ADDRESS, _INT64 = ctypes.c_void_p, ctypes.c_int64
native.declare(
    "xk_nms",
    arguments=(
        *(_ADDRESS, ctypes.c_int32, _INT64, _ADDRESS),
        *(_ADDRESS, _INT64, ctypes.c_double, _ADDRESS),
    ),
)


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Return the indices of the boxes that no better box suppresses, by decreasing score, in int64.

    `boxes` (K, 4) are x1, y1, x2, y2; `scores` (K,). Both have floating-point dtypes. A box that is kept
    suppresses those with a lower score whose intersection over union with it is greater than
    `iou_threshold`; of equal scores, the first box is the better one, and NaN is the best score. As
    torchvision.ops.nms, computed in fp64 for boxes in fp64 and otherwise in fp32. Raises OperatorError.
    """
    return torch.ops.xruntime.nms(boxes, scores, None, iou_threshold)  # type: ignore[no-any-return]


def batched_nms(
    boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor, iou_threshold: float
) -> torch.Tensor:
    """`nms` for each group by itself: boxes suppress only those with the same integer in `idxs` (K,).

    Returns the indices of all groups by decreasing score. Unlike torchvision.ops.batched_nms, which
    shifts few boxes by an offset for each group, the coordinates are not changed. Raises OperatorError.
    """
    return torch.ops.xruntime.nms(boxes, scores, idxs, iou_threshold)  # type: ignore[no-any-return]


def _check_arguments(boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor | None) -> None:
    if boxes.dim() != 2 or boxes.shape[1] != 4 or not boxes.is_floating_point():
        raise OperatorError(
            f"nms: boxes have shape {tuple(boxes.shape)} and dtype {boxes.dtype}; allowed are (K, 4)"
            " and a floating-point dtype"
        )
    if scores.shape != boxes.shape[:1] or not scores.is_floating_point():
        raise OperatorError(
            f"nms: scores have shape {tuple(scores.shape)} and dtype {scores.dtype}; allowed are"
            f" ({boxes.shape[0]},), one for each box, and a floating-point dtype"
        )
    if idxs is None:
        return
    if idxs.shape != scores.shape or idxs.is_floating_point() or idxs.is_complex():
        raise OperatorError(
            f"batched_nms: idxs have shape {tuple(idxs.shape)} and dtype {idxs.dtype}; allowed are"
            f" ({boxes.shape[0]},), one for each box, and an integer dtype"
        )


def _run(
    boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor | None, iou_threshold: float
) -> torch.Tensor:
    _check_arguments(boxes, scores, idxs)
    boxes = boxes.to(torch.float64 if boxes.dtype == torch.float64 else torch.float32).contiguous()
    count = boxes.shape[0]
    by_score = scores.argsort(descending=True, stable=True)
    if idxs is None:
        order, starts = by_score, torch.tensor([0, count])
    else:
        groups, by_group = idxs[by_score].sort(stable=True)
        order = by_score[by_group]
        _, sizes = torch.unique_consecutive(groups, return_counts=True)
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    kept = torch.empty(count, dtype=torch.bool)
    native.check(
        native.library().xk_nms(
            *(boxes.data_ptr(), boxes.dtype == torch.float64, count, order.data_ptr()),
            *(starts.data_ptr(), starts.numel() - 1, iou_threshold, kept.data_ptr()),
        ),
        lambda problem: OperatorError(f"nms: {count} boxes are refused: {problem.name}"),
    )
    return by_score[kept[by_score]]


def _fake(
    boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor | None, iou_threshold: float
) -> torch.Tensor:
    _check_arguments(boxes, scores, idxs)
    kept = torch.library.get_ctx().new_dynamic_size()
    return boxes.new_empty(kept, dtype=torch.int64)


define("nms(Tensor boxes, Tensor scores, Tensor? idxs, float iou_threshold) -> Tensor", _run, _fake)
