# SPDX-License-Identifier: Apache-2.0
"""Random models with state of every kind, random calls of them, and everything that a caller can observe."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

WIDTH: Final = 8


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor


class Scaling:
    """A callable object."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, values: Tensor) -> Tensor:
        return values * self.factor

    def scaled(self, values: Tensor) -> Tensor:
        return values * self.factor


def closure(factor: float) -> tuple[Callable[[Tensor], Tensor], Callable[[float], None]]:
    """A function, and one that changes what it computes."""

    def scaled(values: Tensor) -> Tensor:
        return values * factor

    def change(new: float) -> None:
        nonlocal factor
        factor = new

    return scaled, change


READS: Final = (
    *(
        "attribute",
        "nested",
        "list",
        "tuple",
        "deque",
        "slot",
        "callable",
        "method",
        "partial",
        "closure",
    ),
    *("buffer", "tensor", "shared"),
)
"""Where a forward finds a number."""

STATES: Final = ("counter", "buffer", "list", "slot", "nested", "callable", "stored", "random")
"""What a forward changes."""

WRITES: Final = (*["none"] * 6, "all", "part", "optional", "optional", "shape", "shape")
"""What a forward writes to its arguments."""

RETURNS: Final = ("tensor", "dict", "view of input", "view", "buffer", "input")
RAISES: Final = ("never", "before", "half")


class Spec(NamedTuple):
    """A model."""

    reads: tuple[str, ...]
    states: tuple[str, ...]
    writes: str
    returns: str
    raises: str
    joined: bool
    """Whether two linears have one input, which is changed between them."""

    norm: bool


class Model(nn.Module):
    """Counts its calls in `forward_calls`, which no model holds."""

    def __init__(self, spec: Spec, shared: nn.Module) -> None:
        super().__init__()
        self.spec = spec
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if spec.norm else nn.Identity()
        self.shared = shared
        self.register_buffer("factor", torch.ones(WIDTH))
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.scale = 1.0
        self.plain = torch.ones(WIDTH)
        self.config = SimpleNamespace(head=SimpleNamespace(factor=1.0, count=0))
        self.steps: list[Any] = [{"factor": 1.0}]
        self.fixed = ({"factor": 1.0},)
        self.queue = collections.deque([1.0])
        self.slotted = Slotted(1.0)
        self.counts = Slotted(0.0)
        self.activation = Scaling(1.0)
        self.counting = Scaling(0.0)
        self.bound = Scaling(1.0).scaled
        self.partial = functools.partial(torch.mul, other=torch.ones(()))
        self.closure, self.change_closure = closure(1.0)
        self.calls = 0
        self.log: list[float] = []
        self.last: Tensor | None = None
        self.eval()

    def read(self, values: Tensor) -> Tensor:
        found: dict[str, Callable[[Tensor], Tensor]] = {
            "attribute": lambda x: x * self.scale,
            "nested": lambda x: x * self.config.head.factor,
            "list": lambda x: x * self.steps[0]["factor"],
            "tuple": lambda x: x * self.fixed[0]["factor"],
            "deque": lambda x: x * self.queue[0],
            "slot": lambda x: x * self.slotted.factor,
            "callable": self.activation,
            "method": self.bound,
            "partial": self.partial,
            "closure": self.closure,
            "buffer": lambda x: x * self.factor,
            "tensor": lambda x: x * self.plain,
            "shared": self.shared,
        }
        for name in self.spec.reads:
            values = found[name](values)
        return values

    def change_state(self, values: Tensor) -> Tensor:
        states = self.spec.states
        if "counter" in states:
            self.calls += 1
            values = values + self.calls
        if "buffer" in states:
            self.seen += 1
            values = values + self.seen
        if "list" in states:
            self.log.append(1.0)
            values = values + len(self.log)
        if "slot" in states:
            self.counts.factor += 1
            values = values + self.counts.factor
        if "nested" in states:
            self.config.head.count += 1
            values = values + self.config.head.count
        if "callable" in states:
            self.counting.factor += 1
            values = values + self.counting.factor
        if "stored" in states:
            self.last = self.two(values)
        if "random" in states:
            values = values + torch.rand(())
        return values

    def forward(self, values: Tensor, cache: Tensor | None = None, fail: bool = False) -> Any:
        forward_calls.append(1)
        spec = self.spec
        if fail and spec.raises == "before":
            raise ValueError("the model's own error")
        hidden = self.change_state(self.norm(self.one(values)))
        if spec.writes == "all":
            values.mul_(1.5)
        if spec.writes == "part":
            values[0, :2] = 3.0
        if spec.writes == "optional" and cache is not None:
            cache.add_(1.0)
        if spec.writes == "shape" and values.shape[0] > 3:
            values += 1.0
        if fail and spec.raises == "half":
            raise RuntimeError("after half of the writes")
        if spec.joined:
            value = hidden.relu()
            first = self.one(value)
            value[:, 1] *= 2.0
            hidden = first + self.two(value)
        hidden = self.read(hidden)
        if cache is not None:
            hidden = hidden + cache
        if spec.returns == "dict":
            return {"hidden": hidden, "count": 3, "none": None}
        if spec.returns == "view of input":
            return hidden, values[:, 1:]
        if spec.returns == "view":
            return hidden.t()[1:]
        if spec.returns == "buffer":
            return hidden, self.factor
        if spec.returns == "input":
            return hidden, values
        return hidden


forward_calls: list[int] = []


