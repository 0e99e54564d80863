# SPDX-License-Identifier: Apache-2.0
"""Compiles a module so that streams can run it side by side, without the interpreter's lock.

    compiled = compile_for_streams(model, sample, threads=4, dtype=torch.bfloat16)
    streams = MultiStreamModule(compiled, num_streams=16)

torch.compile by itself makes code that holds the lock while it computes, that is compiled anew in
every thread with another number of threads or another grad mode, and that must not be compiled in
two threads at once (pytorch issues 118260, 136833, 168042). What is made here is compiled in one
place, under one lock, for one number of threads, and never again unless it says so.

Shapes. Code is made for the sample's shape, which is the fastest. The first call of any other shape
is compiled too, in the thread that makes it, while others go on: the second shape makes code in
which the sizes that differ may vary, so that parts of uneven sizes cost one compilation more, not
one each (a part of a single item is a case of its own to torch, and so may be sizes that are far
apart). `prepare` does this in advance. With `dynamic=True` the first code already lets dimension 0
vary; that is worth it where sizes are many.

Numbers of threads. Inductor writes the number into the code. TORCHINDUCTOR_CPP_DYNAMIC_THREADS
would leave it out, but torch would still compile anew for another number, and work that small
streams do best in one thread would be cut up. So the number is fixed, and another is refused.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn, Self

import torch

from xruntime.compilation.accuracy import Difference, difference, tolerance_for
from xruntime.compilation.call_shapes import CallShape, form_of
from xruntime.compilation.entry import Entry
from xruntime.compilation.inductor import (
    NotPermittedError,
    chosen_options,
    compiling,
    eager_module,
    explaining,
    find_error,
    first_line,
    may_compile,
    permitted,
)
from xruntime.compilation.interpreter_lock import LockShare, lock_share
from xruntime.compilation.kinds import Kind, kind_of
from xruntime.compilation.samples import (
    Sample,
    check_threads,
    sample_call,
    wrong_thread_error,
)
from xruntime.errors import CompilationError, InterpreterLockWarning, SampleError
from xruntime.threads.modes import Autocast
from xruntime.threads.team import resize_team, team_of

__all__ = ["CompiledForStreams", "Evidence", "Kind", "compile_for_streams", "kind_of"]

_log = logging.getLogger("xruntime")

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)

HELD_SHARE: Final = 0.5
HELD_S: Final = 1e-3
"""A call that holds the lock for more than half of its time, and for longer than Python's part of any
call takes, computes under it."""


class Evidence(NamedTuple):
    """What was seen when a module was compiled."""

    graphs: int
    """How many pieces torch cut the module into; between them Python runs, under the lock."""

    compile_s: float
    difference: Difference
    """The largest between the compiled and the eager module's outputs, on the sample."""

    lock: LockShare
    """How much of a call holds the interpreter's lock."""


