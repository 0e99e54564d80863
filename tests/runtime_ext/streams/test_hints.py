# SPDX-License-Identifier: Apache-2.0
"""A hint is a value: checked at once, comparable, unchangeable, and printed as the code that makes it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from xlaunch.errors import XLaunchError
from xruntime.errors import HintError
from xruntime.streams.hints import MultiStreamModuleHint as Hint

NODES = st.recursive(
    st.none() | st.integers(-4, 4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)
HINTS = st.tuples(
    st.lists(NODES, max_size=3), st.dictionaries(st.text(min_size=1, max_size=4), NODES, max_size=2)
).filter(any)


@given(HINTS)
@example(([], {"ª": 0}))  # Python reads it as "a"
def test_the_representation_is_the_code_that_makes_it(hint_of: tuple[list, dict]) -> None:
    args, kwargs = hint_of
    hint = Hint(*args, **kwargs)
    again = eval(repr(hint), {"MultiStreamModuleHint": Hint})
    assert again == hint
    assert hash(again) == hash(hint)


@given(HINTS)
def test_copies_are_equal(hint_of: tuple[list, dict]) -> None:
    args, kwargs = hint_of
    hint = Hint(*args, **kwargs)
    for made in (copy.copy(hint), copy.deepcopy(hint), pickle.loads(pickle.dumps(hint))):
        assert made == hint
        assert hash(made) == hash(hint)
        with pytest.raises(TypeError, match="cannot be changed"):
            made.kwargs["more"] = 0


@pytest.mark.parametrize(
    ("hint", "written"),
    [
        (Hint(0), "MultiStreamModuleHint(0)"),
        (Hint(0, None, -1), "MultiStreamModuleHint(0, None, -1)"),
        (Hint([0, [1]]), "MultiStreamModuleHint((0, (1,)))"),
        (Hint(0, {"a": None}), "MultiStreamModuleHint(0, {'a': None})"),
        (Hint(mask=0, ids=1), "MultiStreamModuleHint(mask=0, ids=1)"),
        (Hint(0, **{"my-mask": 1}), "MultiStreamModuleHint(0, **{'my-mask': 1})"),
    ],
)
def test_representations(hint: Hint, written: str) -> None:
    assert repr(hint) == written


def test_what_means_the_same_is_equal() -> None:
    assert Hint([0, 1], a=[0]) == Hint((0, 1), a=(0,))
    assert Hint(OrderedDict(a=0, b=1)) == Hint({"b": 1, "a": 0})
    assert len({Hint(0), Hint(0), Hint(1), Hint(None), Hint(a=0)}) == 4
    assert Hint(0) != 0


@pytest.mark.parametrize(
    ("hint", "whole"),
    [
        (Hint(0), 0),
        (Hint((0, 0)), (0, 0)),
        (Hint(0, None), (0, None)),
        (Hint(a=0, b=1), {"a": 0, "b": 1}),
        (Hint(0, a=1), (0, {"a": 1})),
        (Hint(0, {"a": 1}), (0, {"a": 1})),
    ],
)
def test_a_hint_of_a_return_value(hint: Hint, whole: object) -> None:
    assert hint.whole == whole


def test_later_changes_of_what_it_was_made_from_do_not_reach_it() -> None:
    inner = {"a": [0, 1]}
    hint = Hint(inner)
    inner["a"].append(2)
    inner["b"] = None
    assert hint == Hint({"a": [0, 1]})


@pytest.mark.parametrize(
    "change",
    [
        lambda hint: setattr(hint, "args", ()),
        lambda hint: delattr(hint, "args"),
        lambda hint: hint.kwargs.update(b=0),
        lambda hint: hint.kwargs.pop("a"),
        lambda hint: hint.kwargs.clear(),
        lambda hint: hint.kwargs.setdefault("b", 0),
        lambda hint: hint.kwargs.__ior__({"b": 0}),
        lambda hint: hint.kwargs.__delitem__("a"),
        lambda hint: hint.args[0].popitem(),
    ],
)
def test_it_cannot_be_changed(change: Callable[[Hint], object]) -> None:
    hint = Hint({"x": 0}, a=0)
    with pytest.raises((TypeError, dataclasses.FrozenInstanceError)):
        change(hint)
    assert hint == Hint({"x": 0}, a=0)


@pytest.mark.parametrize(
    ("make", "place", "what"),
    [
        (lambda: Hint("0"), "argument 0", "'0', a str"),
        (lambda: Hint(0, True), "argument 1", "True, a bool"),
        (lambda: Hint(0.0), "argument 0", "0.0, a float"),
        (lambda: Hint((0, [None, "x"])), "argument 0[1][1]", "'x', a str"),
        (lambda: Hint(mask={"a": {0}}), "keyword 'mask'['a']", "a set"),
        (lambda: Hint(torch.zeros(2, 2)), "argument 0", "a Tensor"),
        (lambda: Hint(Hint(0)), "argument 0", "a MultiStreamModuleHint"),
    ],
)
def test_anything_else_is_refused_at_once(make: Callable[[], Hint], place: str, what: str) -> None:
    with pytest.raises(HintError) as refused:
        make()
    message = str(refused.value)
    assert f"{place}: {what} is not a hint" in message
    assert "Allowed are an int" in message
    assert "\n" not in message
    assert isinstance(refused.value, (TypeError, XLaunchError))


def test_a_hint_of_nothing_is_refused() -> None:
    with pytest.raises(HintError, match="is empty"):
        Hint()
