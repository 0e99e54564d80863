# SPDX-License-Identifier: Apache-2.0
"""Every change of a module that its outputs may depend on is seen before its next call."""

from __future__ import annotations

import array
import copy
import ctypes
import functools
import random
import weakref
from collections.abc import Callable, Iterator
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from tests.golden import Golden
from tests.runtime_ext.optimization.random_models import Slotted, closure
from torch import nn

from xruntime import native
from xruntime.kept.watched_state import WatchedState
from xruntime.native import CObjects, CWord


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)
        self.config = SimpleNamespace(return_all=False)
        self.layers = [self.head]
        self.scale = torch.ones(())
        self.flag = None
        self.steps = [{"t": 1.0}]
        self.fixed = ({"t": 1.0},)
        self.deep = SimpleNamespace(head=SimpleNamespace(t=1.0))
        self.slotted = Slotted(1.0)
        self.activation = Activation()
        self.bound = Activation().scaled
        self.partial = functools.partial(torch.mul, other=Activation())
        self.closure, self.set_closure = closure(1.0)
        self.array = array.array("d", [1.0])


class Activation:
    def __init__(self) -> None:
        self.t = 1.0

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.t

    def scaled(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.t


def load(net: Net) -> None:
    net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()})


def merge(net: Net) -> None:
    net.head.weight.data += 1.0  # as adapters are merged


