# SPDX-License-Identifier: Apache-2.0
"""Parts that a module answered are joined into its answer to the whole call."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime_ext.stream_threads import in_threads
from tests.runtime_ext.streams.calls import Pair, arange, assert_same, shares_storage
from torch import Tensor

from xruntime.streams.hints import MultiStreamModuleHint as Hint
from xruntime.streams.joining import join
from xruntime.streams.splitting import count_items, even_sizes, split


class Case(NamedTuple):
    """A call, a module's answer to it, and the hints that describe both."""

    module: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: Hint
    outputs: Hint
    plain: bool = True
    """Whether the call works without hints, too."""


X, Y, Z = arange(4, 3), arange(4, 2) + 100, arange(4, 3, 2) + 200

CASES = {
    "dict of keywords in, dict out": Case(
        lambda *, x, y: {"a": x + 1, "b": y}, (), {"x": X, "y": Y}, Hint(x=0, y=0), Hint(a=0, b=0)
    ),
    "tensor and dict out": Case(lambda x: (x, {"a": x * 2}), (X,), {}, Hint(0), Hint(0, {"a": 0})),
    "tensor and dict out, by keyword": Case(
        lambda x: (x, {"a": x * 2}), (X,), {}, Hint(0), Hint(0, a=0)
    ),
    "a bool passes through": Case(
        lambda x, flag, y: (x + y, flag, y), (X, True, X), {}, Hint(0, None, 0), Hint(0, None, 0)
    ),
    "one tuple of three": Case(
        lambda t: (t[0], t[1], t[2]), ((X, Y, Z),), {}, Hint((0, 0, 0)), Hint((0, 0, 0))
    ),
    "one tuple of three, as one hint": Case(
        lambda t: (t[0], t[1], t[2]), ((X, Y, Z),), {}, Hint(0), Hint(0)
    ),
    "one dict": Case(
        lambda d: {key: value + 1 for key, value in d.items()},
        ({"x": X, "y": Y},),
        {},
        Hint({"x": 0, "y": 0}),
        Hint({"x": 0, "y": 0}),
    ),
    "nested tuples": Case(lambda t: t, (((X, Y), Z),), {}, Hint(((0, 0), 0)), Hint(((0, 0), 0))),
    "nested tuples, as lists": Case(
        lambda t: t, (((X, Y), Z),), {}, Hint([[0, 0], 0]), Hint([[0, 0], 0])
    ),
    "three positional": Case(
        lambda x, y, z: (x, y, z), (X, Y, Z), {}, Hint(0, 0, 0), Hint(0, 0, 0)
    ),
    "keywords only, two out": Case(
        lambda *, ids, mask: (ids * mask, ids.sum(1)),
        (),
        {"ids": X, "mask": X},
        Hint(ids=0, mask=0),
        Hint(0, 0),
    ),
    "positional and keyword": Case(
        lambda x, y=None, scale=1: x.sum(1) * scale + y.sum(1),
        (X,),
        {"y": Y, "scale": 3},
        Hint(0, y=0),
        Hint(0),
    ),
    "dimension 1 for some": Case(
        lambda x, y: (x * 2, y.t() + x[:, :2]),
        (X, Y.t()),
        {},
        Hint(0, 1),
        Hint(0, 0),
        plain=False,
    ),
    "dimension 1 out": Case(
        lambda x, y: (x * 2, y), (X, Y.t()), {}, Hint(0, -1), Hint(0, 1), plain=False
    ),
    "a table that all streams need": Case(
        lambda x, table: x @ table, (X, arange(3, 5)), {}, Hint(0, None), Hint(0), plain=False
    ),
    "an absent argument and output": Case(
        lambda x, y=None: (x, y), (X,), {"y": None}, Hint(0, y=0), Hint(0, 0)
    ),
    "a scalar tensor": Case(
        lambda x, scale: x * scale, (X, torch.tensor(2.0)), {}, Hint(0), Hint(0)
    ),
    "a half-described tuple": Case(
        lambda x, rest: (x, rest), (X, (2, "b", None)), {}, Hint(0), Hint(0)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_joined_parts_are_the_call(name: str) -> None:
    case = CASES[name]
    expected = case.module(*case.args, **case.kwargs)
    for inputs, outputs in [(case.inputs, case.outputs), (None, None)][: 1 + case.plain]:
        for streams in (1, 3, 6):
            parts = split(case.args, case.kwargs, inputs, streams)
            assert len(parts) == min(streams, 4)
            sizes = even_sizes(4, streams)
            returned = [case.module(*part_args, **part_kwargs) for part_args, part_kwargs in parts]
            assert_same(join(returned, outputs, sizes=sizes), expected)
            assert join(returned, outputs, concat=False) == returned


@st.composite
def nests(draw: st.DrawFn, items: int) -> tuple[Any, Any]:
    """A nest whose tensors hold `items` along some dimension, and the hint that says which."""
    kind = draw(st.sampled_from(["tensor", "tensor", "value", "tuple", "list", "dict", "pair"]))
    if kind == "tensor":
        dims = draw(st.integers(1, 3))
        dim = draw(st.integers(0, dims - 1))
        shape = [draw(st.integers(1, 3)) for _ in range(dims)]
        shape[dim] = items
        tensor = arange(*shape)
        if draw(st.booleans()):
            tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1)
        return tensor, dim - draw(st.sampled_from([0, dims]))
    if kind == "value":
        return draw(st.sampled_from([True, 3, "text", None, 2.5])), None
    if kind == "pair":
        (left, left_hint), (right, right_hint) = draw(nests(items)), draw(nests(items))
        return Pair(left, right), (left_hint, right_hint)
    inner = draw(st.lists(nests(items), max_size=3))
    values, hints = [value for value, _ in inner], [hint for _, hint in inner]
    if kind == "dict":
        keys = [f"k{index}" for index in range(len(inner))]
        return dict(zip(keys, values, strict=True)), dict(zip(keys, hints, strict=True))
    return (tuple(values), tuple(hints)) if kind == "tuple" else (values, hints)


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for inner in value.values() for tensor in tensors_of(inner)]
    if isinstance(value, (tuple, list)):
        return [tensor for inner in value for tensor in tensors_of(inner)]
    return []