class CompiledForStreams(torch.nn.Module):
    """A module's compiled form, for threads that have `threads` cores each. Called like the module.

    Any number of threads may call it at once. It runs in inference mode, under the autocast that it
    was compiled for, whatever the caller's modes are. Made by `compile_for_streams`.

    A compiled module is frozen: after a change of the module that it was made from call `prepare()` again;
    `check()` compares the two.

    A call raises ThreadCountError in a thread with another number of threads, and CompilationError
    where torch would have to compile again for another reason than a new shape, such as a setting of
    torch's that was changed, or would run the eager module.
    """

    threads: int
    """How many threads it was compiled for."""

    evidence: Evidence

    stream_kind: Final = Kind.COMPILED_FOR_STREAMS

    def __init__(
        self,
        model: torch.nn.Module,
        call: Sample,
        *,
        threads: int,
        autocast: Autocast | None,
        options: Mapping[str, Any],
        dynamic: bool,
        tolerance: float | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.threads = threads
        self.dynamic = dynamic
        self._autocast = autocast
        self._options = dict(options)
        self._graphs = 0
        self._entry = Entry(model, self._compile_graph)
        """All code there is; `prepare` replaces it whole."""

        self._sample = call
        if tolerance is None:
            tolerance = tolerance_for((*model.parameters(), *model.buffers()), autocast)
        self.tolerance = tolerance
        """The largest difference from the eager module, as a part of an output's largest value."""

        self.eval()
        name = type(model).__name__
        _log.info("compiling %s for streams of %s; this may take a minute", name, _threads(threads))
        with team_of(threads):
            self.evidence = self._compile(call)
        _log.info("%s", self.describe())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's outputs, as it gives them in eval mode."""
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, anew: bool = False) -> Any:
        """The outputs; with `anew` all code is forgotten first where there is some for such a call."""
        have = torch.get_num_threads()
        if have != self.threads:
            raise wrong_thread_error(self.threads, have)
        shape = CallShape()
        args = tuple([shape.plain(value) for value in args])
        if kwargs:
            shape.parts.extend(kwargs)
            kwargs = {key: shape.plain(value) for key, value in kwargs.items()}
        key = shape.key()
        entry = self._entry
        if anew and key in entry.seen:
            entry = self._forget()
        with torch.inference_mode(), self._under_autocast():
            if key in entry.seen:
                return self._run(entry, args, kwargs)
            form = form_of(key)
            if form in entry.settled:
                # Most likely there is code for it; to try does not keep others waiting.
                try:
                    outputs = entry(args, kwargs)
                except Exception as error:
                    if find_error(error, NotPermittedError) is None:
                        raise
                else:
                    if not shape.opaque:
                        entry.remember(key)
                    return outputs
            with compiling:
                if key not in entry.seen:
                    graphs = self._graphs
                    with permitted(), self._freezing(), explaining(self.model):
                        outputs = entry(args, kwargs)
                    if self._graphs == graphs:
                        entry.settled.add(form)
                    if not shape.opaque:
                        entry.remember(key)
                    return outputs
            return self._run(entry, args, kwargs)

    def _forget(self) -> Entry:
        """Forget all code; calls that run keep what they have."""
        self._entry = entry = Entry(self.model, self._compile_graph)
        return entry

    def prepare(self, sample: object = None) -> Self:
        """Compile for another shape now, rather than in a stream's first call with it.

        `sample` is as for compile_for_streams. After a change of the module: without one, or with one of
        a shape that there is code for, all code is forgotten, and compiled anew for this sample now (None:
        for the first) and for other shapes at their next call. Raises CompilationError and SampleError.
        """
        if sample is None:
            self._forget()
        call = self._sample if sample is None else sample_call(sample)
        with team_of(self.threads):
            self._call(*call, anew=True)
        return self

    def check(self, sample: object = None) -> Difference:
        """Compare with the module that it was made from, as that is now; return the largest difference.

        `sample` is as for compile_for_streams; None: what it was compiled with. Raises CompilationError
        where the difference is larger than the tolerance that it was compiled with.
        """
        call = self._sample if sample is None else sample_call(sample)
        with team_of(self.threads):
            expected = self.eager(*call.args, **call.kwargs)
            return self._compare(expected, self(*call.args, **call.kwargs))

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the module that it was made from, in the same modes."""
        with torch.inference_mode(), self._under_autocast():
            return self.model(*args, **kwargs)

    def _compare(self, expected: Any, outputs: Any) -> Difference:
        different = difference(expected, outputs, self.tolerance)
        if not different.allowed:
            raise CompilationError(
                f"{type(self.model).__name__} computes something else when it is compiled: {different}. If"
                " the module was changed since, call prepare(). Outputs that chance decides, or that small"
                " differences turn over, are no fault: tolerance=float('inf') allows any"
            )
        return different

    def describe(self) -> str:
        """What was compiled and what was seen then: a few lines to read."""
        graphs, compile_s, different, lock = self.evidence
        notes = [f"torch {torch.__version__}"]
        notes += ["weights frozen"] if self._options.get("freezing") else []
        notes += [f"autocast to {_name(self._autocast.dtype)}"] if self._autocast else []
        notes += ["dimension 0 may vary"] if self.dynamic else []
        if lock.unknown is None:
            freeze_ms = (lock.longest_freeze_s or 0.0) * 1e3
            held = f"held for {lock.held_share or 0.0:.0%} of a call, at most {freeze_ms:.1f} ms at once"
        else:
            held = f"not known to be free: {lock.unknown}"
        return "\n".join(
            (
                f"{type(self.model).__name__}, compiled for streams of {_threads(self.threads)}"
                f" ({', '.join(notes)})",
                f"  compiled {_cut(graphs)}, in {compile_s:.1f} s; a call takes {lock.call_s * 1e3:.2f} ms",
                f"  against the eager module: {different}",
                f"  the interpreter's lock is {held}",
                f"  graphs compiled so far, for all shapes: {self._graphs}",
            )
        )

    def _compile(self, call: Sample) -> Evidence:
        """Compile for the call, in the calling thread, and see what came of it."""
        args, kwargs = call
        name = type(self.model).__name__
        expected = self.eager(*args, **kwargs)
        began = time.perf_counter()
        outputs = self(*args, **kwargs)
        compile_s = time.perf_counter() - began
        graphs = self._graphs
        different = self._compare(expected, outputs)
        if different.other_dtypes:
            _log.warning("%s: %s", name, different.other_dtypes)
        self._call_from_another_thread(call)
        return Evidence(graphs, compile_s, different, lock_share(lambda: self(*args, **kwargs)))

    def _call_from_another_thread(self, call: Sample) -> None:
        """Raises CompilationError if a thread that is set up as a stream's cannot run what was made."""
        errors: list[Exception] = []

        def run() -> None:
            try:
                resize_team(self.threads)
                self(*call.args, **call.kwargs)
            except Exception as error:  # noqa: BLE001 - it is raised below
                errors.append(error)

        # It is not permitted to compile: that is the calling thread's.
        thread = threading.Thread(target=run, name="compiled for streams")
        thread.start()
        thread.join()
        if errors:
            raise CompilationError(
                f"{type(self.model).__name__} was compiled, but a second thread cannot run it:"
                f" {first_line(errors[0])}"
            ) from errors[0]

    def _run(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call for which there is code: nothing is compiled."""
        try:
            return entry(args, kwargs)
        except Exception as error:
            if find_error(error, NotPermittedError) is None:
                raise
            raise CompilationError(
                f"{type(self.model).__name__} would have to be compiled again, which a stream's call"
                " does for a new shape only. Something else that the code depends on has changed since:"
                " a setting of torch's such as torch.set_default_dtype, or torch._dynamo.reset() was"
                " called. Change it back, or call prepare(), which compiles for it. TORCH_LOGS=recompiles"
                " tells what it was"
            ) from error

    def _freezing(self) -> contextlib.AbstractContextManager[Any]:
        # Dynamo asks the setting of the process, not the options of a compilation, whether weights are
        # to be constants; without them convolutions are neither packed nor fused.
        import torch._inductor.config as settings

        patch: contextlib.AbstractContextManager[Any] = settings.patch(
            freezing=self._options["freezing"]
        )
        return patch

    def _under_autocast(self) -> contextlib.AbstractContextManager[Any]:
        wanted = self._autocast
        if wanted is None:
            if not torch.is_autocast_enabled("cpu"):
                return _NOTHING
            return torch.autocast("cpu", enabled=False)
        # Entered even where it is on already: its cache of cast weights is the outermost block's.
        return torch.autocast("cpu", dtype=wanted.dtype, cache_enabled=wanted.cache)

    def _compile_graph(
        self, graph: torch.fx.GraphModule, inputs: list[Any], **_: Any
    ) -> Callable[..., Any]:
        """What torch calls to have a graph compiled; refuses in threads that shall not wait for it."""
        if not may_compile():
            raise NotPermittedError
        import torch._inductor as inductor

        began = time.perf_counter()
        compiled: Callable[..., Any] = inductor.compile(graph, inputs, options=self._options)
        self._graphs += 1
        _log.info(
            "compiled %s for streams of %s: graph %d, %d operations, %.1f s",
            type(self.model).__name__,
            _threads(self.threads),
            self._graphs,
            len(graph.graph.nodes),
            time.perf_counter() - began,
        )
        return compiled

    def train(self, mode: bool = True) -> Self:
        """It stays in eval mode. Raises CompilationError when asked for another."""
        if mode:
            raise CompilationError(
                "a module that was compiled for streams runs in eval mode only: train the module that"
                " it was made from, then compile it again"
            )
        return super().train(False)

    def compile(self, *_: Any, **__: Any) -> NoReturn:
        """Raises CompilationError: it is compiled."""
        self._refuse_change("call .compile() on the module that it was made from")

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._refuse_change("convert or move the module that it was made from")

    def load_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        """Raises CompilationError: the compiled code has its own copy of the weights."""
        self._refuse_change("load them into the module that it was made from")

    def __reduce__(self) -> NoReturn:
        self._refuse_change("pickle or copy the module that it was made from")

    def _refuse_change(self, instead: str) -> NoReturn:
        raise CompilationError(
            f"compiled code and its weights stay as they are: {instead}, then compile it again"
        )


def compile_for_streams(
    model: torch.nn.Module,
    sample: object,
    *,
    threads: int,
    dtype: torch.dtype | None = None,
    freezing: bool = True,
    dynamic: bool = False,
    options: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
) -> CompiledForStreams:
    """Compile an eager module, in eval mode, for streams of `threads` cores, and check the result.

    sample
        The input of ONE stream's call, of the size that streams will have: a tensor, a tuple of
        arguments, or a dict of keyword arguments.
    dtype
        Run under autocast to it (bfloat16, float16; float32: without autocast). None: under the
        autocast of the calling thread, if that is on.
    freezing
        Make the weights constants of the code: they are packed for the CPU's instructions, and batch
        norms vanish in convolutions.
    dynamic
        Let dimension 0 of every tensor vary from the start; the sample needs at least 2 items.
    options
        More settings of Inductor, as torch.compile takes them, for instance {"max_autotune": True}.
    tolerance
        The largest difference from the eager module that is allowed, as a part of the largest value
        of each output. None: what the precision in use explains, see `xruntime.compilation.accuracy`.
        Infinity: any.

    It compiles in the calling thread, whose thread counts are `threads` meanwhile and then what they
    were; the process's are never touched. It calls the module twice and its compiled form several
    times, once from another thread. It needs a C++ compiler. Large models take a minute or more; the
    logger `xruntime` tells, at level INFO.

    Raises CompilationError, SampleError, ThreadCountError, KernelsUnavailableError. Warns with
    InterpreterLockWarning if the compiled module was seen to hold the lock while it computes.
    """
    call = sample_call(sample)
    model = eager_module(model)
    chosen = chosen_options(options, threads=check_threads(threads), freezing=freezing)
    compiled = CompiledForStreams(
        model,
        _with_varying_sizes(call) if dynamic else call,
        threads=threads,
        autocast=_chosen_autocast(dtype),
        options=chosen,
        dynamic=dynamic,
        tolerance=tolerance,
    )
    graphs, _, _, lock = compiled.evidence
    if (lock.held_share or 0.0) > HELD_SHARE and lock.held_s > HELD_S:
        warnings.warn(
            f"{type(model).__name__} holds the interpreter's lock (GIL) for {lock.held_share:.0%} of a"
            " call, though it was compiled not to: streams will wait for each other. It was compiled"
            f" {_cut(graphs)}; what lies between graphs, and operators that are written in Python, run"
            " under the lock. TORCH_LOGS=graph_breaks tells what they are",
            InterpreterLockWarning,
            stacklevel=2,
        )
    return compiled


def _chosen_autocast(dtype: torch.dtype | None) -> Autocast | None:
    if dtype is None:
        if not torch.is_autocast_enabled("cpu"):
            return None
        return Autocast(torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled())
    if dtype not in DTYPES:
        raise CompilationError(
            f"dtype={dtype}: allowed are {', '.join(_name(allowed) for allowed in DTYPES)}, or None for"
            " the calling thread's autocast"
        )
    return None if dtype is torch.float32 else Autocast(dtype, cache=True)


def _with_varying_sizes(call: Sample) -> Sample:
    """The same call on other tensor objects, which say that dimension 0 may vary."""
    import torch._dynamo as dynamo

    def marked(value: Any) -> Any:
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([marked(item) for item in value])
        if kind is dict:
            return {key: marked(item) for key, item in value.items()}
        if not isinstance(value, torch.Tensor) or not value.dim():
            return value
        if value.shape[0] < 2:
            raise SampleError(
                f"dynamic=True needs a sample of at least 2 items, and one tensor has {value.shape[0]}:"
                " torch makes code of its own for sizes below 2"
            )
        value = CallShape().plain(value.detach())
        dynamo.maybe_mark_dynamic(value, 0)
        return value

    return Sample(marked(call.args), marked(call.kwargs))


def _cut(graphs: int) -> str:
    return "in one graph" if graphs == 1 else f"in {graphs} graphs, with Python between them"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


_NOTHING: Final = contextlib.nullcontext()
