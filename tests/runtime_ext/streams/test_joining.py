# SPDX-License-Identifier: Apache-2.0
"""What the parts returned becomes one return value, or one clear error. Whole calls: test_round_trips."""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden import Golden
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from xruntime.streams.hints import EXAMPLE
from xruntime.streams.hints import MultiStreamModuleHint as Hint
from xruntime.streams.joining import join

A, B = torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 9.0).reshape(1, 3)
WHOLE = torch.arange(9.0).reshape(3, 3)


@pytest.mark.parametrize("output", [A, (A, True), {"loss": torch.tensor(1.0)}, None])
def test_a_single_output_is_returned_as_it_is(output: Any) -> None:
    for hint in (None, Hint(0), Hint(1), Hint(None)):
        assert join([output], hint) is output


@pytest.mark.parametrize("outputs", [[A], [A, B], [(A, 1), (B, 2)]])
def test_without_concatenation_the_outputs_are_returned(outputs: list[Any]) -> None:
    joined = join(tuple(outputs), Hint(0), concat=False)
    assert type(joined) is list
    assert all(one is other for one, other in zip(joined, outputs, strict=True))


def test_the_concatenated_list_is_the_joined_value() -> None:
    assert torch.equal(torch.cat(join([A, B], None, concat=False)), join([A, B], None))


def test_none_takes_the_first() -> None:
    joined = join([(A, "a", {"n": A}), (B, "b", {"n": B})], Hint(0, None, None))
    assert torch.equal(joined[0], WHOLE)
    assert joined[1] == "a"
    assert joined[2]["n"] is A
    assert join([A, B], Hint(None)) is A


@pytest.mark.parametrize("value", [True, 3, "text", None, 2.5, torch.Size([2]), ("a", [1, None])])
def test_what_is_no_tensor_must_be_equal(value: Any) -> None:
    for hint in (None, Hint(0), Hint((0,))):
        joined = join([(A, value), (B, value)], hint)
        assert torch.equal(joined[0], WHOLE)
        assert joined[1] == value
        assert type(joined[1]) is type(value)


def test_what_a_hint_would_cure(golden: Golden) -> None:
    differing = [
        [(A, left), (B, right)] for left, right in ((2, 1), ("a", "b"), (object(), object()))
    ]
    losses = [{"loss": A.mean(), "logits": A.t()}, {"loss": B.mean(), "logits": B.t()}]
    uncovered: list[tuple[Any, Hint, Hint]] = [
        ((A, A), Hint((0,)), Hint(0)),
        ({"a": A, "b": A}, Hint(a=1), Hint({"a": 1, "b": 0})),
        ((A, {"a": [A]}), Hint(0, {}), Hint(0)),
        ((A, {"a": [A, "x"]}), Hint((1,)), Hint((1, {"a": (0, None)}))),
    ]
    golden.errors(
        *[
            partial(join, outputs, hint)
            for outputs in differing
            for hint in (None, Hint(0), Hint((0,)))
        ],
        lambda: join(losses, Hint(loss=0, logits=1)),
        lambda: join(losses, Hint({"loss": 0, "logits": 1})),
        *[partial(join, [output, output], hint) for output, hint, _ in uncovered],
        hide=re.escape(EXAMPLE),
    )
    for outputs in differing:
        assert join(outputs, Hint((0, None)))[1] is outputs[0][1]
    joined = join(losses, Hint({"loss": None, "logits": 1}))
    assert joined["loss"] is losses[0]["loss"]
    assert torch.equal(joined["logits"], WHOLE.t())
    for output, _, remedy in uncovered:
        assert type(join([output, output], remedy)) is type(output)


EITHER = (None, Hint((0, 0)))
"""No hint, and one for both outputs."""
EVERY = (*EITHER, Hint((0,)))
"""And one that says nothing about the second."""


