# SPDX-License-Identifier: Apache-2.0
"""Pooling of image regions with bilinear interpolation (https://arxiv.org/abs/1703.06870)."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from xruntime import native
from xruntime.errors import OperatorError
from xruntime.nn.native_operators import TYPES, call, define, differentiate


class CRoiAlignTask(ctypes.Structure):
    """xk_roi_align_task of xkernels/roi_align.h."""

    _fields_ = native.fields(
        (ctypes.c_int64, "images channels height width boxes output_height output_width"),
        (ctypes.c_double, "spatial_scale"),
        (ctypes.c_int32, "sampling_ratio aligned type channels_last"),
    )


native.declare(
    *("xk_roi_align", "xk_roi_align_backward"),
    arguments=(ctypes.POINTER(CRoiAlignTask), *[ctypes.c_void_p] * 3),
)

MAX_BINS = 2**16
_FORMATS = (torch.contiguous_format, torch.channels_last)
_INT32_MAX = 2**31 - 1

MIN_CHANNELS_OF_COPY = 16
MAX_PIXELS_OF_COPY = 4
"""Contiguous images with so many channels are computed in a channels-last copy if they have no more than
so many values for each value of the regions. Measured: copies both ways then take less time than the
channels-first kernel takes more."""


def roi_align(
    input: torch.Tensor,  # noqa: A002 - torchvision's name
    boxes: torch.Tensor | Sequence[torch.Tensor],
    output_size: int | Sequence[int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> torch.Tensor:
    """Return the regions `boxes` of `input`, each divided into bins that are averaged.

    Arguments and semantics are those of torchvision.ops.roi_align. `input` has shape (N, C, H, W) and
    dtype fp32, bf16 or fp16; `boxes` is a tensor (K, 5) of image number, x1, y1, x2, y2, or a list of N
    tensors (L_i, 4), of any floating-point dtype. The result has shape (K, C, height, width) for an
    `output_size` of (height, width) or one number, the dtype of `input`, and its memory format:
    channels-last, or contiguous. All is computed in fp32, and the coordinates of boxes too. Only `input` gets a
    gradient.

    Unlike torchvision, the dtype of `boxes` may differ from `input`'s, the number of an image is
    checked, and coordinates may be NaN or infinite: a sample whose place is NaN counts as zero.
    Autocast changes nothing. Raises OperatorError.
    """
    if isinstance(output_size, int):
        height = width = output_size
    elif len(output_size) == 2:
        height, width = output_size
    else:
        raise OperatorError(
            f"roi_align: output_size={output_size!r}; allowed is a number or a pair of numbers"
        )
    regions = boxes if isinstance(boxes, torch.Tensor) else _numbered(boxes)
    return call(  # type: ignore[no-any-return]
        *(torch.ops.xruntime.roi_align, _run, input, regions),
        *(spatial_scale, height, width, sampling_ratio, aligned),
    )


class RoIAlign(nn.Module):
    """`roi_align` with fixed options, as torchvision.ops.RoIAlign."""

    def __init__(
        self,
        output_size: int | Sequence[int],
        spatial_scale: float,
        sampling_ratio: int,
        aligned: bool = False,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale
        self.sampling_ratio = sampling_ratio
        self.aligned = aligned

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - torchvision's name
        rois: torch.Tensor | Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Pool `rois`, which are `boxes` of `roi_align`."""
        return roi_align(
            input, rois, self.output_size, self.spatial_scale, self.sampling_ratio, self.aligned
        )

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, spatial_scale={self.spatial_scale},"
            f" sampling_ratio={self.sampling_ratio}, aligned={self.aligned}"
        )


