# SPDX-License-Identifier: Apache-2.0
"""The operators of an exported module: their stable names, and the sources that the quantizer matches.

torchao's quantizer finds patterns such as convolution and ReLU by the module or function that a node of
the graph comes from. It refuses a module that is called more than once ("Input partition has more than
one output node"), and it does not see functions such as `torch.nn.functional.relu` in a graph that was
exported without strict mode. So each call gets a source of its own here, in the copy.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from xruntime.quantization.recipe import Operator

aten = torch.ops.aten

KINDS: Final[dict[Any, str]] = {
    aten.conv1d.default: "conv1d",
    aten.conv2d.default: "conv2d",
    aten.linear.default: "linear",
    aten.mul.Tensor: "mul",
    aten.add.Tensor: "add",
    aten.add_.Tensor: "add",
    aten.max_pool2d.default: "max_pool2d",
    aten.avg_pool2d.default: "avg_pool2d",
    aten.adaptive_avg_pool2d.default: "adaptive_avg_pool2d",
    aten.cat.default: "cat",
    aten.flatten.using_ints: "flatten",
}
"""The operators that may be quantized."""

FOLLOWERS: Final = frozenset(("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "cat", "flatten"))
"""Operators that are quantized only between quantized ones, their producer and a reader."""

_MODULES: Final = {
    "conv1d": "Conv1d",
    "conv2d": "Conv2d",
    "linear": "Linear",
    "max_pool2d": "MaxPool2d",
    "avg_pool2d": "AvgPool2d",
    "adaptive_avg_pool2d": "AdaptiveAvgPool2d",
    "flatten": "Flatten",
}
"""The modules that are one operator, which is named by their path alone."""

_SOURCES: Final[dict[Any, Any]] = {
    aten.conv1d.default: nn.Conv1d,
    aten.conv2d.default: nn.Conv2d,
    aten.linear.default: nn.Linear,
    aten.relu.default: nn.ReLU,
    aten.relu_.default: nn.ReLU,
    aten.relu6.default: nn.ReLU6,
    aten.hardtanh.default: nn.Hardtanh,
    aten.hardtanh_.default: nn.Hardtanh,
    aten.hardswish.default: nn.Hardswish,
    aten.hardswish_.default: nn.Hardswish,
    aten.silu.default: nn.SiLU,
    aten.silu_.default: nn.SiLU,
    aten.leaky_relu.default: nn.LeakyReLU,
    aten.leaky_relu_.default: nn.LeakyReLU,
    aten.tanh.default: nn.Tanh,
    aten.gelu.default: nn.GELU,
}
"""What a node is to the quantizer. Other nodes, and additions that cannot be fused, match nothing."""

WEIGHTED: Final = ("conv1d", "conv2d", "linear")
"""The kinds of operators with a weight."""

NAME: Final = "xruntime_operator"
"""The key of an operator's name in its node's `meta`."""

OBSERVER: Final = "activation_post_process_"
"""The beginning of the names that torchao gives to observers."""


class SharedObserver(NamedTuple):
    """One observer of activations in a prepared graph."""

    targets: tuple[str, ...]
    """Its names in the graph module: several where values share one scale."""

    values: tuple[str, ...]
    """The names of the nodes that compute what it sees."""


def name_operators(graph: torch.fx.Graph) -> None:
    """Give each operator its name, and each node a source of its own.

    A name is the path of the module, for a function with the operator's kind behind it; later calls of
    the same get a number. **Ex.:** ``layer1.0.conv1``, ``layer1.0.add``, ``layer1.0.add@1``.

    An operator whose weight is computed, as by weight_norm, gets no name and is not quantized.
    """
    used: dict[str, int] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        kind = KINDS.get(node.target)
        if kind in WEIGHTED and node.args[1].op != "get_attr":
            node.meta["source_fn_stack"] = [(node.name, node.target)]  # it matches nothing
            continue
        node.meta["source_fn_stack"] = [(node.name, _source(node))]
        if kind is None:
            continue
        path, module = next(reversed(node.meta.get("nn_module_stack", {"": ("", "")}).values()))
        module_name = getattr(module, "__name__", str(module)).rpartition(".")[2]
        own = bool(path) and module_name == _MODULES.get(kind)
        name = path if own else f"{path}.{kind}".lstrip(".")
        calls = used.get(name, 0)
        used[name] = calls + 1
        node.meta[NAME] = f"{name}@{calls}" if calls else name


def useless_followers(graph: torch.fx.Graph, kept: Collection[str]) -> set[torch.fx.Node]:
    """Return the `FOLLOWERS` whose results no INT8 operator reads if the operators `kept` stay float."""
    useless: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if KINDS.get(node.target) in FOLLOWERS and not any(
            NAME in user.meta and user.meta[NAME] not in kept and user not in useless
            for user in node.users
        ):
            useless.add(node)
    return useless


def operators(module: torch.fx.GraphModule) -> dict[str, Operator]:
    """List the operators whose inputs are observed in a prepared graph, in the order in which they run."""
    operators_by_name: dict[str, Operator] = {}
    for node in _observing(module):
        kind = KINDS[node.target]
        weight: tuple[int, ...] = ()
        if kind in WEIGHTED:
            weight = tuple(weight_of(module, node.all_input_nodes[1]).shape)
        operators_by_name[node.meta[NAME]] = Operator(kind, weight=weight)
    return operators_by_name


def read_values(module: torch.fx.GraphModule) -> dict[str, list[str]]:
    """Return the observed values that each operator of a prepared graph reads, without weights."""
    values_by_operator: dict[str, list[str]] = {}
    for node in _observing(module):
        seen = [_observed(source) for source in node.all_input_nodes if _is_observer(source)]
        names = [value.name for value in seen if value.op != "get_attr"]
        values_by_operator[node.meta[NAME]] = names
    return values_by_operator


def observers(module: torch.fx.GraphModule) -> list[SharedObserver]:
    """Return the observers of activations of a prepared graph."""
    observers_by_id: dict[int, SharedObserver] = {}
    for node in module.graph.nodes:
        if _is_observer(node) and _observed(node).op != "get_attr":
            target = str(node.target)
            key = id(module.get_submodule(target))
            before = observers_by_id.get(key, SharedObserver((), ()))
            observers_by_id[key] = SharedObserver(
                (*before.targets, target), (*before.values, _observed(node).name)
            )
    return list(observers_by_id.values())


def weight_observers(module: torch.fx.GraphModule) -> Iterator[tuple[nn.Module, torch.Tensor]]:
    """Return the observers of weights in a prepared graph, each with its weight."""
    for node in module.graph.nodes:
        if _is_observer(node) and _observed(node).op == "get_attr":
            yield module.get_submodule(node.target), weight_of(module, node)


def weight_of(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.Tensor:
    """Return the weight that a node, or the observer of it, stands for."""
    path = str((_observed(node) if _is_observer(node) else node).target)
    named = operator.attrgetter(path)(module)
    assert isinstance(named, torch.Tensor)
    return named


def _observing(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for node in module.graph.nodes:
        if NAME in node.meta and any(_is_observer(source) for source in node.all_input_nodes):
            yield node


def _is_observer(node: torch.fx.Node) -> bool:
    return node.op == "call_module" and str(node.target).startswith(OBSERVER)


def _observed(observer: torch.fx.Node) -> torch.fx.Node:
    """Return the node that an observer's node looks at."""
    (value,) = observer.all_input_nodes
    return value


def _source(node: torch.fx.Node) -> Any:
    if node.target in (aten.add.Tensor, aten.add_.Tensor):
        return operator.add if _adds_two_of_one_shape(node) else node.target
    return _SOURCES.get(node.target, node.target)


def _adds_two_of_one_shape(node: torch.fx.Node) -> bool:
    """Whether a convolution's or linear layer's kernel can include the addition."""
    sides = [side for side in node.args if isinstance(side, torch.fx.Node) and "val" in side.meta]
    if len(sides) != 2 or sides[0] is sides[1] or node.kwargs:
        return False
    left, right = (side.meta["val"] for side in sides)
    return bool(left.shape == right.shape and left.dtype == right.dtype)
