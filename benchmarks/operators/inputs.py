# SPDX-License-Identifier: Apache-2.0
"""The inputs of the operators, the same for ours and for IPEX's: it imports torch alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DIM, BAG_LENGTH = 128, 20
EXPONENT = 1.05
"""Of Zipf's law: the row of rank k is named k^-EXPONENT as often as the first."""
INPUTS, SAMPLES, FEATURES = 27, 2048, 128
"""Of the interaction."""
HEIGHT, WIDTH, CHANNELS, REGIONS = 800, 1088, 256, 512
"""Of two images, of which the pooled ones are an eighth (STRIDE)."""
STRIDE, SIZE = 8, 7
FORMATS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
SHORT_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Call = Callable[[], object]


class Shape(NamedTuple):
    """The sizes of all embedding tables and lookups."""

    tables: int
    rows: int
    dim: int
    batch: int
    length: int
    """Of each bag."""


class Data(NamedTuple):
    """Lookups in each table, and gradients of the results."""

    indices: list[torch.Tensor]
    offsets: list[torch.Tensor]
    gradients: list[torch.Tensor]


def draw(shape: Shape, distribution: str, dtype: torch.dtype) -> Data:
    """Draw lookups; the frequent rows are anywhere in the table."""
    torch.manual_seed(0)
    count = shape.batch * shape.length
    if distribution == "uniform":
        indices = [torch.randint(shape.rows, (count,)) for _ in range(shape.tables)]
    else:
        shares = torch.arange(1, shape.rows + 1, dtype=torch.float64).pow(-EXPONENT).cumsum(0)
        ranks = [
            torch.searchsorted(shares, torch.rand(count, dtype=torch.float64) * shares[-1])
            for _ in range(shape.tables)
        ]
        indices = [torch.randperm(shape.rows)[rank.clamp(max=shape.rows - 1)] for rank in ranks]
    return Data(
        indices,
        [torch.arange(0, count, shape.length) for _ in range(shape.tables)],
        [torch.randn(shape.batch, shape.dim).to(dtype) for _ in range(shape.tables)],
    )


def draw_interaction(dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the inputs of an interaction, and a gradient of its result."""
    torch.manual_seed(0)
    inputs = [torch.randn(SAMPLES, FEATURES).to(dtype).requires_grad_() for _ in range(INPUTS)]
    return inputs, torch.randn(SAMPLES, FEATURES + INPUTS * (INPUTS - 1) // 2).to(dtype)


def draw_regions() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maps of two images, and regions of 50 to 300 pixels in them."""
    torch.manual_seed(0)
    images = torch.randn(2, CHANNELS, HEIGHT // STRIDE, WIDTH // STRIDE)
    sides = 50 + torch.rand(REGIONS, 2) * 250
    corners = torch.rand(REGIONS, 2) * (torch.tensor([WIDTH, HEIGHT]) - sides)
    numbers = torch.randint(2, (REGIONS, 1)).float()
    return images, torch.cat([numbers, corners, corners + sides], 1)


def without_grad(call: Call) -> Call:
    def run() -> object:
        with torch.no_grad():
            return call()

    return run


def pooling(
    pool: Callable[..., torch.Tensor], images: torch.Tensor, boxes: torch.Tensor, ratio: int
) -> dict[str, Call]:
    """Forward, and forward with backward."""
    given = images.clone(memory_format=torch.preserve_format).requires_grad_()

    def forward() -> torch.Tensor:
        return pool(given, boxes, SIZE, 1 / STRIDE, ratio, True)

    gradient = torch.randn_like(forward())
    return {
        "forward": without_grad(forward),
        "training": lambda: torch.autograd.grad(forward(), given, gradient),
    }


def poolings(
    name: str,
    pool: Callable[..., torch.Tensor],
    images: torch.Tensor,
    boxes: torch.Tensor,
    ratio: int,
) -> dict[str, dict[str, Call]]:
    """The calls of `pooling` for each dtype and memory format. **Ex.:** ``IPEX, bf16, channels last``."""
    return {
        f"{name}, {label}, {layout}": pooling(
            pool, images.to(dtype).contiguous(memory_format=memory_format), boxes, ratio
        )
        for layout, memory_format in FORMATS.items()
        for label, dtype in SHORT_DTYPES.items()
    }
