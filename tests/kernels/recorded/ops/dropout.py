# SPDX-License-Identifier: Apache-2.0
"""Dropout with the words of Philox4x32-10, computed by the paper's definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from tests.kernels.recorded.cases import ROUNDING, Array, Case, Expectation, stored, values_of

# Nothing, parts of a group, whole groups, and enough for a team.
COUNTS = (0, 1, 63, 64, 1000, 40_001)
PROBABILITIES = (0.1, 0.0, 0.75, 1.0)
# The last key has a carry in its first round; the last stream is all ones.
SEEDS = ((0, 0), (0x299F31D0A4093822, 2**64 - 1))


def cases() -> Iterator[Case]:
    random = np.random.default_rng(3)
    for value_type, count, seed in itertools.product(ROUNDING, COUNTS, SEEDS):
        for probability in PROBABILITIES if count == 1000 else PROBABILITIES[:1]:
            array = stored(random.standard_normal(count), value_type)
            kept = words_of(count, *seed) >= min(round(probability * 2**32), 2**32 - 1)
            scale = np.float32(0 if probability == 1 else 1 / (1 - probability))
            wanted = values_of(array) * np.where(kept, scale, 0)
            arrays = {"input": array, "seed": np.array(seed, dtype="<u8")}
            expected = Expectation(wanted, ROUNDING[value_type], 1e-7)
            name = f"dropout/{value_type}/{count}/{seed[0]}/{probability}"
            output = {"output": stored(np.full(count, 7), value_type)}
            yield Case(name, {"probability": probability}, arrays | output, {"output": expected})
            yield Case(
                f"{name}/in_place", {"probability": probability}, arrays, {"input": expected}
            )


def words_of(count: int, key: int, stream: int) -> Array:
    """The word of each value, as xkernels/dropout.h assigns them."""
    at = np.arange(count, dtype="<u8")
    block, word = at // 64 * 16 + at % 16, at // 16 % 4
    low, high = 2**32 - 1, 32
    counter = np.stack([block & low, block >> high, *np.full((2, count), 0, dtype="<u8")])
    counter[2], counter[3] = stream & low, stream >> high
    blocks = philox(counter, (key & low, key >> high))
    return np.take_along_axis(blocks, word[None].astype("<i8"), axis=0)[0]


def philox(counter: Array, key: tuple[int, int]) -> Array:
    """Philox4x32-10 of counters, (4, blocks) words of 32 bits in 64."""
    first, second = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        low, high = np.uint64(2**32 - 1), np.uint64(32)
        c0, c1, c2, c3 = (
            *(b >> high ^ c1 ^ np.uint64(first), b & low),
            *(a >> high ^ c3 ^ np.uint64(second), a & low),
        )
        first, second = (first + 0x9E3779B9) % 2**32, (second + 0xBB67AE85) % 2**32
    return np.stack([c0, c1, c2, c3])
