# SPDX-License-Identifier: Apache-2.0
"""The native roi_align: regions that are none, and what it refuses.

`recorded/ops/roi_align.py` compares its results, on every instruction set and several threads.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402
from tests.runtime_ext.nn.vision_references import roi_align_reference  # noqa: E402

from xruntime import native  # noqa: E402
from xruntime.native import ArgumentProblem  # noqa: E402
from xruntime.nn.roi_align_operator import CRoiAlignTask  # noqa: E402

SCALE = 0.5

Library = ctypes.CDLL
Load = Callable[[str], Library]


def unaligned(values: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """A copy in this format that begins one element after an aligned address."""
    memory = torch.empty(values.numel() + 1, dtype=values.dtype)[1:]
    if not channels_last:
        return memory.view(values.shape).copy_(values)
    count, channels, height, width = values.shape
    return memory.view(count, height, width, channels).permute(0, 3, 1, 2).copy_(values)


def make_boxes(images: int, height: int, width: int) -> torch.Tensor:
    """Inside, across every border, outside, larger than the image, empty and inside out."""
    drawn = torch.Generator().manual_seed(height)
    corners = (torch.rand(8, 2, 2, generator=drawn) * 1.6 - 0.3).sort(1).values
    boxes = corners.view(8, 4) * torch.tensor([width, height, width, height]) / SCALE
    numbers = torch.arange(8) % images
    w, h = width / SCALE, height / SCALE
    special = torch.tensor(
        [
            [-0.4 * w, -0.6 * h, 2.1 * w, 1.7 * h],
            [0.2 * w, 0.3 * h, 0.2 * w, 0.3 * h],
            [0.7 * w, 0.8 * h, 0.1 * w, 0.2 * h],
            [3.0 * w, 3.0 * h, 4.0 * w, 4.0 * h],
            [0.1 * w, 0.1 * h, 50.3 * w, 0.9 * h],
        ]
    )
    rows = torch.cat([boxes, special])
    return torch.cat([torch.cat([numbers, torch.zeros(5)])[:, None], rows], 1)


def task_of(
    images: torch.Tensor,
    boxes: torch.Tensor,
    size: tuple[int, int],
    *,
    channels_last: bool,
    sampling_ratio: int = 0,
    aligned: bool = False,
    scale: float = SCALE,
) -> CRoiAlignTask:
    return CRoiAlignTask(
        *images.shape,
        *(len(boxes), *size, scale, sampling_ratio, aligned),
        *(native.FLOAT32, channels_last),
    )


def run(
    library: Library, images: torch.Tensor, boxes: torch.Tensor, task: CRoiAlignTask
) -> torch.Tensor:
    shape = (len(boxes), images.shape[1], task.output_height, task.output_width)
    last = bool(task.channels_last)
    output = unaligned(torch.full(shape, math.nan, dtype=images.dtype), last)
    pointers = images.data_ptr(), boxes.data_ptr(), output.data_ptr()
    assert library.xk_roi_align(ctypes.byref(task), *pointers) == 0
    return output


def run_backward(
    library: Library, gradient: torch.Tensor, boxes: torch.Tensor, task: CRoiAlignTask
) -> torch.Tensor:
    shape = (task.images, task.channels, task.height, task.width)
    sums = unaligned(torch.zeros(shape), bool(task.channels_last))
    pointers = gradient.data_ptr(), boxes.data_ptr(), sums.data_ptr()
    assert library.xk_roi_align_backward(ctypes.byref(task), *pointers) == 0
    return sums


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_reaches_the_bins_that_read_it(load: Load, last: bool, value: float) -> None:
    images = torch.randn(1, 5, 20, 24)
    images[0, 2, 7, 9] = value
    boxes = make_boxes(1, 20, 24)[:8]
    exact = images.double()
    for sampling_ratio in (0, 2):
        wanted = roi_align_reference(exact, boxes, (4, 4), SCALE, sampling_ratio)
        given = unaligned(images, last)
        task = task_of(given, boxes, (4, 4), channels_last=last, sampling_ratio=sampling_ratio)
        output = run(load(ISAS[-1]), given, boxes, task)
        assert not wanted.isfinite().all()
        assert torch.equal(output.isfinite(), wanted.isfinite())


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("sampling_ratio", [0, 3])
def test_boxes_that_are_no_region_give_zeros(load: Load, last: bool, sampling_ratio: int) -> None:
    """NaN, infinite, and so large that their pixels cannot be counted."""
    wrong = [math.nan, math.inf, -math.inf, 3e38, -3e38]
    boxes = torch.tensor([[0, 1, 1, 5, 5]] * 4 * len(wrong), dtype=torch.float32)
    for at, value in enumerate(wrong):
        for corner in range(4):
            boxes[4 * at + corner, 1 + corner] = value
    images = unaligned(torch.ones(1, 3, 8, 8), last)
    for aligned in (True, False):
        task = task_of(
            *(images, boxes, (2, 2)),
            channels_last=last,
            sampling_ratio=sampling_ratio,
            aligned=aligned,
        )
        output = run(load(ISAS[-1]), images, boxes, task)
        assert output.isfinite().all()
        # Without `aligned`, a region that ends before it begins is one pixel.
        zeros = ~boxes.isfinite().all(1) & (aligned | (boxes[:, 3:] != -math.inf).all(1))
        assert zeros.sum() >= 10
        assert torch.equal(output[zeros], torch.zeros_like(output[zeros]))


def test_a_region_of_a_thousand_million_samples_takes_no_longer(load: Load) -> None:
    """Only samples near the image are visited; a loop over all of them would not end."""
    boxes = torch.tensor([[0, -1e9, 2, 1e9, 6], [0, 3, -2e9, 8, 1e9]])
    images = torch.randn(1, 4, 10, 12)
    task = task_of(images, boxes, (2, 2), channels_last=False, scale=1.0)
    output = run(load(ISAS[-1]), images, boxes, task)
    # The mean over a bin of 10^9 pixels, of which 12 or 10 may count.
    assert output.abs().max() < 1e-6


def test_few_regions_and_empty_ones(load: Load) -> None:
    library = load(ISAS[-1])
    for shape, boxes in (
        ((2, 3, 4, 5), torch.empty(0, 5)),
        ((0, 3, 4, 5), torch.empty(0, 5)),
        ((2, 3, 0, 0), torch.empty(0, 5)),
        ((2, 0, 4, 5), torch.zeros(3, 5)),
    ):
        images = torch.randn(shape)
        task = task_of(images, boxes, (2, 2), channels_last=False)
        assert run(library, images, boxes, task).numel() == 0
        gradient = torch.empty(len(boxes), shape[1], 2, 2)
        assert not run_backward(library, gradient, boxes, task).any()


WRONG: dict[str, tuple[str, int, ArgumentProblem]] = {
    **{
        f"a negative number of {name}": (name, -1, ArgumentProblem.INVALID_SIZE)
        for name in ("images", "channels", "height", "width", "boxes")
    },
    "an image that is too large": ("height", 2**24 + 1, ArgumentProblem.INVALID_SIZE),
    "too many values": ("channels", 2**60, ArgumentProblem.INVALID_SIZE),
    "no bins": ("output_width", 0, ArgumentProblem.INVALID_SIZE),
    "too many bins": ("output_height", 2**16 + 1, ArgumentProblem.INVALID_SIZE),
    "an unknown type": ("type", 3, ArgumentProblem.INVALID_TYPE),
    "no pixels": ("height", 0, ArgumentProblem.NO_PIXELS),
    "fewer images than boxes have": ("images", 1, ArgumentProblem.INVALID_IMAGE),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_task_is_refused_before_anything_changes(load: Load, wrong: str) -> None:
    images, boxes = torch.randn(2, 3, 8, 9), make_boxes(2, 8, 9)
    task = task_of(images, boxes, (2, 2), channels_last=False)
    field, value, problem = WRONG[wrong]
    setattr(task, field, value)
    output, sums = torch.full((len(boxes), 3, 2, 2), 7.0), torch.full(images.shape, 7.0)
    for name, given, result in (("", images, output), ("_backward", output, sums)):
        function = getattr(load(ISAS[-1]), f"xk_roi_align{name}")
        pointers = given.data_ptr(), boxes.data_ptr(), result.data_ptr()
        assert function(ctypes.byref(task), *pointers) == problem
    assert torch.equal(output, torch.full_like(output, 7))
    assert torch.equal(sums, torch.full_like(sums, 7))


@pytest.mark.parametrize("pointer", [None, 1])
def test_wrong_pointers_and_no_isa_are_refused(load: Load, pointer: int | None) -> None:
    library = load(ISAS[-1])
    images, boxes = torch.randn(2, 3, 8, 9), make_boxes(2, 8, 9)
    output = torch.empty(len(boxes), 3, 2, 2)
    task = task_of(images, boxes, (2, 2), channels_last=False)
    right = [images.data_ptr(), boxes.data_ptr(), output.data_ptr()]
    assert load("v9").xk_roi_align(ctypes.byref(task), *right) == native.NO_ISA
    for at in range(3):
        pointers = [*right]
        pointers[at] = None if pointer is None else right[at] + pointer
        for function in (library.xk_roi_align, library.xk_roi_align_backward):
            assert function(ctypes.byref(task), *pointers) == ArgumentProblem.INVALID_POINTER
    assert library.xk_roi_align(None, *right) == ArgumentProblem.INVALID_POINTER
