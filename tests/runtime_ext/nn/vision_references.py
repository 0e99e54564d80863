# SPDX-License-Identifier: Apache-2.0
"""What interaction, roi_align and nms compute, written plainly for fp64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def interaction_reference(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(list(tensors), 1)
    products = torch.bmm(stacked, stacked.transpose(1, 2))
    row, column = torch.tril_indices(len(tensors), len(tensors), -1)
    return torch.cat([tensors[0], products[:, row, column]], 1)


def _interpolated(
    places: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Whether each place counts, the pixels below and above it, and its distance to the first."""
    counts = (places >= -1) & (places <= size)
    places = places.clamp(0, size - 1)
    low = places.floor().long()
    return counts, low, (low + 1).clamp(max=size - 1), places - low


def roi_align_reference(
    images: torch.Tensor,
    boxes: torch.Tensor,
    size: tuple[int, int],
    scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> torch.Tensor:
    """Sample by sample: each has four pixels, and a bin is the mean of its samples."""
    channels, height, width = images.shape[1:]
    regions = [images.new_zeros(0, channels, *size)]
    for number, *corners in boxes.double().tolist():
        x1, y1, x2, y2 = (corner * scale - (0.5 if aligned else 0) for corner in corners)
        region = [y2 - y1, x2 - x1]
        if not aligned:
            region = [max(side, 1.0) for side in region]
        bins = [side / count for side, count in zip(region, size, strict=True)]
        samples = [sampling_ratio if sampling_ratio > 0 else math.ceil(side) for side in bins]
        if min(samples) <= 0:
            regions.append(images.new_zeros(1, channels, *size))
            continue
        places = [
            start + (torch.arange(count * per_bin, dtype=torch.float64) + 0.5) * side / per_bin
            for start, count, per_bin, side in zip((y1, x1), size, samples, bins, strict=True)
        ]
        row_counts, top, bottom, down = _interpolated(places[0], height)
        column_counts, left, right, along = _interpolated(places[1], width)
        down = down[:, None]
        image = images[int(number)]
        values = (
            (1 - down) * (1 - along) * image[:, top][:, :, left]
            + (1 - down) * along * image[:, top][:, :, right]
            + down * (1 - along) * image[:, bottom][:, :, left]
            + down * along * image[:, bottom][:, :, right]
        )
        values = torch.where(row_counts[:, None] & column_counts, values, 0.0)
        grid = values.view(1, channels, size[0], samples[0], size[1], samples[1])
        regions.append(grid.mean((3, 5)))
    return torch.cat(regions)


def nms_reference(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Pair by pair, in the dtype of the boxes, with comparisons that are false for NaN, as in max and min."""
    rows, kept = boxes.tolist(), list[int]()
    suppressed = [False] * len(rows)
    order = scores.argsort(descending=True, stable=True).tolist()

    def number(value: float) -> float:
        return float(torch.tensor(value, dtype=boxes.dtype))

    areas = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).tolist()
    for at, one in enumerate(order):
        if suppressed[one]:
            continue
        kept.append(one)
        for other in order[at + 1 :]:
            a, b = rows[one], rows[other]
            width = max(0.0, number(min(a[2], b[2]) - max(a[0], b[0])))
            height = max(0.0, number(min(a[3], b[3]) - max(a[1], b[1])))
            common = number(width * height)
            union = number(number(areas[one] + areas[other]) - common)
            overlap = number(common / union) if union else math.nan
            suppressed[other] |= overlap > threshold
    return torch.tensor(kept, dtype=torch.int64)
