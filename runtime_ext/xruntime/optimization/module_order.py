# SPDX-License-Identifier: Apache-2.0
"""Which modules follow which: by symbolic tracing, or by watching one call.

Tracing by torch.fx shows the order for every input, but not for models whose Python code depends on
values. For those the sample's call is watched: hooks see the modules, and a dispatch mode sees every
operator that reads what a module returned.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from xruntime.compilation.samples import Sample
from xruntime.optimization.skipped_norms import AwaitNorm

CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of(module: nn.Module) -> list[Any]:
    """Return the hooks that someone has registered on calls of this module, without our own."""
    hooks = [hook for name in _HOOKS for hook in module.__dict__.get(name, {}).values()]
    return [hook for hook in hooks if not isinstance(hook, AwaitNorm)]


def has_hooks(module: nn.Module) -> bool:
    """Whether someone has registered a hook on calls of this module."""
    return bool(hooks_of(module))


def part_with_hooks(model: nn.Module) -> str | None:
    """Return the name of a part that has hooks which compiled code would not run; None if there is none."""
    for name, module in model.named_modules():
        if module is not model and not all(map(_is_traceable, hooks_of(module))):
            return str(name)
    return None


def _is_traceable(hook: Any) -> bool:
    """Whether torch's compiler may trace a hook.

    transformers installs hooks that collect hidden states, and leaves them behind when a call has asked for
    some. It makes them for torch.compile, too: they do nothing in other calls.
    """
    return str(getattr(hook, "__module__", "")) == "transformers.utils.output_capturing"


def shared_parameters(model: nn.Module) -> set[int]:
    """Return the ids of parameters that belong to several modules or names."""
    owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return {number for number, count in owners.items() if count > 1}


class CallRecording(NamedTuple):
    """What was observed in one call."""

    calls: Counter[nn.Module]
    follows: dict[nn.Module, nn.Module]
    """By convolution or linear: the batch norm that alone reads its output."""

    dimensions: dict[nn.Module, int]
    """The number of dimensions of the output."""

    siblings: list[list[nn.Module]]
    """Linears that were called with one tensor, in their order."""

    read_elsewhere: set[nn.Module]
    """Modules whose weights were read while they were not called."""

    dense: set[nn.Module]
    """Modules whose output cannot be a part of a wider tensor: it was returned or stored, or viewed across its
    rows."""

    convolution_share: float
    """The convolutions' part of the multiplications in convolutions and linears."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches one call: the modules by hooks, and the operators that read their outputs and weights."""

    def __init__(self, owners: dict[int, nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owners = owners
        """By id of a weight: the module that it belongs to."""

        self._stack: list[nn.Module] = []
        """The modules that are being called, the innermost last."""

        self._calls: Counter[nn.Module] = Counter()
        self._made_by: MutableMapping[torch.Tensor, nn.Module] = WeakTensorKeyDictionary()
        self._readers: dict[nn.Module, list[nn.Module | None]] = {}
        self._read_elsewhere: set[nn.Module] = set()
        self._dense: set[nn.Module] = set()
        self._norms: dict[nn.Module, nn.Module] = {}
        """By module: the norm that got its output."""

        self._dimensions: dict[nn.Module, int] = {}
        self._siblings: list[tuple[torch.Tensor, int, list[nn.Module]]] = []
        """Inputs of linears, their counts of changes, and the linears."""

        self._products = {True: 0, False: 0}
        """Multiplications in convolutions, and in linears."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler, which takes seconds, to keep that away from this method."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs or {})):
            if not isinstance(leaf, torch.Tensor):
                continue
            maker = self._made_by.get(leaf)
            if maker is not None and maker not in self._stack:
                self._readers[maker].append(self._stack[-1] if self._stack else None)
            owner = self._owners.get(id(leaf))
            if owner is not None and owner not in self._stack:
                self._read_elsewhere.add(owner)
        outputs = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.view.default:
            maker = self._made_by.get(args[0])
            if maker is not None and not _keeps_rows(args[0].shape, outputs.shape):
                self._dense.add(maker)
        return outputs

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A hook before the calls of a module."""
        self._stack.append(module)
        self._calls[module] += 1
        value = args[0] if len(args) == 1 else None
        if not isinstance(value, torch.Tensor):
            return
        maker = self._made_by.get(value) if type(module) in NORMS else None
        if maker is not None:
            self._norms[maker] = module
        if type(module) is nn.Linear and not value.is_inference():
            version = value._version  # noqa: SLF001 - no public one
            for shared, known_version, members in self._siblings:
                if shared is value and known_version == version:
                    members.append(module)
                    return
            self._siblings.append((value, version, [module]))

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A hook after the calls of a module."""
        self._stack.pop()
        if not isinstance(output, torch.Tensor) or type(module) in NORMS:
            return
        self._dimensions[module] = output.dim()
        self._made_by[output] = module
        self._readers.setdefault(module, [])
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        convolution = type(module) in CONVOLUTIONS
        features: Any = module.out_channels if convolution else module.out_features
        self._products[convolution] += output.numel() * (weight.numel() // max(1, features))

    def recording(self) -> CallRecording:
        """Return what was seen, after the call and while its outputs exist."""
        siblings = [members for _, _, members in self._siblings if len(members) > 1]
        self._siblings.clear()
        # An output that still exists is among the model's outputs, or stored somewhere.
        kept = set(self._made_by.values())
        follows = {
            maker: norm
            for maker, norm in self._norms.items()
            if maker not in kept
            and self._calls[maker] == self._calls[norm] == 1
            and all(reader is norm for reader in self._readers[maker])
        }
        share = self._products[True] / max(1, sum(self._products.values()))
        return CallRecording(
            *(self._calls, follows, self._dimensions, siblings),
            *(self._read_elsewhere, self._dense | kept, share),
        )


def _keeps_rows(old: torch.Size, new: torch.Size) -> bool:
    """Whether a view divides rows, the last dimension, but joins none, so that there may be gaps between them.

    Not where that is unknown because there is a single row: a batch of more may be joined.
    """
    if new[: len(old) - 1] == old[:-1]:
        return True
    if len(old) < 2 or old[-2] == 1:
        return False
    sizes = list(itertools.accumulate(reversed(new), operator.mul))
    return old[-1] in sizes


def record(model: nn.Module, call: Sample) -> tuple[CallRecording, Any]:
    """Watch one call of the model; return its outputs, too."""
    kinds = {*CONVOLUTIONS, *NORMS, nn.Linear}
    watched = [module for module in model.modules() if type(module) in kinds]
    owners = {
        id(tensor): module
        for module in watched
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    }
    for number in shared_parameters(model):
        owners.pop(number, None)
    watch = _Watch(owners)
    hooks = []
    for module in watched:
        hooks.append(module.register_forward_pre_hook(watch.before))
        hooks.append(module.register_forward_hook(watch.after))
    try:
        with watch:
            outputs = model(*call.args, **call.kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return watch.recording(), outputs


class TracedOrder(NamedTuple):
    """What torch.fx found."""

    follows: dict[nn.Module, nn.Module]
    read_elsewhere: set[nn.Module]


class _Tracer(torch.fx.Tracer):
    """Traces its own thread only.

    torch.fx replaces nn.Module.__call__ and __getattr__ for all threads while it traces. If another
    thread traces meanwhile, either may put back the other's replacement, which is inert then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.active = True
        self._thread = threading.get_ident()

    def _is_tracing_here(self) -> bool:
        return self.active and threading.get_ident() == self._thread

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if not self._is_tracing_here():
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if not self._is_tracing_here():
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def trace(model: nn.Module) -> TracedOrder:
    """Trace the model symbolically. Raises what tracing raises for models that it does not support."""
    tracer = _Tracer()
    try:
        graph = tracer.trace(model)
    finally:
        tracer.active = False
    modules = dict(model.named_modules(remove_duplicate=False))
    calls = Counter(modules[str(node.target)] for node in graph.nodes if node.op == "call_module")
    follows: dict[nn.Module, nn.Module] = {}
    read: set[nn.Module] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            read.add(modules[str(node.target).rpartition(".")[0]])
        if node.op != "call_module" or len(node.users) != 1:
            continue
        user = next(iter(node.users))
        if user.op != "call_module" or user.args != (node,) or user.kwargs:
            continue
        first, second = modules[str(node.target)], modules[str(user.target)]
        if calls[first] == calls[second] == 1 and type(second) in NORMS:
            follows[first] = second
    return TracedOrder(follows, read)
