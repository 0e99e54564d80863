# SPDX-License-Identifier: Apache-2.0
"""roi_align, nms and FrozenBatchNorm2d against what torchvision computed; record_torchvision.py wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.runtime_ext.conftest import Needs

from xruntime import nn

RECORD = Path(__file__).with_name("recorded_torchvision.npz")

Case = tuple[dict[str, Any], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def recorded(needs: Needs) -> list[Case]:
    """Options and arrays of each call."""
    needs(RECORD.is_file(), f"{RECORD.name} (record_torchvision.py, with torchvision)")
    with numpy.load(RECORD) as file:
        cases = json.loads(str(file["cases"]))
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if "/" in name}
    return [
        (
            case,
            {
                name.partition("/")[2]: array
                for name, array in arrays.items()
                if name.partition("/")[0] == case["name"]
            },
        )
        for case in cases
    ]


def of_call(recorded: list[Case], call: str) -> list[Case]:
    found = [case for case in recorded if case[0]["call"] == call]
    assert found
    return found


@pytest.fixture
def regions(recorded: list[Case]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and boxes of all calls of roi_align."""
    ((_, arrays),) = of_call(recorded, "inputs")
    return arrays["images"], arrays["boxes"]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_roi_align(
    recorded: list[Case],
    regions: tuple[torch.Tensor, torch.Tensor],
    memory_format: torch.memory_format,
    dtype: torch.dtype,
) -> None:
    images, boxes = regions
    # Of half precision the inputs are rounded too: each value by half a unit in the last place.
    tolerance = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    for options, arrays in of_call(recorded, "roi_align"):
        given = images.to(dtype).clone(memory_format=memory_format).requires_grad_()
        names = ("output_size", "spatial_scale", "sampling_ratio", "aligned")
        pooled = nn.roi_align(given, boxes, **{name: options[name] for name in names})
        assert pooled.is_contiguous(memory_format=memory_format)
        pooled.backward(arrays["gradient"].to(dtype))
        assert pooled.dtype == given.grad.dtype == dtype
        for actual, wanted in ((pooled, arrays["pooled"]), (given.grad, arrays["to_images"])):
            scale = float(wanted.abs().max())
            torch.testing.assert_close(actual.float(), wanted, rtol=0, atol=tolerance * scale)


def test_roi_align_of_lists_and_of_nothing(
    recorded: list[Case], regions: tuple[torch.Tensor, torch.Tensor]
) -> None:
    images, boxes = regions
    ((_, arrays),) = of_call(recorded, "roi_align_listed")
    pooled = nn.roi_align(images, [boxes[:4, 1:], boxes[4:9, 1:]], 2, 0.25, 2, True)
    torch.testing.assert_close(pooled, arrays["pooled"], rtol=1e-5, atol=1e-5)
    ((_, arrays),) = of_call(recorded, "roi_align_empty")
    pooled = nn.roi_align(images, torch.empty(0, 5), (3, 4), 0.25)
    assert pooled.shape == arrays["pooled"].shape


def test_nms(recorded: list[Case]) -> None:
    for options, arrays in of_call(recorded, "nms"):
        kept = nn.nms(arrays["boxes"], arrays["scores"], options["threshold"])
        assert torch.equal(kept, arrays["kept"]), options["name"]


def test_batched_nms(recorded: list[Case]) -> None:
    for options, arrays in of_call(recorded, "batched_nms"):
        given = arrays["boxes"], arrays["scores"], arrays["groups"]
        assert torch.equal(nn.batched_nms(*given, options["threshold"]), arrays["kept"])


def test_frozen_batch_norm(recorded: list[Case]) -> None:
    ((options, arrays),) = of_call(recorded, "frozen_norm")
    module = nn.FrozenBatchNorm2d(5, eps=options["eps"])
    assert list(module.state_dict()) == options["state"]
    assert repr(module) == options["repr"]
    module.load_state_dict({name: arrays[name] for name in options["state"]})
    torch.testing.assert_close(module(arrays["images"]), arrays["output"], rtol=2e-6, atol=2e-6)
