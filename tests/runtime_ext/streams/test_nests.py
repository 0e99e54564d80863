# SPDX-License-Identifier: Apache-2.0
"""Nests come back as the types that they were, and what cannot be looked into is not passed whole."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections import OrderedDict, UserDict, defaultdict, deque
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.streams.calls import Pair, arange, assert_same
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from xruntime.errors import BatchError
from xruntime.streams.hints import MultiStreamModuleHint as Hint
from xruntime.streams.joining import join
from xruntime.streams.splitting import split

X, Y, Z = arange(4, 3), arange(4, 2) + 100, arange(4, 3, 2) + 200


class Tagged(dict):
    """A dict with something besides its values."""

    tag = "none"


class Rows(list):
    """A list with something besides its values."""

    tag = "none"


@dataclasses.dataclass
class Inputs:
    ids: Tensor
    flag: bool = False


@pytest.mark.parametrize(
    "value",
    [
        Inputs(Y),
        {Y},
        frozenset([Y]),
        deque([(Y, 1)]),
        MappingProxyType({"a": [Y]}),
        np.zeros((4, 2)),
        pack_padded_sequence(Z, [3, 3, 2, 1], batch_first=True),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("hint", [None, Hint(0)])
def test_what_may_hide_items_is_not_passed_whole(value: Any, hint: Hint | None) -> None:
    with pytest.raises(BatchError, match=r"args\[1\] is an? .*, which may hold items of the batch"):
        split((X, value), {}, hint, 2)
    parts = split((X, value), {}, Hint(0, None), 2)
    assert all(args[1] is value for args, _ in parts)


@pytest.mark.parametrize("value", [np.float32(2), Inputs, torch.Size([4, 3]), {"a", "b"}, object()])
def test_what_hides_nothing_is_passed_whole(value: Any) -> None:
    parts = split((X, value), {}, None, 2)
    assert all(args[1] is value for args, _ in parts)


def tagged(kind: type, *values: Any) -> Any:
    made = kind(*values)
    made.tag = "kept"
    return made


@pytest.mark.parametrize(
    "value",
    [
        [X, Y],
        (X, Y),
        Pair(X, {"deep": [Y, True]}),
        {"b": X, "a": Y},
        OrderedDict(b=X, a=Y),
        defaultdict(list, {"b": X, "a": Y}),
        torch.max(Z, 2),
        tagged(Tagged, {"b": X, "a": Y}),
        tagged(Rows, [X, Y]),
        UserDict(b=X, a=Y),
        {1: X, (2, "x"): (Y, None)},
    ],
    ids=lambda value: type(value).__name__,
)
def test_types_are_kept(value: Any) -> None:
    parts = split((value,), {}, None, 3)
    assert [type(args[0]) for args, _ in parts] == [type(value)] * 3
    again = join([args[0] for args, _ in parts], None)
    if isinstance(value, UserDict):
        again, value = again.data, value.data
    assert_same(again, value)
    for attribute in ("tag", "default_factory"):
        assert getattr(again, attribute, None) == getattr(value, attribute, None)


def test_a_hint_may_name_the_fields_of_a_named_tuple() -> None:
    value = Pair(X, arange(2, 2))
    for hint in (Hint({"left": 0, "right": None}), Hint((0, None))):
        parts = split((value,), {}, hint, 2)
        assert [type(args[0]) for args, _ in parts] == [Pair, Pair]
        assert all(args[0].right is value.right for args, _ in parts)
        assert_same(join([args[0] for args, _ in parts], hint), value)


def test_a_class_that_cannot_be_made_anew() -> None:
    class Odd(tuple):
        __slots__ = ()

        def __new__(cls, left: Any, right: Any) -> Odd:
            return super().__new__(cls, (left, right))

    with pytest.raises(BatchError, match=r"args\[0\]: a Odd cannot be rebuilt"):
        split((Odd(X, Y),), {}, None, 2)


def test_what_is_passed_whole_is_the_same_object() -> None:
    names, table = ["a", "b"], {"k": [1]}
    parts = split((X, names), {"table": table, "y": Y}, None, 4)
    for args, kwargs in parts:
        assert args[1] is names
        assert kwargs["table"] is table
        assert list(kwargs) == ["table", "y"]


def test_the_classes_of_transformers(needs: Needs) -> None:
    needs(importlib.util.find_spec("transformers"), "transformers")
    from transformers import BatchEncoding
    from transformers.modeling_outputs import BaseModelOutput, QuestionAnsweringModelOutput

    encoded = BatchEncoding({"input_ids": X.long(), "attention_mask": X.bool()})
    parts = split((encoded,), {}, None, 3)
    assert all(type(args[0]) is BatchEncoding for args, _ in parts)
    assert [args[0]["input_ids"].shape[0] for args, _ in parts] == [2, 1, 1]
    by_keyword = split((), dict(encoded), None, 3)
    assert [list(kwargs) for _, kwargs in by_keyword] == [["input_ids", "attention_mask"]] * 3
    assert_same(dict(join([args[0] for args, _ in parts], None)), dict(encoded))

    answers = [
        QuestionAnsweringModelOutput(start_logits=X[:2], end_logits=Z[:2]),
        QuestionAnsweringModelOutput(start_logits=X[2:], end_logits=Z[2:]),
    ]
    for hint in (None, Hint(0), Hint(start_logits=0, end_logits=0)):
        joined = join(answers, hint)
        assert type(joined) is QuestionAnsweringModelOutput
        assert torch.equal(joined.start_logits, X)
        assert torch.equal(joined["end_logits"], Z)
        assert torch.equal(joined[1], Z)
        assert joined.loss is None
    assert answers[0].start_logits.shape == (2, 3)  # the parts are untouched

    states = [
        BaseModelOutput(last_hidden_state=half, hidden_states=(half, half + 1))
        for half in (X[:2], X[2:])
    ]
    joined = join(states, None)
    assert_same(joined.hidden_states, (X, X + 1))
    with pytest.raises(BatchError, match="without dimensions"):
        join([QuestionAnsweringModelOutput(loss=x.sum(), start_logits=x) for x in (X, Y)], None)
