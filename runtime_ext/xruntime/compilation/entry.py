# SPDX-License-Identifier: Apache-2.0
"""A module as a function that torch compiles once for each kind of call, without guards of the module.

At each call of compiled code torch evaluates guards, under the GIL: among them one for each attribute of
each layer. A compiled module is frozen by contract, so the guards of the module are left out; those of
the arguments and of torch's settings stay.

torch stores what it compiled under the code object of the compiled function. Without guards of the module
that code object must not be shared, as a class's methods are by all its objects: each entry has its own.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch

from xruntime.errors import CompilationError

MAX_SHAPES: Final = 4096
"""Calls that are remembered; at this number all are forgotten."""

_numbers = itertools.count(1)


class _Ran(threading.local):
    """Number of compiled graphs that the calling thread has run in its current call."""

    graphs = 0


class Entry:
    """Calls torch's compiled code of `model`, or has torch compile it. Many threads may call at once.

    `compile_graph` is a backend, as torch.compile takes it. `forward` is what is compiled, called with the
    model first; None: the model's call, with its hooks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        compile_graph: Callable[..., Any],
        forward: Callable[..., Any] | None = None,
    ) -> None:
        if forward is None:

            def call(*args: Any, **kwargs: Any) -> Any:
                return model(*args, **kwargs)
        else:

            def call(*args: Any, **kwargs: Any) -> Any:
                return forward(model, *args, **kwargs)

        self.seen: set[tuple[Any, ...]] = set()
        """Keys of calls for which there is code."""

        self.without_code: set[tuple[Any, ...]] = set()
        """Keys of calls that failed; forms of such with arguments of unknown classes."""

        self.settled: set[tuple[Any, ...]] = set()
        """Forms of calls of which some ran code that was compiled for others."""

        self._ran = _Ran()
        self._compile_graph = compile_graph
        self._name = type(model).__name__
        # torch remembers by the name which sizes vary, so each entry has a name of its own.
        code = call.__code__.replace(co_name=f"{self._name}_{next(_numbers)}")
        # torch stores what its code calls among the function's global variables.
        space = {"__builtins__": builtins, "__name__": __name__}
        self._function = FunctionType(code, space, code.co_name, None, call.__closure__)

    @functools.cached_property
    def _call(self) -> Callable[..., Any]:
        """The function for torch, whose compiler takes a second to import, at the first call."""
        # A torch without this filter evaluates all guards, which is only slower.
        leave_out = getattr(torch.compiler, "skip_guard_on_all_nn_modules_unsafe", None)
        compiled: Callable[..., Any] = torch.compile(
            self._function,
            backend=self._compile,
            options=None if leave_out is None else {"guard_filter_fn": leave_out},
        )
        return compiled

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs. Raises CompilationError if torch fell back to the eager module."""
        ran = self._ran
        ran.graphs = 0
        outputs = self._call(*args, **kwargs)
        if not ran.graphs:
            raise CompilationError(
                f"{self._name} ran without compiled code. Either there are more shapes than torch compiles"
                " for (torch._dynamo.config.recompile_limit): pad the inputs to fewer sizes, or give"
                " compile_for_streams dynamic=True. Or torch found nothing in it to compile: TORCH_LOGS=graph_breaks"
                " shows why (one reason is TORCH_COMPILE_DISABLE=1 in the environment)"
            )
        return outputs

    @property
    def ran(self) -> int:
        """The number of graphs that the calling thread has run, or begun to, in its latest call."""
        return self._ran.graphs

    def remember(self, key: tuple[Any, ...]) -> None:
        """Note that there is code for calls of this key."""
        _add(self.seen, key)

    def give_up(self, key: tuple[Any, ...]) -> None:
        """Note that calls of this key, or form, are not tried again."""
        _add(self.without_code, key)

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Any], **how: Any) -> Any:
        compiled, ran = self._compile_graph(graph, inputs, **how), self._ran

        def run(*values: Any) -> Any:
            ran.graphs += 1
            return compiled(*values)

        return run


def _add(known: set[tuple[Any, ...]], key: tuple[Any, ...]) -> None:
    if len(known) >= MAX_SHAPES:
        known.clear()
    known.add(key)