def change(model: Any, what: str) -> None:
    """Change from outside what a forward may read."""
    changes: dict[str, Callable[[], object]] = {
        "attribute": lambda: setattr(model, "scale", 2.0),
        "nested": lambda: setattr(model.config.head, "factor", 2.0),
        "list": lambda: model.steps[0].update(factor=2.0),
        "tuple": lambda: model.fixed[0].update(factor=2.0),
        "deque": lambda: model.queue.appendleft(2.0),
        "slot": lambda: setattr(model.slotted, "factor", 2.0),
        "callable": lambda: setattr(model.activation, "factor", 2.0),
        "method": lambda: setattr(model.bound.__self__, "factor", 2.0),
        "partial": lambda: model.partial.keywords["other"].fill_(2.0),
        "closure": lambda: model.change_closure(2.0),
        "buffer": lambda: model.factor.mul_(2.0),
        "tensor": lambda: model.plain.mul_(2.0),
        "shared": lambda: setattr(model.shared, "factor", 2.0),
        "weight": lambda: model.two.weight.mul_(2.0),
        "hook": lambda: model.two.register_forward_hook(lambda _m, _a, out: out * 2.0),
        "own hook": lambda: model.register_forward_pre_hook(
            lambda _m, args: (args[0] + 1, *args[1:])
        ),
    }
    with torch.no_grad():
        changes[what]()


CHANGES: Final = (*READS, "weight", "hook", "own hook")


class Shared(nn.Module):
    """A part of two models."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


class Call(NamedTuple):
    rows: int
    layout: str
    """**Ex.:** ``"strided"``"""

    cache: str
    """none, given, or alias: a view of the first argument."""

    fail: bool
    mode: str
    """The gradient mode: no_grad or inference_mode."""

    change: str | None
    """What is changed before the call."""

    def arguments(self, number: int) -> tuple[Tensor, Tensor | None]:
        """Make the arguments, equal for equal numbers."""
        generator = torch.Generator().manual_seed(number)
        base = torch.randn(self.rows, 2 * WIDTH, generator=generator)
        values = {
            "contiguous": base[:, :WIDTH].contiguous,
            "strided": lambda: base[:, ::2],
            "transposed": base.reshape(2 * WIDTH, self.rows)[:WIDTH].t,
            "overlapping": lambda: base[0].as_strided((self.rows, WIDTH), (1, 1)),
            "offset": lambda: base[:, WIDTH:],
        }[self.layout]()
        cache = {"none": None, "given": torch.ones(self.rows, WIDTH), "alias": values[:, :]}
        return values, cache[self.cache]


specs = st.builds(
    Spec,
    reads=st.lists(st.sampled_from(READS), max_size=3, unique=True).map(tuple),
    states=st.sampled_from((*[()] * 8, *[(name,) for name in STATES], *itertools.pairwise(STATES))),
    writes=st.sampled_from(WRITES),
    returns=st.sampled_from(RETURNS),
    raises=st.sampled_from(RAISES),
    joined=st.booleans(),
    norm=st.booleans(),
)

calls = st.builds(
    Call,
    rows=st.integers(2, 5),
    layout=st.sampled_from(("contiguous", "strided", "transposed", "overlapping", "offset")),
    cache=st.sampled_from(("none", "none", "given", "alias")),
    fail=st.integers(0, 3).map(lambda number: number == 0),
    mode=st.sampled_from(("no_grad", "inference_mode")),
    change=st.sampled_from((*[None] * 24, *CHANGES)),
)


def made(spec: Spec) -> tuple[Model, Model]:
    """Return two models that share a part; equal for equal specs."""
    torch.manual_seed(0)
    shared = Shared()
    return Model(spec, shared), Model(spec, shared)


class Seen(NamedTuple):
    """What a caller observes of one call."""

    outputs: Any
    error: str | None
    arguments: Any
    aliases: tuple[bool, ...]
    """Whether each output shares its memory with the first argument."""

    forwards: int
    drawn: Tensor
    """A random number after the call."""


def observe(model: Any, call: Call, number: int) -> Seen:
    """Call the model, and return what a caller can see."""
    values, cache = call.arguments(number)
    if call.change is not None:
        change(model, call.change)
    outputs, error = None, None
    torch.manual_seed(number)
    forward_calls.clear()
    mode = torch.no_grad() if call.mode == "no_grad" else torch.inference_mode()
    with mode:
        try:
            outputs = model(values, cache, fail=call.fail)
        except (ValueError, RuntimeError) as raised:
            error = f"{type(raised).__name__}: {raised}"
    count = len(forward_calls)
    tensors = [it for it in torch.utils._pytree.tree_leaves(outputs) if isinstance(it, Tensor)]
    own = values.untyped_storage().data_ptr()
    aliases = tuple([it.untyped_storage().data_ptr() == own for it in tensors])
    kept = torch.utils._pytree.tree_map(
        lambda it: it.clone() if isinstance(it, Tensor) else it, outputs
    )
    drawn = torch.rand(())
    return Seen(
        kept,
        error,
        (values.clone(), None if cache is None else cache.clone()),
        aliases,
        count,
        drawn,
    )


def state_of(model: Any) -> dict[str, Any]:
    """The state that a forward may change."""
    return {
        "calls": model.calls,
        "seen": model.seen.clone(),
        "log": list(model.log),
        "slot": model.counts.factor,
        "nested": model.config.head.count,
        "callable": model.counting.factor,
        "last": None if model.last is None else model.last.clone(),
        "last dtype": None if model.last is None else model.last.dtype,
    }
