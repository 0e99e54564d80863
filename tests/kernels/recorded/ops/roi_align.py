# SPDX-License-Identifier: Apache-2.0
"""Pooling of image regions and its derivative, in both layouts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from tests.kernels.recorded.cases import ROUNDING, Array, Case, Expectation, stored, values_of

# Images with whole vectors of channels or columns and without, and with less than one; the first is
# large enough for a team.
SHAPES = ((2, 70, 9, 11), (3, 3, 21, 35), (1, 16, 5, 16), (2, 5, 4, 3))
SCALE = 0.5


def cases() -> Iterator[Case]:
    random = np.random.default_rng(3)
    yield from _cases_of_no_region(random)
    options = itertools.product(ROUNDING, (False, True), (False, True), enumerate(SHAPES))
    for value_type, last, aligned, (number, shape) in options:
        ratio = (number + aligned) % 3
        size = (3, 5) if aligned else (2, 19)
        boxes = _boxes(shape, random)
        numbers = {
            "spatial_scale": SCALE,
            "sampling_ratio": ratio,
            "aligned": aligned,
            "channels_last": last,
        }
        shared = {
            "shape": np.array(shape, dtype="<i8"),
            "size": np.array(size, dtype="<i8"),
            "boxes": boxes,
        }
        images = stored(random.standard_normal(shape), value_type)
        gradients = stored(random.standard_normal((len(boxes), shape[1], *size)), value_type)
        sums = random.standard_normal(shape).astype("<f4")
        exact, of_gradients, wanted_sums = (values_of(each) for each in (images, gradients, sums))
        wanted = np.zeros(gradients.shape)
        for at, (image, x1, y1, x2, y2) in enumerate(boxes.astype("<f8")):
            rows = _weights(y1, y2, shape[2], size[0], ratio, aligned=aligned)
            columns = _weights(x1, x2, shape[3], size[1], ratio, aligned=aligned)
            wanted[at] = rows @ exact[int(image)] @ columns.T
            wanted_sums[int(image)] += rows.T @ of_gradients[at] @ columns
        layout = "last" if last else "first"
        name = f"{value_type}/{layout}/{'aligned' if aligned else 'plain'}/{shape[1]}"
        output = stored(np.full(wanted.shape, 7), value_type)
        yield Case(
            f"roi_align/{name}",
            numbers,
            shared | {"images": _in_layout(images, last), "output": output},
            {"output": _expected(_in_layout(wanted, last), ROUNDING[value_type])},
        )
        yield Case(
            f"roi_align_backward/{name}",
            numbers,
            shared | {"gradients": _in_layout(gradients, last), "sums": _in_layout(sums, last)},
            {"sums": _expected(_in_layout(wanted_sums, last), ROUNDING["fp32"])},
        )


def _cases_of_no_region(random: np.random.Generator) -> Iterator[Case]:
    """Boxes that are infinite, NaN or so large that their pixels cannot be counted: means are means of pixels."""
    infinity, large = math.inf, 3e38
    corners = [
        *([math.nan, 0, 1, 1], [0, -infinity, 9, 9], [0, 0, infinity, 9], [-1e9, 0, 1e9, 9]),
        *([-large, -large, large, large], [9e9, 9e9, 1e10, 1e10], [large, 0, 1, -infinity]),
    ]
    boxes = np.hstack([np.arange(len(corners))[:, None] % 2, corners]).astype("<f4")
    shapes = ((2, 3, 5, 37), (2, 1, 1, 1), (2, 18, 4, 4))
    for shape, last, aligned in itertools.product(shapes, (False, True), (False, True)):
        for ratio in (0, 2):
            numbers = {
                "spatial_scale": 1,
                "sampling_ratio": ratio,
                "aligned": aligned,
                "channels_last": last,
            }
            shared = {
                "shape": np.array(shape, dtype="<i8"),
                "size": np.array((3, 2), dtype="<i8"),
                "boxes": boxes,
            }
            images = random.standard_normal(shape).astype("<f4")
            regions = random.standard_normal((len(boxes), shape[1], 3, 2)).astype("<f4")
            name = f"none/{'last' if last else 'first'}/{aligned}/{ratio}/{shape[1]}"
            largest = 1.001 * float(np.max(np.abs(images)))
            yield Case(
                f"roi_align/{name}",
                numbers,
                shared | {"images": images, "output": np.full_like(regions, 7)},
                {"output": Expectation(np.zeros(regions.shape), atol=largest)},
            )
            total = 1.001 * float(np.sum(np.abs(regions)))
            yield Case(
                f"roi_align_backward/{name}",
                numbers,
                shared | {"gradients": regions, "sums": np.zeros_like(images)},
                {"sums": Expectation(np.zeros(shape), atol=total)},
            )


def _expected(wanted: Array, rtol: float) -> Expectation:
    """Places in fp32, at a slope between two pixels, have an error of the largest value."""
    return Expectation(wanted, rtol, 2e-5 * float(np.max(np.abs(wanted))))


def _in_layout(values: Array, channels_last: bool) -> Array:
    return values.transpose(0, 2, 3, 1) if channels_last else values


def _boxes(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Inside, across every border, outside, larger than the image, empty and inside out."""
    corners = np.sort(random.uniform(-0.3, 1.3, (8, 2, 2)), axis=1).reshape(8, 4)
    special = [
        [-0.41, -0.63, 2.12, 1.71],
        [0.21, 0.32, 0.21, 0.32],
        [0.73, 0.84, 0.11, 0.22],
        [3.01, 3.02, 4.03, 4.04],
        [0.13, 0.12, 50.31, 0.91],
    ]
    sides = np.array([shape[3], shape[2]] * 2) / SCALE
    images = np.arange(13)[:, None] % shape[0]
    return np.hstack([images, np.vstack([corners, special]) * sides]).astype("<f4")


def _weights(
    begin: float, end: float, pixels: int, bins: int, ratio: int, *, aligned: bool
) -> Array:
    """The weight of each pixel (column) in the mean of each bin (row), along one axis."""
    begin, end = (place * SCALE - (0.5 if aligned else 0) for place in (begin, end))
    length = end - begin if aligned else max(end - begin, 1.0)
    side = length / bins
    samples = ratio or math.ceil(side)
    weights = np.zeros((bins, pixels))
    for row, sample in itertools.product(range(bins), range(samples)):
        place = begin + (row + (sample + 0.5) / samples) * side
        if not -1 <= place <= pixels:
            continue
        place = min(max(place, 0), pixels - 1)
        low = int(place)
        weights[row, low] += (1 - (place - low)) / samples
        weights[row, min(low + 1, pixels - 1)] += (place - low) / samples
    return weights
