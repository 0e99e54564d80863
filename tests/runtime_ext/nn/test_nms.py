# SPDX-License-Identifier: Apache-2.0
"""`nms` and `batched_nms` as torch operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.runtime_ext.nn.vision_references import nms_reference

from xruntime.errors import OperatorError
from xruntime.nn import batched_nms, nms


def make(count: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes, and scores with ties."""
    drawn = torch.Generator().manual_seed(count)
    boxes = torch.rand(count, 4, generator=drawn, dtype=dtype) * 50
    boxes[:, 2:] = boxes[:, :2] + torch.rand(count, 2, generator=drawn, dtype=dtype) * 40
    return boxes, (torch.rand(count, generator=drawn, dtype=dtype) * 9).round() / 9


def test_half_precision_is_computed_in_fp32() -> None:
    boxes, scores = make(60)
    half = boxes.to(torch.bfloat16)
    assert torch.equal(nms(half, scores, 0.4), nms(half.float(), scores, 0.4))
    assert torch.equal(nms(boxes, scores.half(), 0.4), nms(boxes, scores.half().float(), 0.4))


def test_boxes_and_scores_of_any_layout() -> None:
    boxes, scores = make(60)
    wide = torch.stack([boxes, boxes], 2)[..., 0]
    assert not wide.is_contiguous()
    assert torch.equal(nms(wide, scores.repeat(2)[:60], 0.4), nms(boxes, scores, 0.4))


def test_a_nan_score_is_the_best() -> None:
    boxes, scores = make(40)
    scores[7] = float("nan")
    assert nms(boxes, scores, 0.4)[0] == 7


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_groups_are_suppressed_by_themselves(dtype: torch.dtype) -> None:
    boxes, scores = make(120)
    groups = torch.randint(5, (120,), dtype=dtype)
    if dtype.is_signed:
        groups -= 2
    kept = batched_nms(boxes, scores, groups, 0.3)
    flags = torch.zeros(120, dtype=torch.bool)
    for group in groups.unique():
        members = (groups == group).nonzero()[:, 0]
        flags[members[nms_reference(boxes[members], scores[members], 0.3)]] = True
    by_score = scores.argsort(descending=True, stable=True)
    assert torch.equal(kept, by_score[flags[by_score]])
    assert len(batched_nms(boxes[:0], scores[:0], groups[:0], 0.3)) == 0


def test_torch_accepts_the_operator() -> None:
    boxes, scores = make(20)
    groups = torch.arange(20) % 3
    for idxs in (None, groups):
        torch.library.opcheck(torch.ops.xruntime.nms.default, (boxes, scores, idxs, 0.4))


def best(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return boxes[nms(boxes * 1.0, scores, 0.4)] + 1


class Best(torch.nn.Module):
    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return best(boxes, scores)


def test_it_can_be_exported() -> None:
    exported = torch.export.export(Best(), make(20))
    other = make(20)[0].flip(0), make(20)[1]
    assert torch.equal(exported.module()(*other), best(*other))


@pytest.mark.long
def test_it_can_be_compiled(compiler: None) -> None:
    compiled = torch.compile(best, fullgraph=True)
    for count in (20, 33):
        boxes, scores = make(count)
        assert torch.equal(compiled(boxes, scores), best(boxes, scores))


BOXES, SCORES = make(5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((BOXES[:, :3], SCORES, 0.5), r"boxes have shape \(5, 3\) .* allowed are \(K, 4\)"),
        ((BOXES.long(), SCORES, 0.5), "boxes have .* dtype torch.int64"),
        ((BOXES, SCORES[:4], 0.5), r"scores have shape \(4,\) .* allowed are \(5,\)"),
        ((BOXES, SCORES.long(), 0.5), "scores have .* dtype torch.int64"),
    ],
)
def test_what_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        nms(*arguments)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("groups", [torch.zeros(4, dtype=torch.int64), torch.zeros(5)])
def test_wrong_groups_are_refused(groups: torch.Tensor) -> None:
    with pytest.raises(OperatorError, match=r"idxs have shape .* and an integer dtype"):
        batched_nms(BOXES, SCORES, groups, 0.5)