@given(data=st.data(), items=st.integers(0, 7), streams=st.integers(1, 5))
def test_joining_undoes_splitting(data: st.DataObject, items: int, streams: int) -> None:
    inner = data.draw(st.lists(nests(items), min_size=1, max_size=3))
    named = data.draw(st.dictionaries(st.sampled_from(["x", "y"]), nests(items), max_size=2))
    # One tensor at least, so that there is something to split.
    args = (arange(items, 2), *(value for value, _ in inner))
    kwargs = {name: value for name, (value, _) in named.items()}
    hint = Hint(
        0, *(hint for _, hint in inner), **{name: hint for name, (_, hint) in named.items()}
    )
    sizes = even_sizes(items, streams)
    parts = split(args, kwargs, hint, streams)

    assert count_items(args, kwargs, hint) == items
    assert len(parts) == len(sizes)
    assert [part_args[0].shape[0] for part_args, _ in parts] == sizes
    whole = tensors_of((args, kwargs))
    for part in parts:
        views = tensors_of(part)
        assert len(views) == len(whole)
        for view, tensor in zip(views, whole, strict=True):
            assert shares_storage(view, tensor)
            assert view.stride() == tensor.stride()
    # The hint of the arguments describes them as outputs, too: a tuple, and the dict at its end.
    outputs = [(*part_args, part_kwargs) for part_args, part_kwargs in parts]
    again = join(outputs, Hint((*hint.args, hint.kwargs)), sizes=sizes)
    assert_same(again, (*args, kwargs))
    # A part that is changed shows in the whole: no copy was made on the way.
    for part_args, _ in parts:
        part_args[0].fill_(-1.0)
    assert bool((args[0] == -1).all())


def test_nothing_of_a_call_is_kept() -> None:
    x = arange(6, 2)
    gone = weakref.ref(x)
    parts = split((x, {"a": x}), {}, None, 3)
    joined = join([args[0] for args, _ in parts], None)
    del x, parts
    gc.collect()
    assert gone() is None
    assert joined.shape == (6, 2)


def test_threads_split_and_join_at_once() -> None:
    hint = Hint(0, {"a": 0})
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        start.wait()
        for turn in range(100):
            x = arange(2 + (seed + turn) % 5, 2) + seed
            parts = split((x, {"a": x + 1}), {}, hint, 3)
            left, right = join([(*args,) for args, _ in parts], hint)
            assert torch.equal(left, x)
            assert torch.equal(right["a"], x + 1)

    in_threads(work, range(0, 400, 100))
