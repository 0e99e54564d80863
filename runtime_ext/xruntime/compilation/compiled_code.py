# SPDX-License-Identifier: Apache-2.0
"""The compiler front end: compiles an eager module with Inductor, and compares it with the module.

    code = CompiledCode(model, threads=4)
    outputs = code(args, kwargs)                # compiles for calls of this shape first
    code.compare_outputs(code.eager(args, kwargs), outputs)     # CompilationError if they differ
    code.discard()                              # after a change of the module

Code is compiled for the shapes of its first call, which makes the fastest code. The second shape makes
code in which the sizes that differ may vary, so many sizes cost one more compilation and not one each
(except sizes below 2, which torch treats on their own).

Inductor writes the number of threads into the code, so a `CompiledCode` is for one number.
TORCHINDUCTOR_CPP_DYNAMIC_THREADS would leave it out, but torch would still compile again for another.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

import torch

from xruntime.compilation.call_shapes import CallShape, form_of
from xruntime.compilation.inductor import (
    NotPermittedError,
    compiling,
    eager_module,
    explaining,
    find_error,
    inductor_options,
    may_compile,
    permitted,
)
from xruntime.compilation.judge import Difference, difference, tolerance_for
from xruntime.errors import CompilationError
from xruntime.threads.torch_modes import Autocast, under_autocast

MAX_SHAPES: Final = 4096
"""Maximum number of remembered calls; when it is reached, all are forgotten."""

_numbers = itertools.count(1)

_log = logging.getLogger("xruntime")


class CompiledCode:
    """The compiled form of one eager module, frozen: later changes of the module do not reach it.

    Calls run in inference mode, under `autocast` or none, whatever the caller's modes are. Any number
    of threads may call; one at a time compiles. A thread that calls must have `threads` threads.

    model
        An eager module in eval mode, on the CPU. Raises CompilationError for any other.
    freezing
        Make the weights constants: they are packed for the CPU's instructions, and batch norms are
        folded into convolutions.
    options
        More settings of Inductor, as torch.compile takes them.
    tolerance
        The largest difference from the eager module, relative to an output's largest value; None: what
        the precision in use explains, see `xruntime.compilation.judge`.
    """

    advice = ""
    """What to do where a call of a known shape would be compiled again, for the error."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        threads: int,
        freezing: bool = True,
        options: Mapping[str, Any] | None = None,
        autocast: Autocast | None = None,
        tolerance: float | None = None,
    ) -> None:
        self.model = eager_module(model)
        self.name = type(self.model).__name__
        self.autocast = autocast
        self.options: Mapping[str, Any] = inductor_options(
            options, threads=threads, freezing=freezing
        )
        if tolerance is None:
            values = (*self.model.parameters(), *self.model.buffers())
            tolerance = tolerance_for(values, autocast)
        self.tolerance = tolerance
        self.graphs = 0
        """Graphs compiled so far, for all shapes."""

        self._entry = _Entry(self.model, self._compile_graph)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs; compile first for a call of a new shape.

        Raises CompilationError where torch would compile again for another reason than a new shape, such
        as a changed setting of torch's, or would run the eager module.
        """
        shape, entry = CallShape(), self._entry
        args, kwargs = shape.plain_call(args, kwargs)
        key = shape.key()
        with torch.inference_mode(), under_autocast(self.autocast):
            if key in entry.seen:
                return self._run(entry, args, kwargs)
            form = form_of(key)
            if form in entry.settled:
                # There is probably code for it; trying it does not make other threads wait.
                try:
                    outputs = entry(args, kwargs)
                except Exception as error:
                    if find_error(error, NotPermittedError) is None:
                        raise
                else:
                    entry.note_call(shape, key)
                    return outputs
            with compiling:
                if key not in entry.seen:
                    graphs = self.graphs
                    with permitted(), self._settings(), explaining(self.model):
                        outputs = entry(args, kwargs)
                    if self.graphs == graphs:
                        entry.settled.add(form)
                    entry.note_call(shape, key)
                    return outputs
            return self._run(entry, args, kwargs)

    def has_code(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether there is code for calls of this shape."""
        shape = CallShape()
        shape.plain_call(args, kwargs)
        return shape.key() in self._entry.seen

    def discard(self) -> None:
        """Discard all code: the next call of each shape compiles. Calls that run are not disturbed."""
        self._entry = _Entry(self.model, self._compile_graph)

    def eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the eager module's outputs, in the same modes."""
        with torch.inference_mode(), under_autocast(self.autocast):
            return self.model(*args, **kwargs)

    def compare_outputs(self, expected: Any, outputs: Any) -> Difference:
        """Return the largest difference from the eager module's outputs. Raises CompilationError above the tolerance."""
        largest = difference(expected, outputs, self.tolerance)
        if not largest.allowed:
            raise CompilationError(
                f"{self.name} computes something else when it is compiled: {largest}. If the module was"
                " changed since, call prepare(). If its outputs are random, or small differences decide them,"
                " tolerance=float('inf') allows any difference"
            )
        return largest

    def _run(self, entry: _Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call for which there is code; nothing is compiled."""
        try:
            return entry(args, kwargs)
        except Exception as error:
            if find_error(error, NotPermittedError) is None:
                raise
            raise CompilationError(
                f"{self.name} would have to be compiled again, though the call's shape is not new. Either"
                " the call takes a branch of the module's Python code that no call of its shape has taken"
                " before, or a setting of torch's has changed, such as torch.set_default_dtype, or"
                f" torch._dynamo.reset() was called{self.advice}. TORCH_LOGS=recompiles shows what it was"
            ) from error

    def _settings(self) -> contextlib.AbstractContextManager[Any]:
        """Torch's settings while a call compiles."""
        # Dynamo reads the process's setting, not the compilation's option, to decide whether weights
        # become constants; otherwise convolutions are neither packed nor fused.
        import torch._inductor.config as settings

        return settings.patch(freezing=self.options["freezing"])  # type: ignore[no-any-return]

    def _compile_graph(
        self, graph: torch.fx.GraphModule, inputs: list[Any], **_: Any
    ) -> Callable[..., Any]:
        """Compile a graph for torch; refuse in a thread that may not compile now."""
        if not may_compile():
            raise NotPermittedError
        import torch._inductor as inductor

        began = time.perf_counter()
        compiled: Callable[..., Any] = inductor.compile(graph, inputs, options=dict(self.options))
        self.graphs += 1
        _log.info(
            "compiled %s: graph %d, %d operations, %.1f s",
            self.name,
            self.graphs,
            len(graph.graph.nodes),
            time.perf_counter() - began,
        )
        return compiled


class _GraphCounter(threading.local):
    """Number of compiled graphs that the calling thread has run in its current call."""

    graphs = 0


class _Entry:
    """Calls torch's compiled code of `model`, or has torch compile it. Many threads may call at once.

    At each call of compiled code torch evaluates guards, under the GIL: among them one for each attribute of
    each layer. A compiled module is frozen by contract, so the guards of the module are left out; those of
    the arguments and of torch's settings stay. torch stores what it compiled under the code object of the
    compiled function. Without guards of the module that code object must not be shared, as a class's methods
    are by all its objects: each entry has its own.

    `compile_graph` is a backend, as torch.compile takes it.
    """

    def __init__(self, model: torch.nn.Module, compile_graph: Callable[..., Any]) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        self.seen: set[tuple[Any, ...]] = set()
        """Keys of calls for which there is code."""

        self.settled: set[tuple[Any, ...]] = set()
        """Forms of calls where some calls ran code that was compiled for others of the same
        form."""

        self._ran = _GraphCounter()
        self._compile_graph = compile_graph
        self._name = type(model).__name__
        # torch remembers by the name which sizes vary, so each entry has a name of its own.
        code = call.__code__.replace(co_name=f"{self._name}_{next(_numbers)}")
        # torch stores what its code calls among the function's global variables.
        space = {"__builtins__": builtins, "__name__": __name__}
        self._function = FunctionType(code, space, code.co_name, None, call.__closure__)

    def note_call(self, shape: CallShape, key: tuple[Any, ...]) -> None:
        """Remember that there is code for calls of this key."""
        if not shape.opaque:
            if len(self.seen) >= MAX_SHAPES:
                self.seen.clear()
            self.seen.add(key)

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

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Any], **how: Any) -> Any:
        compiled, ran = self._compile_graph(graph, inputs, **how), self._ran

        def run(*values: Any) -> Any:
            ran.graphs += 1
            return compiled(*values)

        return run


def pieces(graphs: int) -> str:
    """Say into how many graphs torch has cut a model."""
    return "in one graph" if graphs == 1 else f"in {graphs} graphs, with Python between them"
