# SPDX-License-Identifier: Apache-2.0
"""A call is split into views with some of its items each, or one error says what hint to write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime_ext.streams.calls import arange, shares_storage
from torch import Tensor

from xruntime.errors import BatchError, HintError
from xruntime.streams.hints import EXAMPLE
from xruntime.streams.hints import MultiStreamModuleHint as Hint
from xruntime.streams.joining import join
from xruntime.streams.splitting import even_sizes, split

X, Y, Z = arange(4, 3), arange(4, 2) + 100, arange(4, 3, 2) + 200


def first_sizes(parts: list) -> list[int]:
    return [args[0].shape[0] for args, _ in parts]


@given(items=st.integers(0, 200), streams=st.integers(1, 40))
def test_even_sizes_differ_by_at_most_one(items: int, streams: int) -> None:
    sizes = even_sizes(items, streams)
    assert sum(sizes) == items
    assert len(sizes) == max(1, min(items, streams))
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_there_is_at_least_one_stream() -> None:
    with pytest.raises(BatchError, match="0 streams"):
        split((arange(4),), {}, None, 0)


@pytest.mark.parametrize(
    ("items", "streams", "sizes"),
    [
        (4, 2, [2, 2]),
        (4, 3, [2, 1, 1]),  # uneven: the first have one more
        (2, 3, [1, 1]),  # fewer items than streams
        (3, 3, [1, 1, 1]),
        (7, 3, [3, 2, 2]),
    ],
)
def test_one_tensor(items: int, streams: int, sizes: list[int]) -> None:
    x = arange(items, 5)
    for hint in (None, Hint(0), Hint(-2), Hint(0, 0)):
        parts = split((x,), {}, hint, streams)
        outputs = [args[0] * 2 for args, _ in parts]
        assert first_sizes(parts) == sizes
        assert all(kwargs == {} for _, kwargs in parts)
        assert all(shares_storage(args[0], x) for args, _ in parts)
        assert torch.equal(join(outputs, Hint(0)), x * 2)


@pytest.mark.parametrize(
    ("items", "streams"),
    [(1, 4), (5, 1), (0, 3), (0, 1)],
    ids=["item", "stream", "none", "neither"],
)
@pytest.mark.parametrize("keyword", [False, True])
def test_one_part_is_the_call_itself(items: int, streams: int, keyword: bool) -> None:
    args, kwargs = (arange(items, 2),), {"scale": 2.0} if keyword else {}
    for hint in (None, Hint(0)):
        ((part_args, part_kwargs),) = split(args, kwargs, hint, streams)
        assert part_args is args
        assert part_kwargs is kwargs


def test_a_parameter_is_a_tensor() -> None:
    x = torch.nn.Parameter(arange(4, 2))
    parts = split((x,), {}, None, 2)
    assert first_sizes(parts) == [2, 2]
    join([args[0] for args, _ in parts], None).sum().backward()
    assert torch.equal(x.grad, torch.ones(4, 2))


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_module_may_work_in_place_on_its_part_as_on_the_whole(
    gradients: bool, needs_gradient: bool
) -> None:
    weight = torch.nn.Parameter(torch.full((2,), 3.0))
    leaf = arange(4, 2).requires_grad_(needs_gradient)
    with torch.set_grad_enabled(gradients):
        x = leaf * 1
        parts = split((x,), {}, None, 2)
        for args, _ in parts:
            args[0].mul_(weight)
        joined = join([args[0] for args, _ in parts], None)
    assert torch.equal(joined, arange(4, 2) * 3)
    assert torch.equal(x, joined)
    assert joined.requires_grad == gradients
    if gradients:
        joined.sum().backward()
        assert torch.equal(weight.grad, arange(4, 2).sum(0))
        if needs_gradient:
            assert torch.equal(leaf.grad, torch.full((4, 2), 3.0))


@pytest.mark.parametrize("created", [True, False])
@pytest.mark.parametrize("used", [True, False])
def test_inference_mode(created: bool, used: bool) -> None:
    with torch.inference_mode(created):
        x = arange(4, 2)
    with torch.inference_mode(used):
        parts = split((x,), {}, None, 3)
        joined = join([args[0] for args, _ in parts], None)
    assert first_sizes(parts) == [2, 1, 1]
    assert torch.equal(joined, x)
    # As a single part would be.
    assert joined.is_inference() == parts[0][0][0].is_inference()


def test_a_table_beside_the_batch_needs_a_hint() -> None:
    with pytest.raises(BatchError) as refused:
        split((X, arange(3, 5)), {}, None, 2)
    message = str(refused.value)
    assert "args[0] 4 (dimension 0 of (4, 3)), args[1] 3 (dimension 0 of (3, 5))" in message
    assert "\n" not in message
    assert message.endswith(EXAMPLE)
    assert len(split((X, arange(3, 5)), {}, Hint(0, None), 2)) == 2


DIFFER, UNCOVERED = "hold different numbers of items", "does not cover"


@pytest.mark.parametrize(
    ("args", "kwargs", "hint", "said", "remedy"),
    [
        (
            (X, (Y, arange(1, 2))),
            {"mask": arange(4, 1), "names": ["a"]},
            None,
            [DIFFER, "args[0] 4", "args[1][0] 4", "args[1][1] 1", "kwargs['mask'] 4"],
            Hint(0, (0, None), mask=0, names=None),
        ),
        ((X, arange(1, 3), arange(1, 3)), {}, None, [DIFFER, "args[2] 1"], Hint(0, None, None)),
        (
            ({"a": X, "b": Y.t()},),
            {},
            Hint(0),
            [DIFFER, "args[0]['a'] 4", "args[0]['b'] 2"],
            Hint({"a": 0, "b": None}),
        ),
        (
            (X, Y),
            {},
            Hint(0, 1),
            [DIFFER, "args[0] 4 (dimension 0 of (4, 3)), args[1] 2 (dimension 1 of (4, 2))"],
            Hint(0, None),
        ),
        ((), {"x": X}, Hint(0), [UNCOVERED, "kwargs['x'] (4, 3)"], Hint(x=0)),
        ((X, Y), {}, Hint(0), [UNCOVERED, "args[1] (4, 2)"], Hint(0, 0)),
        ((Y.t(), X), {}, Hint(1), [UNCOVERED, "args[1] (4, 3)"], Hint(1, 0)),
        ((X, {"a": [Y]}), {}, Hint(0), [UNCOVERED, "args[1]['a'][0] (4, 2)"], Hint(0, 0)),
        (
            *((X, 3, {"a": Y, 1: 2}), {}, Hint(0), [UNCOVERED, "args[2]['a']"]),
            Hint(0, None, {"a": 0, 1: None}),
        ),
        (((X, Y), Z), {}, Hint((0,), None), [UNCOVERED, "args[0][1]"], Hint(0, None)),
        (
            *((X,), {"atention": Y}, Hint(0, attention=0), [UNCOVERED, "kwargs['atention']"]),
            Hint(0, atention=0),
        ),
    ],
)
def test_calls_that_need_another_hint(
    args: tuple, kwargs: dict, hint: Hint | None, said: list[str], remedy: Hint
) -> None:
    with pytest.raises(BatchError) as refused:
        split(args, kwargs, hint, 2)
    assert [text for text in said if text not in str(refused.value)] == []
    assert str(refused.value).endswith(EXAMPLE)
    assert len(split(args, kwargs, remedy, 2)) == 2


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        ((), None),
        ((3, "text", [1, 2]), None),
        ((torch.tensor(3.0),), None),
        ((X,), Hint(None)),
        ((None,), Hint(0)),
    ],
)
def test_a_call_without_a_batch(args: tuple, hint: Hint | None) -> None:
    with pytest.raises(BatchError, match="has nothing to split"):
        split(args, {}, hint, 2)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        (True, Hint(0, 0), r"args\[1\]: the hint 0 is a dimension and the value a bool \(True\)"),
        (
            "text",
            Hint(0, 0),
            r"args\[1\]: the hint 0 is a dimension and the value a str \('text'\)",
        ),
        (["a", "b"], Hint(0, 0), r"the hint 0 is a dimension and the value a list of 2"),
        (Y, Hint(0, (0, 0)), r"the hint \(0, 0\) is a tuple of 2 and the value a tensor \(4, 2\)"),
        (Y, Hint(0, {"a": 0}), r"is a dict with the keys 'a' and the value a tensor"),
        ((Y,), Hint(0, (0, 0)), r"is a tuple of 2 and the value a tuple of 1"),
        ((Y,), Hint(0, {"a": 0}), r"is a dict with the keys 'a' and the value a tuple of 1"),
        ({"a": Y}, Hint(0, (0,)), r"is a tuple of 1 and the value a dict with the keys 'a'"),
        (Y, Hint(0, 2), r"dimension 2 and the tensor is \(4, 2\).*\(-2 to 1\)"),
        (Y, Hint(0, -3), r"dimension -3 and the tensor is \(4, 2\)"),
        ([Y, Z], Hint(0, 2), r"args\[1\]\[0\]: the hint says dimension 2"),
        (torch.tensor(1.0), Hint(0, 0), r"dimension 0 and the tensor is \(\)"),
    ],
)
def test_a_hint_of_another_form_than_the_argument(value: Any, hint: Hint, message: str) -> None:
    with pytest.raises(BatchError, match=message) as refused:
        split((X, value), {}, hint, 2)
    assert "None" in str(refused.value)


def test_a_dimension_that_a_single_tensor_lacks() -> None:
    with pytest.raises(BatchError, match=r"args\[0\]: the hint says dimension 2"):
        split((X,), {}, Hint(2), 2)


@pytest.mark.parametrize("hint", ["foo", 0, (0,), True])
@pytest.mark.parametrize("args", [(X,), (X, Y)])
def test_what_is_no_hint(hint: Any, args: tuple) -> None:
    with pytest.raises(HintError, match=r"is not a hint: give a MultiStreamModuleHint"):
        split(args, {}, hint, 2)
    with pytest.raises(HintError, match=r"is not a hint"):
        join([args, args], hint)


def test_a_hint_may_describe_arguments_that_are_not_given() -> None:
    hint = Hint(0, 0, mask=0)
    assert first_sizes(split((X,), {}, hint, 2)) == [2, 2]
    assert first_sizes(split((X, Y), {"flag": True}, hint, 2)) == [2, 2]


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.eye(4).to_sparse(), "sparse_coo"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
    ],
)
def test_sparse_and_ragged_tensors(tensor: Tensor, kind: str) -> None:
    for args, hint in [((tensor,), None), ((X, tensor), Hint(0, 0)), ((X, [tensor]), None)]:
        with pytest.raises(BatchError, match=f"is a {kind} tensor, and only dense ones"):
            split(args, {}, hint, 2)
    with pytest.raises(BatchError, match=r"does not cover .* args\[1\]"):
        split((X, tensor), {}, Hint(0), 2)
    parts = split((X, tensor), {}, Hint(0, None), 2)
    assert all(args[1] is tensor for args, _ in parts)
    with pytest.raises(BatchError, match=f"output is a {kind} tensor"):
        join([tensor, tensor], None)
