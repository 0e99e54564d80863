# SPDX-License-Identifier: Apache-2.0
"""The native decode step: what it refuses.

`recorded/ops/decode.py` compares its results, on every instruction set and several threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402

from xruntime import native  # noqa: E402
from xruntime.generation.decode_step import _Layer, _Step  # noqa: E402
from xruntime.generation.linear_rows import c_weights  # noqa: E402
from xruntime.native import ArgumentProblem  # noqa: E402

Load = Callable[[str], ctypes.CDLL]
MEMORY = torch.ones(64)
WEIGHTS = c_weights(MEMORY)
DEFAULTS: dict[Any, Any] = {ctypes.c_void_p: MEMORY.data_ptr(), native.CWeights: WEIGHTS}
TOKENS = torch.zeros(2, dtype=torch.int64)


def call(load: Load, isa: str = ISAS[-1], **change: Any) -> int:
    """The code of a step of one layer of sizes 2 and 4, with fields of the step or the layer changed."""
    layers, step = (_Layer * 1)(), _Step()
    given = dict.fromkeys(("head_stride", "batch_stride"), 32) | {"position": 3}
    for name, kind in _Layer._fields_:
        value = DEFAULTS[kind] if kind in DEFAULTS else given.get(name, 0)
        setattr(layers[0], name, change.pop(name, value))
    sizes = {"layer_count": 1, "batch": 2, "hidden": 4, "heads": 2, "kv_heads": 1, "head_dim": 2}
    sizes |= {"intermediate": 4, "vocabulary": 4, "positions": 3}
    places = {"layers": ctypes.addressof(layers), "tokens": TOKENS.data_ptr()}
    places["starts"] = TOKENS.data_ptr()
    sizes["rotary_size"] = 2
    for name, kind in _Step._fields_:
        value = DEFAULTS.get(kind, 0)
        setattr(step, name, change.pop(name, places.get(name, sizes.get(name, value))))
    assert not change
    code: int = load(isa).xk_decode_step(ctypes.byref(step))
    return code


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"weight_type": native.FLOAT16}, ArgumentProblem.INVALID_TYPE),
        ({"cache_type": 9}, ArgumentProblem.INVALID_TYPE),
        ({"down": native.CWeights(MEMORY.data_ptr(), None, 9)}, ArgumentProblem.INVALID_TYPE),
        ({"batch": 0}, ArgumentProblem.INVALID_SIZE),
        ({"heads": 3, "kv_heads": 2}, ArgumentProblem.INVALID_SIZE),
        ({"rotary_size": 1}, ArgumentProblem.INVALID_SIZE),
        ({"rotary_size": 4}, ArgumentProblem.INVALID_SIZE),
        ({"norm_kind": 2}, ArgumentProblem.INVALID_TYPE),
        ({"activation": -1}, ArgumentProblem.INVALID_TYPE),
        ({"positions": -1}, ArgumentProblem.INVALID_SIZE),
        ({"position": 4}, ArgumentProblem.INVALID_SIZE),
        ({"head_stride": 7}, ArgumentProblem.INVALID_SIZE),
        ({"window": -1}, ArgumentProblem.INVALID_SIZE),
        ({"threads": -1}, ArgumentProblem.INVALID_SIZE),
        ({"layers": None}, ArgumentProblem.INVALID_POINTER),
        ({"up": native.CWeights()}, ArgumentProblem.INVALID_POINTER),
        ({"key": native.CWeights()}, ArgumentProblem.INVALID_POINTER),
        ({"key_norm_bias": MEMORY.data_ptr() + 1}, ArgumentProblem.INVALID_POINTER),
        ({"query_bias": MEMORY.data_ptr() + 1}, ArgumentProblem.INVALID_POINTER),
        ({"keys": MEMORY.data_ptr() + 2}, ArgumentProblem.INVALID_POINTER),
        ({"logits": None}, ArgumentProblem.INVALID_POINTER),
    ],
)
def test_refusals(load: Load, change: dict[str, Any], problem: ArgumentProblem) -> None:
    assert call(load, **change) == problem
    assert bool((MEMORY == 1).all())


def test_a_token_that_is_not_in_the_vocabulary(load: Load) -> None:
    for token in (4, -1):
        tokens = torch.tensor([0, token])
        assert call(load, tokens=tokens.data_ptr()) == ArgumentProblem.INVALID_INDEX


def test_without_arguments_and_without_an_instruction_set(load: Load) -> None:
    assert load(ISAS[-1]).xk_decode_step(None) == ArgumentProblem.INVALID_POINTER
    assert call(load, "nonsense") == native.NO_ISA