CHANGES: dict[str, Callable[[Net], object]] = {
    "training mode": lambda net: net.train(),
    "training mode of a part": lambda net: net.body[1].train(),
    "precision": lambda net: net.bfloat16(),
    "weights loaded": load,
    "weight replaced": lambda net: setattr(net.head, "weight", nn.Parameter(torch.ones(2, 4))),
    "weight in place": lambda net: net.head.weight.mul_(2),
    "one value of a weight": lambda net: net.head.weight[0].fill_(2),
    "weight through .data": merge,
    "data replaced": lambda net: setattr(net.head.weight, "data", torch.ones(2, 4)),
    "buffer": lambda net: net.body[1].running_mean.add_(1),
    "plain tensor": lambda net: net.scale.mul_(2),
    "layer replaced": lambda net: setattr(net, "head", nn.Linear(4, 2)),
    "layer added": lambda net: net.body.append(nn.ReLU()),
    "layer removed": lambda net: net.body.pop(1),
    "forward hook": lambda net: net.head.register_forward_hook(lambda *_: None),
    "forward pre-hook": lambda net: net.register_forward_pre_hook(lambda *_: None),
    "attribute": lambda net: setattr(net, "flag", 3),
    "new attribute": lambda net: setattr(net.head, "scale", 3),
    "forward replaced": lambda net: setattr(net.head, "forward", lambda x: x),
    "configuration": lambda net: setattr(net.config, "return_all", True),
    "list": lambda net: net.layers.append(net.head),
    "dict in a list": lambda net: net.steps[0].update(t=2.0),
    "dict in a tuple": lambda net: net.fixed[0].update(t=2.0),
    "object in an object": lambda net: setattr(net.deep.head, "t", 2.0),
    "slot": lambda net: setattr(net.slotted, "factor", 2.0),
    "callable object": lambda net: setattr(net.activation, "t", 2.0),
    "object of a bound method": lambda net: setattr(net.bound.__self__, "t", 2.0),
    "object in a partial": lambda net: setattr(net.partial.keywords["other"], "t", 2.0),
    "closure": lambda net: net.set_closure(2.0),
    "array": lambda net: net.array.__setitem__(0, 2.0),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_change_is_seen(change: str, inference: bool):
    uncounted = {"one value of a weight"} if inference else set()
    with torch.inference_mode(inference), torch.no_grad():
        net = Net().eval()
        state = WatchedState(net)
        assert state.change() is None
        CHANGES[change](net)
        seen = state.change()
    if change not in uncounted:
        assert seen is not None


def test_zero_has_a_sign_and_nan_equals_itself():
    net = Net().eval()
    net.shift, net.limit = 0.0, float("nan")
    state = WatchedState(net)
    net.limit = float("nan")
    assert state.change() is None
    net.shift = -0.0
    assert "shift" in (state.change() or "")


def test_calls_and_reading_change_nothing():
    net = Net().eval()
    state = WatchedState(net)
    with torch.inference_mode():
        net.head(net.body(torch.ones(3, 4)))
    net.state_dict()
    net.eval().requires_grad_(False)
    list(net.parameters())
    assert state.change() is None


def test_odd_tensors_are_watched():
    net = nn.Module()
    net.register_buffer("empty", torch.empty(0))
    net.register_buffer("byte", torch.zeros(3, dtype=torch.uint8))
    net.register_buffer("expanded", torch.zeros(1).expand(1000, 1000))
    net.register_buffer("nan", torch.full((5,), torch.nan))
    net.register_buffer("last", torch.zeros(100, 7).t()[3:])
    net.register_buffer("sparse", torch.eye(3).to_sparse())
    state = WatchedState(net)
    assert state.change() is None
    net.byte.data.fill_(1)
    assert state.change() == "byte was changed"


def test_views_of_dicts_are_watched() -> None:
    net, behind = nn.Module(), {"t": 1.0}
    net.settings = MappingProxyType(behind)
    state = WatchedState(net)
    assert state.change() is None
    behind["t"] = 2.0
    assert state.change() == "settings was changed"
    behind.clear()
    assert state.change() == "settings was changed"


def test_change_that_was_undone_is_forgotten_where_nothing_counts_it():
    net = Net().eval()
    state = WatchedState(net)
    handle = net.head.register_forward_hook(lambda *_: None)
    assert state.change() == f"head._forward_hooks.{handle.id} was changed"
    handle.remove()
    assert state.change() is None


def test_everything_is_restored_but_parameters():
    net = Net().eval()
    before = copy.deepcopy(net.steps), net.slotted.factor, net.body[1].running_mean.clone()
    state = WatchedState(net, copies=True)
    net.steps.append(3)
    net.steps[0]["t"] = 2.0
    net.slotted.factor, net.activation.t, net.extra = 2.0, 2.0, 5
    net.set_closure(7.0)
    net.array[0] = 4.0
    net.body[1].running_mean.add_(1)
    net.body[1].running_var = torch.zeros(4)
    assert state.restore() is None
    assert state.change() is None or "body.1" in state.change()
    assert (net.steps, net.slotted.factor) == before[:2]
    assert torch.equal(net.body[1].running_mean, before[2])
    assert torch.equal(net.body[1].running_var, torch.ones(4))
    assert net.activation.t == net.array[0] == 1.0
    assert torch.equal(net.closure(torch.ones(1)), torch.ones(1))
    assert not hasattr(net, "extra")
    with torch.no_grad():
        net.head.weight.add_(1)
    assert state.restore() == "head.weight"


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (torch.Generator(), lambda it: torch.rand((), generator=it).item()),
        (random.Random(0), lambda it: it.random()),
        (numpy.random.default_rng(0), lambda it: it.random()),
        (numpy.random.RandomState(0), lambda it: it.random()),
    ],
)
def test_random_generators_are_followed_and_restored(
    generator: Any, draw: Callable[[Any], float]
) -> None:
    net = Net()
    net.config.generator = generator
    state = WatchedState(net, copies=True)
    assert state.unfollowed is state.change() is None
    first = draw(generator)
    assert state.change() == "config.generator was changed"
    state.restore()
    assert state.change() is None
    assert draw(generator) == first


def test_what_cannot_be_followed_is_named(golden: Golden):
    def numbers() -> Iterator[int]:
        yield 1

    net = Net().eval()
    assert WatchedState(net).unfollowed is None
    net.config.numbers = numbers()
    golden(WatchedState(net).unfollowed)