def _numbered(boxes: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join the boxes of each image to one tensor (K, 5) in fp32 or fp64."""
    numbered = []
    for image, of_image in enumerate(boxes):
        if of_image.dim() != 2 or of_image.shape[1] != 4 or not of_image.is_floating_point():
            raise OperatorError(
                f"roi_align: the boxes of image {image} have shape {tuple(of_image.shape)} and dtype"
                f" {of_image.dtype}; allowed are (L, 4) and a floating-point dtype"
            )
        numbers = of_image.new_full((of_image.shape[0], 1), image, dtype=torch.float32)
        numbered.append(torch.cat([numbers, of_image], 1))
    return torch.cat(numbered) if numbered else torch.empty(0, 5)


def _check_arguments(
    shape: Sequence[int],
    dtype: torch.dtype,
    boxes: torch.Tensor,
    size: tuple[int, int],
    sampling_ratio: int,
) -> None:
    """Check what the library does not see, and the size of the result; `shape` and `dtype` are the input's."""
    if len(shape) != 4 or dtype not in TYPES:
        raise OperatorError(
            f"roi_align: input has shape {tuple(shape)} and dtype {dtype}; allowed are"
            f" (N, C, H, W) and {', '.join(map(str, TYPES))}"
        )
    if boxes.dim() != 2 or boxes.shape[1] != 5 or not boxes.is_floating_point():
        raise OperatorError(
            f"roi_align: boxes have shape {tuple(boxes.shape)} and dtype {boxes.dtype}; allowed are"
            " (K, 5), or a list of (L, 4) for each image, and a floating-point dtype"
        )
    if not all(1 <= side <= MAX_BINS for side in size):
        raise OperatorError(
            f"roi_align: output_size={size}; allowed is 1 to {MAX_BINS} in each dimension"
        )
    if abs(sampling_ratio) > _INT32_MAX:
        raise OperatorError(
            f"roi_align: sampling_ratio={sampling_ratio}; allowed is at most {_INT32_MAX}"
        )


def _refusal(
    shape: Sequence[int], boxes: torch.Tensor, problem: native.ArgumentProblem
) -> OperatorError:
    if problem == problem.INVALID_IMAGE:
        numbers = boxes[:, 0]
        box = int((~((numbers >= 0) & (numbers < shape[0]))).nonzero()[0])
        return OperatorError(
            f"roi_align: box {box} is of image {numbers[box]:g}; allowed is 0 to {shape[0] - 1}"
        )
    if problem == problem.NO_PIXELS:
        return OperatorError(
            f"roi_align: input has shape {tuple(shape)}, without pixels, for {len(boxes)} boxes"
        )
    return OperatorError(
        f"roi_align: input has shape {tuple(shape)}; allowed are 2**24 pixels in a row"
    )


def _format(images: torch.Tensor) -> torch.memory_format:
    if not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    return torch.contiguous_format


def _empty(
    shape: Sequence[int], like: torch.Tensor, memory_format: torch.memory_format
) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format)


def _format_of_kernel(
    shape: Sequence[int], regions: Sequence[int], memory_format: torch.memory_format
) -> torch.memory_format:
    """The format to compute in, for images and regions of these shapes in `memory_format`."""
    large_copy = math.prod(shape) > MAX_PIXELS_OF_COPY * math.prod(regions)
    if shape[1] < MIN_CHANNELS_OF_COPY or large_copy:
        return memory_format
    return torch.channels_last


def _call(
    name: str,
    values: torch.Tensor,
    boxes: torch.Tensor,
    output: torch.Tensor,
    shape: Sequence[int],
    size: tuple[int, int],
    options: tuple[float, int, bool],
    memory_format: torch.memory_format,
) -> None:
    """Call a native function for images of `shape`; `options` are the scale, the ratio and `aligned`."""
    boxes = boxes.to(torch.float32).contiguous()
    channels_last = memory_format == torch.channels_last
    task = CRoiAlignTask(
        *(*shape, boxes.shape[0], *size, *options, TYPES[values.dtype], channels_last)
    )
    addresses = [tensor.data_ptr() for tensor in (values, boxes, output)]
    result = getattr(native.library(), name)(ctypes.byref(task), *addresses)
    native.check(result, functools.partial(_refusal, shape, boxes))