def test_what_cannot_be_joined(golden: Golden) -> None:
    other_forms: list[tuple[Any, Hint]] = [
        (True, Hint(0)), ("text", Hint((0,))), (A, Hint(0, 0)), ((A,), Hint(0, 0)), ((A, A), Hint(a=0)),
        ({"a": A}, Hint(0, 0)), (["a", "b"], Hint(0)), (A, Hint(2)), ([A, A[0]], Hint(1)),
    ]  # fmt: skip
    different: list[tuple[Any, Any, tuple[Hint | None, ...]]] = [
        (A, [A], EITHER), (A, None, EITHER), (None, A, EVERY), ((A, A), (A,), EVERY), ((A,), [A], EVERY),
        ({"a": A}, {"b": A}, EVERY), ([A], A, EVERY), (1, True, (None, Hint((0,)))),
    ]  # fmt: skip
    golden.errors(
        lambda: join([], None),
        lambda: join([A.sum(), B.sum()], None),
        *[partial(join, [output, output], hint) for output, hint in other_forms],
        *[
            partial(join, [(A, left), (B, right)], hint)
            for left, right, hints in different
            for hint in hints
        ],
        # Parts that were padded to their own longest.
        lambda: join([(A,), (torch.zeros(2, 5),)], None),
        lambda: join([A, A[..., None]], Hint(0)),
        lambda: join([A, B], Hint(-1)),
        hide=re.escape(EXAMPLE),
    )


def test_keys_may_come_in_another_order() -> None:
    joined = join([{"a": A, "b": A}, {"b": B, "a": B + 1}], None)
    assert list(joined) == ["a", "b"]
    assert torch.equal(joined["a"], torch.cat([A, B + 1]))


def test_sizes_tell_what_does_not_hold_the_batch(golden: Golden) -> None:
    table = torch.zeros(5, 2)
    outputs = [(A, table), (B, table)]
    golden.errors(lambda: join(outputs, None, sizes=[2, 1]), hide=re.escape(EXAMPLE))
    joined = join(outputs, Hint((0, None)), sizes=[2, 1])
    assert torch.equal(joined[0], WHOLE)
    assert joined[1] is table
    # A hint is the user's word: found boxes are as many as there are.
    assert join(outputs, Hint(0), sizes=[2, 1])[1].shape == (10, 2)


def test_where_items_may_hide_nothing_is_dropped(golden: Golden) -> None:
    packed = pack_padded_sequence(torch.zeros(2, 3, 1), [3, 2], batch_first=True)
    for make in (packed._replace, lambda: np.zeros(1), lambda: deque([A])):
        first = make()
        golden.errors(partial(join, [(A, first), (B, make())], None), hide=re.escape(EXAMPLE))
        assert join([(A, first), (B, make())], Hint(0, None))[1] is first


@dataclasses.dataclass
class Answer:
    logits: Tensor


def test_a_dataclass_is_not_taken_for_equal(golden: Golden) -> None:
    # Their tensors of one element compare as equal, so == alone would drop a part's.
    outputs = [Answer(torch.zeros(1)), Answer(torch.zeros(1))]
    golden.errors(lambda: join(outputs, None), hide=re.escape(EXAMPLE))
    assert join(outputs, Hint(None)) is outputs[0]
    assert join([outputs[0], outputs[0]], None) is outputs[0]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((2, 3, 4, 4), torch.channels_last),
        ((1, 3, 4, 4), torch.channels_last),
        ((2, 3, 4, 4, 4), torch.channels_last_3d),
    ],
)
def test_channels_last_is_kept(
    shape: tuple[int, ...], layout: torch.memory_format, dim: int
) -> None:
    parts = [torch.rand(shape).to(memory_format=layout) for _ in range(3)]
    joined = join(parts, Hint(dim))
    assert joined.is_contiguous(memory_format=layout)
    assert not joined.is_contiguous()
    assert torch.equal(joined, torch.cat([part.contiguous() for part in parts], dim))


def test_gradients_reach_all_parts() -> None:
    x = torch.nn.Parameter(WHOLE.clone())
    join([x[:2] * 2, x[2:] * 3], None).sum().backward()
    assert torch.equal(x.grad, torch.tensor([2.0, 2.0, 3.0]).unsqueeze(1).expand(3, 3))
