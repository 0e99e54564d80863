# SPDX-License-Identifier: Apache-2.0
"""How python -m benchmarks.optimizers distributes elements over tensors."""

from __future__ import annotations

from collections.abc import Callable

LAYOUTS: dict[str, Callable[[int], list[int]]] = {
    "large": lambda elements: [elements // 4] * 4,
    "odd": lambda elements: [33_333 + 2 * (at % 5_000) for at in range(elements // 38_000)],
    "small": lambda elements: [1_000] * (elements // 1_000),
    "tiny": lambda elements: [64] * min(1_000, elements // 64),
}
"""The sizes of the tensors, by the number of their elements together."""
