# SPDX-License-Identifier: Apache-2.0
"""How tensors lie in memory: what one native loop can walk as a block, and what overlaps."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from xruntime.errors import OptimizerError


class Extent(NamedTuple):
    """The bytes of a dense block, [start, end)."""

    start: int
    end: int


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill one block of memory, each once, in any order of dimensions.

    **Ex.:** True for a contiguous, a channels-last and a transposed tensor; False for x[:, ::2], and for
    a view that negates what its memory holds.
    """
    dense = tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor)
    return bool(dense) and not tensor.is_neg()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether elements may share memory; exact for what slicing, transposing and expanding can make."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size <= 1:
            continue
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether elements of the same index are at the same position of both tensors' memory."""
    if one.stride() == other.stride():
        return True
    if one.is_contiguous() and other.is_contiguous():
        return True
    return all(
        a == b
        for a, b, size in zip(one.stride(), other.stride(), one.shape, strict=True)
        if size != 1
    )


def can_be_walked_together(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether one loop over raw memory meets the elements of the same index of all tensors.

    They are on the CPU and agree in dtype and shape, and each fills a block in the same order.
    """
    first, *others = tensors
    if first.device.type != "cpu" or not is_dense(first):
        return False
    return all(
        other.dtype == first.dtype
        and other.shape == first.shape
        and other.device == first.device
        and same_layout(other, first)
        and is_dense(other)
        for other in others
    )


def empty_like(block: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Make an uninitialized tensor with the layout of a dense `block`."""
    return torch.empty_like(block, dtype=dtype, memory_format=torch.preserve_format)


def with_layout_of(tensor: torch.Tensor, block: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `tensor`, or a copy of it that has that dtype and the layout of a dense `block`."""
    if (
        tensor.dtype == dtype
        and tensor.device == block.device
        and same_layout(tensor, block)
        and is_dense(tensor)
    ):
        return tensor
    return empty_like(block, dtype).copy_(tensor)


def extent(tensor: torch.Tensor) -> Extent:
    """Return the memory of a dense tensor."""
    start = tensor.data_ptr()
    return Extent(start, start + tensor.numel() * tensor.element_size())


def extents(tensors: Iterable[torch.Tensor]) -> list[Extent]:
    """Return the memory of dense tensors that have elements, by address."""
    return sorted(extent(tensor) for tensor in tensors if tensor.numel())


def overlap(sorted_extents: Sequence[Extent]) -> bool:
    """Return whether two blocks of memory, which are sorted by address, overlap."""
    return any(after.start < before.end for before, after in pairwise(sorted_extents))


class WrittenMemory:
    """The blocks of memory that a step writes: none overlaps with another."""

    def __init__(self, tensors: Iterable[torch.Tensor], optimizer: str) -> None:
        """Raise OptimizerError if two overlap."""
        self._optimizer = optimizer
        self._extents = extents(tensors)
        if overlap(self._extents):
            raise OptimizerError(
                f"{optimizer}: two parameters, or a parameter and its state, share memory; give"
                " shared weights to the optimizer as one parameter"
            )

    def check_gradients(self, gradients: Sequence[torch.Tensor]) -> None:
        """Raise OptimizerError if a gradient shares memory with what is written."""
        for gradient in gradients:
            if not gradient.numel():
                continue
            start, end = extent(gradient)
            at = bisect.bisect_left(self._extents, (end, 0))
            if at and self._extents[at - 1].end > start:
                raise OptimizerError(
                    f"{self._optimizer}: a gradient of shape {tuple(gradient.shape)} shares memory with"
                    " a parameter or its state; give it memory of its own: p.grad = p.grad.clone()"
                )
