# SPDX-License-Identifier: Apache-2.0
"""The native dropout: its generator, and how often values are dropped.

`recorded/ops/dropout.py` compares its results, on every instruction set and several threads.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
from tests.binomial import binomial_lower_bound, binomial_upper_bound  # noqa: E402
from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402
from tests.kernels.recorded.ops.dropout import philox  # noqa: E402

from xruntime import native  # noqa: E402

Library = ctypes.CDLL
Load = Callable[[str], Library]
ONES = 2**32 - 1

# counter, key, words: the known answers of Random123 1.14, tests/kat_vectors.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_reference_generator_gives_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    found = philox(np.array(counter, dtype="<u8").reshape(4, 1), key)
    assert found.ravel().tolist() == list(words)


def mask(library: Library, count: int, probability: float, key: int, stream: int) -> torch.Tensor:
    """Which of `count` values are kept."""
    values = torch.ones(count)
    address = values.data_ptr()
    code = library.xk_dropout(
        address, count, native.FLOAT32, probability, ctypes.c_uint64(key), stream, address
    )
    assert code == 0
    return values != 0


@pytest.mark.parametrize("probability", [1e-4, 0.1, 0.5, 0.9])
def test_values_are_dropped_as_often_as_asked(load: Load, probability: float) -> None:
    count = 1 << 20
    dropped = count - int(mask(load(ISAS[-1]), count, probability, 5, 6).sum())
    assert binomial_lower_bound(dropped, count, 1 - 1e-6) <= probability
    assert probability <= binomial_upper_bound(dropped, count, 1 - 1e-6)


@pytest.mark.parametrize("other", ["the next value", "the next block", "the next call"])
def test_masks_are_independent(load: Load, other: str) -> None:
    """Of two values both are dropped as often as the product of their probabilities."""
    library, count, probability = load(ISAS[-1]), 1 << 20, 0.3
    first = ~mask(library, count, probability, 7, 8)
    second = {
        "the next value": first.roll(1),
        "the next block": first.roll(16),
        "the next call": ~mask(library, count, probability, 7, 9),
    }[other]
    both = int((first & second).sum())
    assert binomial_lower_bound(both, count, 1 - 1e-6) <= probability**2
    assert probability**2 <= binomial_upper_bound(both, count, 1 - 1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity_are_multiplied(load: Load, isa: str) -> None:
    values = torch.tensor([math.nan, math.inf] * 100)
    kept = mask(load(isa), 200, 0.5, 1, 2)
    address = values.data_ptr()
    assert load(isa).xk_dropout(address, 200, native.FLOAT32, 0.5, 1, 2, address) == 0
    wanted = torch.tensor([math.nan, math.inf] * 100) * kept
    torch.testing.assert_close(values, wanted, equal_nan=True)
