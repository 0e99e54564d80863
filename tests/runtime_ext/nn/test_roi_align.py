# SPDX-License-Identifier: Apache-2.0
"""`roi_align` as a torch operator."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.runtime_ext.nn.vision_references import roi_align_reference

from xruntime.errors import OperatorError
from xruntime.nn import RoIAlign, roi_align
from xruntime.nn.roi_align_operator import _format_of_kernel

BOXES = torch.tensor(
    [[0, 1, 2, 9, 12.5], [1, -4, 3, 8, 30], [0, 5, 5, 5, 5], [1, 7.3, 8.1, 21, 9.2]]
)
FORMATS = (torch.contiguous_format, torch.channels_last)


def make_images(
    memory_format: torch.memory_format = torch.contiguous_format,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    images = torch.randn(2, 6, 9, 11).to(dtype)
    return images.contiguous(memory_format=memory_format).requires_grad_()


@pytest.mark.parametrize("size", [(3, 2), (8, 9)])
def test_contiguous_images_are_computed_in_either_format(size: tuple[int, int]) -> None:
    """Where the regions are many, in a copy; the results are contiguous either way."""
    images = torch.randn(1, 20, 13, 17, requires_grad=True)
    boxes = torch.tensor([[0, 1.0, 2, 9, 12.5], [0, 3, 1, 20, 9]])
    copied = _format_of_kernel(images.shape, (2, 20, *size), torch.contiguous_format)
    assert (copied == torch.channels_last) == (size == (8, 9))
    exact = images.detach().double().requires_grad_()
    wanted = roi_align_reference(exact, boxes, size, 1.0, 2)
    pooled = roi_align(images, boxes, size, 1.0, 2)
    pooled.backward(torch.ones_like(pooled))
    wanted.backward(torch.ones_like(wanted))
    assert pooled.is_contiguous()
    assert images.grad.is_contiguous()
    torch.testing.assert_close(pooled.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(images.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)


def test_lists_modules_and_sizes_are_the_same() -> None:
    images = make_images()
    by_image = [BOXES[BOXES[:, 0] == number, 1:] for number in range(2)]
    numbered = torch.cat([BOXES[BOXES[:, 0] == number] for number in range(2)])
    wanted = roi_align(images, numbered, (4, 4), 0.5, 0, True)
    assert torch.equal(roi_align(images, by_image, 4, 0.5, 0, True), wanted)
    assert torch.equal(roi_align(images, tuple(by_image), [4, 4], 0.5, 0, True), wanted)
    module = RoIAlign(4, 0.5, 0, aligned=True)
    assert torch.equal(module(images, by_image), wanted)
    assert repr(module) == (
        "RoIAlign(output_size=4, spatial_scale=0.5, sampling_ratio=0, aligned=True)"
    )


def test_the_defaults_are_torchvisions() -> None:
    images = make_images()
    wanted = roi_align(images, BOXES, 3, spatial_scale=1.0, sampling_ratio=-1, aligned=False)
    assert torch.equal(roi_align(images, BOXES, 3), wanted)
    torch.testing.assert_close(
        wanted.double(), roi_align_reference(images.double(), BOXES, (3, 3)), rtol=1e-5, atol=1e-5
    )


def test_images_boxes_and_gradients_of_any_layout_and_dtype() -> None:
    images = torch.randn(9, 2, 22, 6, requires_grad=True)
    view = images.permute(1, 3, 0, 2)[..., ::2]
    boxes = torch.stack([BOXES, BOXES], 2)[..., 1]
    wanted = roi_align(view.contiguous(), BOXES, (3, 2), 0.5)
    for dtype in (torch.float32, torch.float64, torch.float16):
        pooled = roi_align(view, boxes.to(dtype), (3, 2), 0.5)
        torch.testing.assert_close(pooled, wanted, rtol=0.02, atol=0.02)
    pooled = roi_align(view, boxes, (3, 2), 0.5)
    assert torch.equal(pooled, wanted)
    wide = torch.randn(4, 6, 3, 4)
    (gradient,) = torch.autograd.grad(pooled, images, wide[..., ::2])
    (reference,) = torch.autograd.grad(wanted, images, wide[..., ::2].contiguous())
    assert torch.equal(gradient, reference)


@pytest.mark.parametrize("memory_format", FORMATS)
def test_no_boxes(memory_format: torch.memory_format) -> None:
    images = make_images(memory_format)
    for boxes in (torch.empty(0, 5), [torch.empty(0, 4)] * 2):
        pooled = roi_align(images, boxes, 2)
        assert pooled.shape == (0, 6, 2, 2)
        images.grad = None
        pooled.sum().backward()
        assert torch.equal(images.grad, torch.zeros_like(images))  # type: ignore[arg-type]
    assert roi_align(torch.empty(0, 3, 4, 4), [], 2).shape == (0, 3, 2, 2)


@pytest.mark.parametrize("memory_format", FORMATS)
def test_second_derivatives(memory_format: torch.memory_format) -> None:
    """The sum of squares of the gradient depends on the regions' gradient."""
    images = make_images(memory_format)
    weights = torch.randn(4, 6, 3, 2, requires_grad=True)
    pooled = roi_align(images, BOXES, (3, 2), 0.5, 2, True)
    (first,) = torch.autograd.grad((pooled * weights).sum(), images, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weights)
    wanted = 2 * roi_align(first, BOXES, (3, 2), 0.5, 2, True)
    torch.testing.assert_close(second, wanted, rtol=1e-5, atol=1e-5)


