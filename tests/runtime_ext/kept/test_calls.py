# SPDX-License-Identifier: Apache-2.0
"""Which calls are alike, and for which sizes code is asked for and used."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from xruntime.kept.calls import Nest, Pattern, ServedSizes, flat_call


def form(*args: Any, **kwargs: Any) -> Any:
    call = flat_call(args, kwargs)
    return None if call is None else call.form


def test_sizes_are_no_part_of_a_form_and_all_else_is() -> None:
    image = torch.zeros(2, 3, 4, 4)
    assert form(torch.zeros(2, 3)) == form(torch.ones(5, 1))
    assert hash(form(torch.zeros(2, 3))) == hash(form(torch.ones(5, 1)))
    different = [
        form(torch.zeros(2, 3)),
        form(torch.zeros(2)),
        form(torch.zeros(2, 3, dtype=torch.int64)),
        form(torch.zeros(2, 3), 1),
        form(torch.zeros(2, 3), 2),
        form(torch.zeros(2, 3), True),
        form(torch.zeros(2, 3), 0.0),
        form(torch.zeros(2, 3), -0.0),
        form(torch.zeros(2, 3), torch.channels_last),
        form([torch.zeros(2, 3)]),
        form(values=torch.zeros(2, 3)),
        form(image),
        form(image.to(memory_format=torch.channels_last)),
    ]
    assert len(set(different)) == len(different)
    assert form(float("nan")) == form(float("nan"))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_calls_that_no_kept_code_serves() -> None:
    class Own(torch.Tensor):
        pass

    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    others = (Own(), torch.zeros(2, 2).to_sparse(), torch.zeros(2, device="meta"), nested, object())
    assert [form(value) for value in others] == [None] * len(others)


def test_tensors_with_gaps_are_closed_up() -> None:
    wide = torch.arange(16.0).reshape(4, 4)
    call = flat_call((wide[:, ::2], wide.t()), {})
    assert [tensor.is_contiguous() for tensor in call.tensors] == [True, True]
    assert torch.equal(call.tensors[0], wide[:, ::2])
    assert torch.equal(call.tensors[1], wide.t())


def test_what_differed_may_vary() -> None:
    one = Pattern.of([((32, 7), (32,))])
    assert one.dims == ((32, 7), (32,))
    # The last batch may be a smaller one.
    assert Pattern.of([((32, 7), (1,)), ((32, 9), (1,))]).dims == ((None, None), (1,))
    some = Pattern.of([((32, 7, 4), (1,)), ((32, 9, 4), (1,))])
    assert some.dims == ((None, None, 4), (1,))
    assert some.described() == "?x?x4, 1"
    assert some.suits(((2, 3, 4), (1,)))
    assert not some.suits(((1, 3, 4), (1,)))  # torch treats 1 on its own
    assert not some.suits(((2, 3, 5), (1,)))
    assert one.suits(((32, 7), (32,)))


def test_sizes_that_code_serves() -> None:
    served = ServedSizes([["a", 3], ["a"]], {"a": (2, 15)}, ["a % 2 == 0"])
    assert served.fits(((4, 3), (4,)))
    assert not served.fits(((4, 3), (6,)))  # the same name, another size
    assert not served.fits(((4, 5), (4,)))
    assert not served.fits(((16, 3), (16,)))  # above the range
    assert not served.fits(((1, 3), (1,)))
    assert not served.fits(((5, 3), (5,)))  # the condition
    assert not served.fits(((4, 3),))
    assert not served.fits(((4, 3, 1), (4,)))
    assert ServedSizes([["a"]], {"a": (2, None)}, ()).fits(((10**9,),))
    assert served.pattern.described() == "?x3, ?"
    for condition in (
        "max(1, a // 2) == 2",
        "min(a, 5) == math.ceil(4.5)",
        "abs(a) >= torch.sym_float(a)",
    ):
        assert ServedSizes([["a"]], {"a": (2, None)}, [condition]).fits(((5,),))
    with pytest.raises(ValueError, match="names 'b', which is unknown"):
        ServedSizes([["a"]], {"a": (2, None)}, ["a == 2 or a < b"])
    with pytest.raises(ValueError, match="no expression"):
        ServedSizes([["a"]], {"a": (2, None)}, ["a <"])


class Pair(NamedTuple):
    first: Any
    second: Any


def test_outputs_are_built_like_the_example() -> None:
    example = {"a": Pair(torch.zeros(2), 7), "b": [None, torch.zeros(3)]}
    outputs = Nest.like(example)
    assert outputs.refusal is None
    assert outputs.tensors == 2
    one, other = torch.ones(2), torch.ones(3)
    built = outputs.rebuilt([one, other])
    assert type(built["a"]) is Pair
    assert built["a"].first is one
    assert built["a"].second == 7
    assert built["b"][0] is None
    assert built["b"][1] is other


def test_outputs_of_another_class_are_refused() -> None:
    class Found:
        def __init__(self) -> None:
            self.values = torch.zeros(2)

    assert "Found" in (Nest.like((torch.zeros(2), Found())).refusal or "")