def test_equal_values_and_marks_are_no_change_and_later_ones_are_seen() -> None:
    net = Net()
    state = WatchedState(net)
    net._dynamo_mark = 1  # as torch gives some objects
    net.steps[0]["t"] = float("1.0")
    for _ in range(3):
        assert state.change() is None

    net.steps[0]["t"] = float("2.0")  # may be where the equal one was
    assert state.change() == "steps.0.t was changed"
    net.steps[0]["t"] = 1.0
    assert state.change() is None

    del net._dynamo_mark
    net.added = 1  # as many attributes as before
    assert state.change() == "added was changed"


def test_a_value_that_was_found_to_be_new_is_not_kept_in_memory() -> None:
    net = Net()
    state = WatchedState(net)
    assert state.change() is None
    net.scale = torch.zeros(3)
    added = weakref.ref(net.scale)
    assert state.change() == "scale was changed"
    net.scale = None
    assert added() is None


@pytest.mark.parametrize("read", [True, False], ids=["natively", "by torch before 2.10"])
def test_what_torch_counts_nowhere_is_seen(read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not read:
        monkeypatch.setattr(native, "read_tensor", lambda _: None)
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.t,  # other strides
        lambda old: old.view(2, 8),
        lambda old: old.view(torch.int32),
        lambda old: old.flatten()[:8],
        torch.clone,  # other memory
    ]
    for change in changes:
        net = nn.Module()
        net.register_buffer("table", torch.eye(4))
        state = WatchedState(net)
        assert state.change() is None
        before, net.table.data = net.table.data, change(net.table.data)
        assert net.table._version == 0
        assert state.change() == "table was changed"
        net.table.data = before
        assert state.change() is None


def test_objects_are_compared_by_what_they_hold() -> None:
    value, other = object(), object()
    dicts = [{"a": value, "b": other}, {}, {"c": value}]
    tensors = [torch.eye(3).mul_(2), torch.ones(1, dtype=torch.uint8)]
    (a, b), _, (c,) = map(list, dicts)
    forms = [number for tensor in tensors for number in native.read_tensor(tensor)]
    objects = [nn.ReLU(), SimpleNamespace()]
    words = [CWord(tensors[0].data_ptr() + 4, 8, 0), CWord(tensors[1].data_ptr(), 1, 1)]
    pointers, null = native.pointers, native.NULL
    same = [a, value, b, other, null, null, c, value, null]

    def hold(
        entries: list[object] = same,
        forms: list[int] = forms,
        versions: tuple[int, ...] = (1, 0),
        classes: tuple[type, ...] = (nn.ReLU, SimpleNamespace),
    ) -> bool:
        held = CObjects(
            *(2, 3, 2, 2, 2),
            *map(pointers, (objects, classes, dicts, entries, tensors)),
            *((ctypes.c_int64 * len(forms))(*forms), pointers(tensors), "_version"),
            *(pointers(versions), (CWord * 2)(*words)),
        )
        return bool(
            native.quick_library().xk_objects_hold(
                native.object_functions(torch.Tensor), ctypes.byref(held)
            )
        )

    assert hold()
    assert hold([a, value, b, null, null, null, c, value, null])  # any value
    assert not hold([a, value, b, value, null, null, c, value, null])
    assert not hold([a, value, null, null, c, value, null])
    assert not hold([a, value, b, other, null, c, value, null, c, value, null])
    assert not hold([b, other, a, value, null, null, c, value, null])
    for at in range(len(forms)):
        assert not hold(forms=[*forms[:at], forms[at] + 1, *forms[at + 1 :]])
    assert not hold(versions=(1, 1))
    assert not hold(classes=(nn.ReLU, nn.Module))
    words[1].value = 2
    assert not hold()
    words[1].value = 1
    dicts[1]["d"] = value
    assert not hold()
    assert not native.quick_library().xk_objects_hold(native.object_functions(torch.Tensor), None)
