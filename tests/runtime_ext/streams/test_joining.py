# SPDX-License-Identifier: Apache-2.0
"""What the parts returned becomes one return value, or one clear error. Whole calls: test_round_trips."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from xruntime.errors import BatchError
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


def test_no_outputs() -> None:
    with pytest.raises(BatchError, match="no outputs to join"):
        join([], None)


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


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (2, 1, r"different values \(an int \(2\), an int \(1\)\)"),
        ("a", "b", "different values"),
        (object(), object(), r"different values \(an object, an object\)"),
    ],
)
@pytest.mark.parametrize("hint", [None, Hint(0), Hint((0,))])
def test_what_differs_is_refused_with_an_example(
    left: Any, right: Any, message: str, hint: Hint | None
) -> None:
    outputs = [(A, left), (B, right)]
    with pytest.raises(BatchError, match=rf"output\[1\] is not a tensor.*{message}") as refused:
        join(outputs, hint)
    assert "concat_output=False" in str(refused.value)
    assert str(refused.value).endswith(EXAMPLE)
    assert join(outputs, Hint((0, None)))[1] is left


def test_a_loss_is_refused_with_an_example() -> None:
    outputs = [{"loss": A.mean(), "logits": A.t()}, {"loss": B.mean(), "logits": B.t()}]
    hint = Hint(loss=0, logits=1)
    for tried in (hint, Hint({"loss": 0, "logits": 1})):
        with pytest.raises(
            BatchError, match=r"output\['loss'\] is a tensor without dim"
        ) as refused:
            join(outputs, tried)
        assert str(refused.value).endswith(EXAMPLE)
        joined = join(outputs, Hint({"loss": None, "logits": 1}))
        assert joined["loss"] is outputs[0]["loss"]
        assert torch.equal(joined["logits"], WHOLE.t())
    with pytest.raises(BatchError, match="output is a tensor without dimensions"):
        join([A.sum(), B.sum()], None)


@pytest.mark.parametrize(
    ("output", "hint", "where", "remedy"),
    [
        ((A, A), Hint((0,)), r"output\[1\]", Hint(0)),
        ({"a": A, "b": A}, Hint(a=1), r"output\['b'\]", Hint({"a": 1, "b": 0})),
        ((A, {"a": [A]}), Hint(0, {}), r"output\[1\]\['a'\]\[0\]", Hint(0)),
        ((A, {"a": [A, "x"]}), Hint((1,)), r"output\[1\]\['a'\]\[0\]", Hint((1, {"a": (0, None)}))),
    ],
)
def test_a_tensor_that_no_hint_covers(output: Any, hint: Hint, where: str, remedy: Hint) -> None:
    with pytest.raises(BatchError, match=f"does not cover {where} \\(2, 3\\)") as refused:
        join([output, output], hint)
    assert str(refused.value).endswith(EXAMPLE)
    assert type(join([output, output], remedy)) is type(output)


@pytest.mark.parametrize(
    ("output", "hint", "message"),
    [
        (True, Hint(0), r"output: the hint 0 is a dimension and the value a bool"),
        ("text", Hint((0,)), "is a tuple of 1 and the value a str"),
        (A, Hint(0, 0), r"output: the hint \(0, 0\) is a tuple of 2 and the value a tensor"),
        ((A,), Hint(0, 0), "is a tuple of 2 and the value a tuple of 1"),
        ((A, A), Hint(a=0), "is a dict with the keys 'a' and the value a tuple of 2"),
        ({"a": A}, Hint(0, 0), "is a tuple of 2 and the value a dict with the keys 'a'"),
        (["a", "b"], Hint(0), "is a dimension and the value a list of 2"),
        (A, Hint(2), r"output: the hint says dimension 2 and the tensor is \(2, 3\)"),
        ([A, A[0]], Hint(1), r"output\[1\]: the hint says dimension 1"),
    ],
)
def test_a_hint_of_another_form_than_the_output(output: Any, hint: Hint, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        join([output, output], hint)


EITHER = (None, Hint((0, 0)))
"""No hint, and one for both outputs."""
EVERY = (*EITHER, Hint((0,)))
"""And one that says nothing about the second."""


@pytest.mark.parametrize(
    ("left", "right", "message", "hints"),
    [
        (A, [A], r"a tensor \(2, 3\) and a list of 1", EITHER),
        (A, None, r"a tensor \(2, 3\) and None", EITHER),
        (None, A, r"None and a tensor \(2, 3\)", EVERY),
        ((A, A), (A,), "a tuple of 2 and a tuple of 1", EVERY),
        ((A,), [A], "a tuple of 1 and a list of 1", EVERY),
        ({"a": A}, {"b": A}, "keys 'a' and a dict with the keys 'b'", EVERY),
        ([A], A, "a list of 1 and a tensor", EVERY),
        (1, True, r"an int \(1\) and a bool \(True\)", (None, Hint((0,)))),
    ],
)
def test_parts_that_returned_different_forms(
    left: Any, right: Any, message: str, hints: tuple[Hint | None, ...]
) -> None:
    for hint in hints:
        with pytest.raises(BatchError, match=rf"output\[1\]: the parts returned .*{message}"):
            join([(A, left), (B, right)], hint)


def test_keys_may_come_in_another_order() -> None:
    joined = join([{"a": A, "b": A}, {"b": B, "a": B + 1}], None)
    assert list(joined) == ["a", "b"]
    assert torch.equal(joined["a"], torch.cat([A, B + 1]))


def test_parts_padded_to_their_own_longest() -> None:
    with pytest.raises(BatchError, match=r"\(2, 3\), \(2, 5\).*pad to a fixed length") as refused:
        join([(A,), (torch.zeros(2, 5),)], None)
    assert "output[0]" in str(refused.value)
    assert "concat_output=False" in str(refused.value)
    with pytest.raises(BatchError, match=r"\(2, 3\), \(2, 3, 1\)"):
        join([A, A[..., None]], Hint(0))
    with pytest.raises(BatchError, match=r"\(2, 3\), \(1, 3\)"):
        join([A, B], Hint(-1))


def test_sizes_tell_what_does_not_hold_the_batch() -> None:
    table = torch.zeros(5, 2)
    outputs = [(A, table), (B, table)]
    with pytest.raises(BatchError, match=r"output\[1\] does not have one row for each") as refused:
        join(outputs, None, sizes=[2, 1])
    assert "parts of 2, 1 items returned (5, 2), (5, 2)" in str(refused.value)
    assert str(refused.value).endswith(EXAMPLE)
    joined = join(outputs, Hint((0, None)), sizes=[2, 1])
    assert torch.equal(joined[0], WHOLE)
    assert joined[1] is table
    # A hint is the user's word: found boxes are as many as there are.
    assert join(outputs, Hint(0), sizes=[2, 1])[1].shape == (10, 2)


def test_where_items_may_hide_nothing_is_dropped() -> None:
    packed = pack_padded_sequence(torch.zeros(2, 3, 1), [3, 2], batch_first=True)
    for make in (packed._replace, lambda: np.zeros(1), lambda: deque([A])):
        first = make()
        with pytest.raises(
            BatchError, match=r"output\[1\] is an? .*, which may hold items of the batch"
        ):
            join([(A, first), (B, make())], None)
        assert join([(A, first), (B, make())], Hint(0, None))[1] is first


@dataclasses.dataclass
class Answer:
    logits: Tensor


def test_a_dataclass_is_not_taken_for_equal() -> None:
    # Their tensors of one element compare as equal, so == alone would drop a part's.
    outputs = [Answer(torch.zeros(1)), Answer(torch.zeros(1))]
    with pytest.raises(BatchError, match=r"output is an Answer, which may hold items of the batch"):
        join(outputs, None)
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
