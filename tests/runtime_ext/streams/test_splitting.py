# SPDX-License-Identifier: Apache-2.0
"""A call is split into views with some of its items each, or one error says what hint to write."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import Golden
from tests.runtime_ext.streams.calls import arange, shares_storage

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


def test_calls_that_need_another_hint(golden: Golden) -> None:
    """The calls, their hints, and those that cure them."""
    calls = [
        ((X, arange(3, 5)), {}, None, Hint(0, None)),  # a table beside the batch
        (
            *((X, (Y, arange(1, 2))), {"mask": arange(4, 1), "names": ["a"]}, None),
            Hint(0, (0, None), mask=0, names=None),
        ),
        ((X, arange(1, 3), arange(1, 3)), {}, None, Hint(0, None, None)),
        (({"a": X, "b": Y.t()},), {}, Hint(0), Hint({"a": 0, "b": None})),
        ((X, Y), {}, Hint(0, 1), Hint(0, None)),
        ((), {"x": X}, Hint(0), Hint(x=0)),
        ((X, Y), {}, Hint(0), Hint(0, 0)),
        ((Y.t(), X), {}, Hint(1), Hint(1, 0)),
        ((X, {"a": [Y]}), {}, Hint(0), Hint(0, 0)),
        ((X, 3, {"a": Y, 1: 2}), {}, Hint(0), Hint(0, None, {"a": 0, 1: None})),
        (((X, Y), Z), {}, Hint((0,), None), Hint(0, None)),
        ((X,), {"atention": Y}, Hint(0, attention=0), Hint(0, atention=0)),
    ]
    golden.errors(
        *[partial(split, args, kwargs, hint, 2) for args, kwargs, hint, _ in calls],
        hide=re.escape(EXAMPLE),
    )
    for args, kwargs, _, remedy in calls:
        assert len(split(args, kwargs, remedy, 2)) == 2


def test_what_cannot_be_split(golden: Golden) -> None:
    without_batch = [
        ((), None), ((3, "text", [1, 2]), None), ((torch.tensor(3.0),), None), ((X,), Hint(None)), ((None,), Hint(0)),
    ]  # fmt: skip
    other_forms: list[tuple[Any, Hint]] = [
        (True, Hint(0, 0)), ("text", Hint(0, 0)), (["a", "b"], Hint(0, 0)), (Y, Hint(0, (0, 0))),
        (Y, Hint(0, {"a": 0})), ((Y,), Hint(0, (0, 0))), ((Y,), Hint(0, {"a": 0})), ({"a": Y}, Hint(0, (0,))),
        (Y, Hint(0, 2)), (Y, Hint(0, -3)), ([Y, Z], Hint(0, 2)), (torch.tensor(1.0), Hint(0, 0)),
    ]  # fmt: skip
    golden.errors(
        lambda: split((arange(4),), {}, None, 0),
        *[partial(split, args, {}, hint, 2) for args, hint in without_batch],
        *[partial(split, (X, value), {}, hint, 2) for value, hint in other_forms],
        lambda: split((X,), {}, Hint(2), 2),
        *[partial(split, (X, Y), {}, hint, 2) for hint in ("foo", 0, (0,), True)],
        lambda: split((X,), {}, "foo", 2),
        *[partial(join, [(X,), (X,)], hint) for hint in ("foo", 0)],
        hide=re.escape(EXAMPLE),
    )


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_sparse_and_ragged_tensors(golden: Golden, kind: str) -> None:
    tensor = torch.eye(4).to_sparse()
    if kind == "ragged":
        rows = [torch.ones(2), torch.ones(3)]
        tensor = torch.nested.nested_tensor(rows, layout=torch.jagged)
    parts = split((X, tensor), {}, Hint(0, None), 2)
    assert all(args[1] is tensor for args, _ in parts)
    golden.errors(
        lambda: split((tensor,), {}, None, 2),
        lambda: split((X, tensor), {}, Hint(0, 0), 2),
        lambda: split((X, [tensor]), {}, None, 2),
        lambda: split((X, tensor), {}, Hint(0), 2),
        lambda: join([tensor, tensor], None),
        hide=re.escape(EXAMPLE),
    )