def test_derivatives_in_forward_mode_are_refused_and_not_dropped() -> None:
    images, boxes = torch.rand(1, 3, 8, 8), torch.tensor([[0.0, 0, 0, 4, 4]])
    with pytest.raises(OperatorError, match="roi_align: derivatives in forward mode"):
        torch.func.jvp(lambda x: roi_align(x, boxes, 2), (images,), (images,))


def test_boxes_get_no_gradient() -> None:
    boxes = BOXES.clone().requires_grad_()
    roi_align(make_images(), boxes, 2).sum().backward()
    assert boxes.grad is None


def test_autocast_changes_nothing() -> None:
    images = make_images(dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled = roi_align(images, BOXES, 2)
        full = roi_align(images.float(), BOXES, 2)
    assert torch.equal(pooled, roi_align(images, BOXES, 2))
    assert full.dtype == torch.float32


@pytest.mark.parametrize("memory_format", FORMATS)
def test_torch_accepts_the_operators(memory_format: torch.memory_format) -> None:
    operators = torch.ops.xruntime
    images = make_images(memory_format)
    torch.library.opcheck(operators.roi_align.default, (images, BOXES, 0.5, 3, 2, 2, True))
    gradient = torch.randn(4, 6, 3, 2).contiguous(memory_format=memory_format).requires_grad_()
    last = memory_format == torch.channels_last
    torch.library.opcheck(
        operators.roi_align_backward.default,
        (gradient, BOXES, 0.5, 2, True, list(images.shape), last),
    )


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 6, 3)
        self.pool = RoIAlign((3, 2), 0.5, 2, aligned=True)

    def forward(self, images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        return self.pool(self.convolution(images), boxes).relu()


def test_it_can_be_exported() -> None:
    model, images = Head(), torch.randn(2, 3, 12, 13)
    count = torch.export.Dim("boxes", min=2, max=100)
    exported = torch.export.export(model, (images, BOXES), dynamic_shapes=({}, {0: count}))
    more = BOXES.repeat(3, 1)
    assert torch.equal(exported.module()(images, more), model(images, more))


@pytest.mark.long
@pytest.mark.parametrize("memory_format", FORMATS)
def test_it_can_be_compiled(compiler: None, memory_format: torch.memory_format) -> None:
    model = Head().to(memory_format=memory_format)
    images = torch.randn(2, 3, 12, 13).contiguous(memory_format=memory_format)
    compiled = torch.compile(model, fullgraph=True)
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            wanted, output = model(images, BOXES), compiled(images, BOXES)
        assert output.dtype == wanted.dtype
        tolerance = 0.03 if autocast else 1e-5
        torch.testing.assert_close(output, wanted, rtol=tolerance, atol=tolerance)
        gradients = [
            torch.autograd.grad(one.float().sum(), list(model.parameters()))
            for one in (output, wanted)
        ]
        torch.testing.assert_close(*gradients, rtol=2 * tolerance, atol=20 * tolerance)


def arguments(**changes: Any) -> dict[str, Any]:
    return {"input": torch.ones(2, 3, 8, 8), "boxes": BOXES, "output_size": 2, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input": torch.ones(3, 8, 8)}, r"input has shape \(3, 8, 8\) .* \(N, C, H, W\)"),
        ({"input": torch.ones(2, 3, 8, 8).double()}, "dtype torch.float64; allowed are"),
        ({"boxes": torch.ones(3, 4)}, r"boxes have shape \(3, 4\) .* allowed are \(K, 5\)"),
        ({"boxes": torch.ones(3, 5, dtype=torch.int64)}, "dtype torch.int64; allowed are"),
        ({"boxes": [torch.ones(3, 4), torch.ones(3, 5)]}, r"of image 1 have shape \(3, 5\)"),
        ({"boxes": torch.tensor([[2.0, 0, 0, 1, 1]])}, "box 0 is of image 2; allowed is 0 to 1"),
        ({"boxes": torch.tensor([[-1.0, 0, 0, 1, 1]])}, "box 0 is of image -1"),
        ({"boxes": torch.tensor([[math.nan, 0, 0, 1, 1]])}, "box 0 is of image nan"),
        ({"input": torch.ones(2, 3, 0, 8)}, r"\(2, 3, 0, 8\), without pixels, for 4 boxes"),
        (
            {"input": torch.ones(1, 1, 1, 2**24 + 1), "boxes": BOXES[:1] * 0},
            r"\(1, 1, 1, 16777217\); allowed are 2\*\*24 pixels in a row",
        ),
        ({"output_size": 0}, r"output_size=\(0, 0\); allowed is 1 to 65536"),
        ({"output_size": (2, 3, 4)}, "allowed is a number or a pair"),
        ({"sampling_ratio": 2**31}, "sampling_ratio=2147483648; allowed is at most 2147483647"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        roi_align(**arguments(**changes))
    assert len(str(caught.value).splitlines()) == 1


def test_wrong_gradients_are_refused() -> None:
    backward = torch.ops.xruntime.roi_align_backward
    with pytest.raises(OperatorError, match="the same channels"):
        backward(torch.ones(4, 5, 2, 2), BOXES, 1.0, 2, True, [2, 3, 8, 8], False)
    with pytest.raises(OperatorError, match="one region for each box"):
        backward(torch.ones(3, 3, 2, 2), BOXES, 1.0, 2, True, [2, 3, 8, 8], False)
    with pytest.raises(OperatorError, match="is of image 1; allowed is 0 to 0"):
        backward(torch.ones(4, 3, 2, 2), BOXES, 1.0, 2, True, [1, 3, 8, 8], False)