def _run(
    images: torch.Tensor,
    boxes: torch.Tensor,
    spatial_scale: float,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    _check_arguments(images.shape, images.dtype, boxes, (height, width), sampling_ratio)
    shape = (boxes.shape[0], images.shape[1], height, width)
    result_format = _format(images)
    memory_format = _format_of_kernel(images.shape, shape, result_format)
    images = images.contiguous(memory_format=memory_format)
    output = _empty(shape, images, memory_format)
    options = (spatial_scale, sampling_ratio, aligned)
    _call(
        *("xk_roi_align", images, boxes, output),
        *(images.shape, (height, width), options, memory_format),
    )
    return output.contiguous(memory_format=result_format)


def _fake(
    images: torch.Tensor, boxes: torch.Tensor, _scale: float, height: int, width: int, *options: Any
) -> torch.Tensor:
    _check_arguments(images.shape, images.dtype, boxes, (height, width), options[0])
    return _empty((boxes.shape[0], images.shape[1], height, width), images, _format(images))


def _run_backward(
    gradient: torch.Tensor,
    boxes: torch.Tensor,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    shape: list[int],
    channels_last: bool,
) -> torch.Tensor:
    _check_gradient(gradient, boxes, shape, sampling_ratio)
    result_format = _FORMATS[channels_last]
    memory_format = _format_of_kernel(shape, gradient.shape, result_format)
    gradient = gradient.contiguous(memory_format=memory_format)
    sums = torch.empty(shape, dtype=torch.float32, memory_format=memory_format).zero_()
    options = (spatial_scale, sampling_ratio, aligned)
    _call(
        *("xk_roi_align_backward", gradient, boxes, sums),
        *(shape, (gradient.shape[2], gradient.shape[3]), options, memory_format),
    )
    return sums.to(gradient.dtype).contiguous(memory_format=result_format)


def _check_gradient(
    gradient: torch.Tensor, boxes: torch.Tensor, shape: list[int], sampling_ratio: int
) -> None:
    if gradient.dim() != 4 or len(shape) != 4 or gradient.shape[1] != shape[1]:
        raise OperatorError(
            f"roi_align_backward: the gradient has shape {tuple(gradient.shape)} for an input of"
            f" {tuple(shape)}; both need four dimensions and the same channels"
        )
    if gradient.shape[0] != boxes.shape[0]:
        raise OperatorError(
            f"roi_align_backward: a gradient of shape {tuple(gradient.shape)} for"
            f" {boxes.shape[0]} boxes; it needs one region for each box"
        )
    height, width = gradient.shape[2:]
    _check_arguments(shape, gradient.dtype, boxes, (height, width), sampling_ratio)


def _fake_backward(gradient: torch.Tensor, boxes: torch.Tensor, *options: Any) -> torch.Tensor:
    _, sampling_ratio, _, shape, channels_last = options
    _check_gradient(gradient, boxes, shape, sampling_ratio)
    return _empty(shape, gradient, _FORMATS[channels_last])


def _keep_task(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    images, boxes, spatial_scale, _, _, sampling_ratio, aligned = inputs
    ctx.save_for_backward(boxes)
    ctx.shape = images.shape
    ctx.options = spatial_scale, sampling_ratio, aligned
    ctx.channels_last = _format(images) == torch.channels_last


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    (boxes,) = ctx.saved_tensors
    to_input = torch.ops.xruntime.roi_align_backward(
        gradient, boxes, *ctx.options, ctx.shape, ctx.channels_last
    )
    return to_input, None, None, None, None, None, None


def _keep_backward_task(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    gradient, boxes, *options, _, _ = inputs
    ctx.save_for_backward(boxes)
    ctx.options = options
    ctx.size = gradient.shape[2:]


def _backward_of_backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The backward pass is linear in the regions' gradient; its derivative is the forward pass."""
    (boxes,) = ctx.saved_tensors
    spatial_scale, sampling_ratio, aligned = ctx.options
    to_gradient = torch.ops.xruntime.roi_align(
        gradient, boxes, spatial_scale, *ctx.size, sampling_ratio, aligned
    )
    return to_gradient, None, None, None, None, None, None


define(
    "roi_align(Tensor input, Tensor boxes, float spatial_scale, SymInt height, SymInt width,"
    " int sampling_ratio, bool aligned) -> Tensor",
    _run,
    _fake,
)
define(
    "roi_align_backward(Tensor gradient, Tensor boxes, float spatial_scale, int sampling_ratio,"
    " bool aligned, SymInt[] shape, bool channels_last) -> Tensor",
    _run_backward,
    _fake_backward,
)
differentiate("roi_align", _backward, _keep_task)
differentiate("roi_align_backward", _backward_of_backward, _keep_backward_task)
