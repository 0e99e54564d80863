# SPDX-License-Identifier: Apache-2.0
"""Every change of a module that its outputs may depend on is seen before its next call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from xruntime.kept.watched_state import WatchedState


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)
        self.config = SimpleNamespace(return_all=False)
        self.layers = [self.head]
        self.scale = torch.ones(())
        self.flag = None


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
    assert state.change() == "its weights were changed"


def test_change_that_was_undone_is_forgotten_where_nothing_counts_it():
    net = Net().eval()
    state = WatchedState(net)
    handle = net.head.register_forward_hook(lambda *_: None)
    assert state.change() == "a forward hook or an attribute was added"
    handle.remove()
    assert state.change() is None
