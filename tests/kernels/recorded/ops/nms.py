# SPDX-License-Identifier: Apache-2.0
"""Suppression of overlapping boxes, in groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from tests.kernels.recorded.cases import Array, Case, Expectation

GROUPS = ([0, 0], [0, 1], [0, 3], [0, 17], [0, 40, 40, 41, 130])
LARGE_GROUPS = [0, 8501, 9000]
"""The first group is large enough for a team."""
THRESHOLDS = (0.3, 0.0, 0.7, 1.0)


def cases() -> Iterator[Case]:
    random = np.random.default_rng(1)
    options = [*itertools.product(("<f4", "<f8"), GROUPS, THRESHOLDS), ("<f4", LARGE_GROUPS, 0.3)]
    for type_of_boxes, starts, threshold in options:
        count = starts[-1]
        corners = random.uniform(0, 12, (count, 2))
        boxes = np.hstack([corners, corners + random.uniform(0, 40, (count, 2))])
        boxes = boxes.astype(type_of_boxes)
        boxes[7::500, 2] = np.nan
        boxes[9::500, 2] = boxes[9::500, 0]  # without area
        order = random.permutation(count).astype("<i8")
        arrays = {
            "boxes": boxes,
            "order": order,
            "starts": np.array(starts, dtype="<i8"),
            "kept": np.full(count, 7, dtype="u1"),
        }
        kept = np.zeros(count, dtype="u1")
        for begin, end in itertools.pairwise(starts):
            kept[_kept(boxes.astype("<f8"), order[begin:end], threshold)] = 1
        name = f"nms/{type_of_boxes[1:]}/{count}/{threshold}"
        yield Case(name, {"threshold": threshold}, arrays, {"kept": Expectation(kept)})


def _kept(boxes: Array, left: Array, threshold: float) -> list[int]:
    """The boxes of a group that are kept; `left` names them, the best first."""
    kept = []
    while left.size:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        one, others = boxes[best], boxes[left]
        low, high = np.maximum(one[:2], others[:, :2]), np.minimum(one[2:], others[:, 2:])
        common = np.prod(np.maximum(high - low, 0), axis=1)
        areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
        with np.errstate(invalid="ignore"):
            overlap = common / (np.prod(one[2:] - one[:2]) + areas - common)
        left = left[~(overlap > threshold)]
    return kept
