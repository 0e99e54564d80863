# SPDX-License-Identifier: Apache-2.0
"""What calls of tests are made of, and how they are compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Pair(NamedTuple):
    left: Any
    right: Any


def arange(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def shares_storage(view: Tensor, whole: Tensor) -> bool:
    return view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def assert_same(left: Any, right: Any) -> None:
    """Equal in values, and of the same types all the way down."""
    assert type(left) is type(right)
    if isinstance(left, Tensor):
        assert left.dtype is right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (tuple, list)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right
