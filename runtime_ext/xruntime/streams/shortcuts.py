# SPDX-License-Identifier: Apache-2.0
"""Calls code that torch compiled past torch's guards, which hold the interpreter's lock.

Each call of compiled code first asks whether everything that the code was made for is still so: each
attribute of each layer, beside the arguments and the settings of torch. Streams wait for each other
meanwhile, and the more so, the more layers and streams there are (benchmarks/streams, form `guarded`).

Arguments are compared by who calls, and settings of torch's in one short call. What is left are the
module and Python's global variables, and those are asked about ten times a second instead of a thousand
times. So a change of them is noticed later, but not missed: see `GUARDS_EVERY_S`.

A shortcut is taken only where all that the code computes with is known: one graph, whose inputs all
come from the arguments. Anything else, and a torch that does not tell, is called through the guards.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

GUARDS_EVERY_S = 0.1
"""So long a change of the module may go unnoticed."""

_FROM_ARGUMENTS = ("L['args']", "L['kwargs']")
_GRAPH, _REST = "__compiled_fn", "__resume_at"
"""How the names begin by which torch's code calls a graph, and what comes after a graph break."""

_numbers = itertools.count(1)


class Entry:
    """A module as a function that torch compiles, whose code nothing else shares.

    torch keeps what it compiled by the code that it began with; a module's own is shared by all modules
    of its class.
    """

    def __init__(self, model: torch.nn.Module, compile_graph: Callable[..., Any]) -> None:
        """`compile_graph`: a backend, as torch.compile takes it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        # By the name torch remembers which sizes were seen to vary, of this one alone.
        code = call.__code__.replace(co_name=f"{type(model).__name__}_{next(_numbers)}")
        # torch leaves what its code calls among the function's global variables.
        space = {"__builtins__": builtins, "__name__": __name__}
        self._function = FunctionType(code, space, code.co_name, None, call.__closure__)
        self._compile_graph = compile_graph
        self._made = 0
        self._ran = _Ran()
        self._shortcuts: dict[int, Shortcut] = {}
        """By the number of the graph that is called."""
        self.guarded: Callable[..., Any] = torch.compile(self._function, backend=self._compile)
        """Asks torch's guards, then calls what was compiled, or compiles."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Shortcut | None]:
        """What `guarded` returns, and the shortcut that such calls may take; None: they have none."""
        ran = self._ran
        ran.count = 0
        with _noting_codes() as codes:
            outputs = self.guarded(*args, **kwargs)
        graph = ran.graph
        if ran.count != 1 or graph is None:
            return outputs, None  # cut into several graphs, or none, or one that reads the module
        made = [new for old, new in codes if old is self._function.__code__]
        settings = getattr(torch._C._dynamo.guards, "GlobalStateGuard", None)  # noqa: SLF001 - as torch does
        if len(made) == len(codes) == 1 and _is_whole(made[0]) and settings is not None:
            space, closure = self._function.__globals__, self._function.__closure__
            function = FunctionType(made[0], space, made[0].co_name, None, closure)
            self._shortcuts[graph] = Shortcut(function, settings().check)
        return outputs, self._shortcuts.get(graph)

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Any], **how: Any) -> Any:
        compiled = self._compile_graph(graph, inputs, **how)
        self._made += 1
        ran, number = self._ran, self._made if _takes_arguments_only(graph) else None

        def run(*values: Any) -> Any:
            ran.count += 1
            ran.graph = number
            return compiled(*values)

        return run


class Shortcut:
    """A function made of compiled code: called like the module, and asks nothing.

    Any number of threads may use it at once.
    """

    __slots__ = ("_due_s", "_settings_are_the_same", "call")

    def __init__(self, call: Callable[..., Any], settings_are_the_same: Callable[[], bool]) -> None:
        self.call = call
        self._settings_are_the_same = settings_are_the_same
        self._due_s = time.monotonic() + GUARDS_EVERY_S

    def may_be_taken(self) -> bool:
        """Whether not even the module needs to be asked now; where it does, the next caller need not."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + GUARDS_EVERY_S
            return False
        return self._settings_are_the_same()

    def close(self) -> None:
        """Something has changed: all calls go through the guards, until they pass."""
        self._due_s = 0.0


class _Ran(threading.local):
    """What the calling thread has run."""

    count = 0
    graph: int | None = None
    """The last one's number; None where it reads more than the arguments."""


class _Noted(threading.local):
    """What the calling thread has torch make of which code."""

    codes: list[tuple[CodeType, CodeType]] | None = None
    """None: nobody wants to know."""


_noted = _Noted()


@contextlib.contextmanager
def _noting_codes() -> Iterator[list[tuple[CodeType, CodeType]]]:
    _listen()
    codes: list[tuple[CodeType, CodeType]] = []
    _noted.codes = codes
    try:
        yield codes
    finally:
        _noted.codes = None


@functools.cache
def _listen() -> None:
    """Have torch tell; once, for a thread that compiles must not see its hooks change meanwhile."""
    from torch._dynamo import convert_frame

    def note(old: CodeType, new: CodeType) -> None:
        if _noted.codes is not None:
            _noted.codes.append((old, new))

    register = getattr(convert_frame, "register_bytecode_hook", None)
    if register is not None:
        register(note)


def _takes_arguments_only(graph: torch.fx.GraphModule) -> bool:
    """Whether every input of the graph comes from an argument; False where torch does not tell."""
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node.meta.get("grapharg"), "source", None)
            name = getattr(source, "name", None)
            # A method before torch 2.12.
            text = name() if callable(name) else name
            if not isinstance(text, str) or not text.startswith(_FROM_ARGUMENTS):
                return False
    return True


def _is_whole(code: CodeType) -> bool:
    """Whether the code calls one graph, and nothing that torch would have to look at again."""
    graphs = [name for name in code.co_names if name.startswith(_GRAPH)]
    return len(graphs) == 1 and not any(name.startswith(_REST) for name in code.co_names)
