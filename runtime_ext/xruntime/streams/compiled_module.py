# SPDX-License-Identifier: Apache-2.0
"""Compiles a module so that streams can run it side by side, without the GIL.

    compiled = compile_for_streams(model, sample, threads=4, dtype=torch.bfloat16)
    streams = MultiStreamModule(compiled, num_streams=16)

torch.compile by itself makes code that holds the GIL while it computes, that is compiled again in
every thread with another number of threads or another grad mode, and that must not be compiled in
two threads at once (pytorch issues 118260, 136833, 168042). `compile_for_streams` compiles in one
thread at a time, for one number of threads, and refuses any other. The code is kept for the next process,
see `xruntime.kept.stream_code`.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Self

import torch

from xlaunch.text import counted
from xruntime.compilation.compiled_code import pieces
from xruntime.compilation.gil import CallableKind
from xruntime.compilation.inductor import first_line
from xruntime.compilation.judge import Difference
from xruntime.compilation.samples import (
    Sample,
    checked_count,
    sample_call,
    with_varying_sizes,
    wrong_thread_error,
)
from xruntime.errors import CompilationError, GILWarning, refusing
from xruntime.kept.stream_code import StreamCode
from xruntime.threads.team import resize_team, team_of
from xruntime.threads.torch_modes import Autocast, current_autocast

_log = logging.getLogger("xruntime")

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


class Evidence(NamedTuple):
    """What was measured when a module was compiled."""

    graphs: int
    """The number of graphs that torch cut the module into; Python runs between them, under the GIL."""

    compile_s: float
    difference: Difference
    """The largest between the compiled and the eager module's outputs, on the sample."""

    call_s: float


def _refusing(instead: str) -> Any:
    text = f"compiled code and its weights cannot be changed: {instead}, then compile it again"
    return refusing(CompilationError, text)


class CompiledForStreams(torch.nn.Module):
    """A module's compiled form, for threads that have `threads` cores each. Called like the module.

    Made by `compile_for_streams`. Any number of threads may call it at once. It runs in inference mode,
    under the autocast that it was compiled for, whatever the caller's modes are.

    A compiled module is frozen: after a change of the original call `prepare()` again; `check()` compares
    the two.

    A call raises ThreadCountError in a thread with another number of threads, and CompilationError
    where torch would compile again for another reason than a new shape, or run the eager module.
    """

    threads: int
    """The number of threads that it was compiled for."""

    evidence: Evidence

    stream_kind: Final = CallableKind.COMPILED_FOR_STREAMS

    def __init__(self, code: StreamCode, call: Sample, *, threads: int, dynamic: bool) -> None:
        super().__init__()
        self.model = code.model
        self.threads = threads
        self.dynamic = dynamic
        self._code = code
        self.samples = [call]
        """The calls that it was prepared for; the first is the one that it was made with."""

        self.eval()
        _log.info(
            "compiling %s for streams of %s; this may take a minute",
            code.name,
            counted(threads, "thread"),
        )
        with team_of(threads):
            self.evidence = self._compile(call)
        _log.info("%s", self.describe())

    @property
    def tolerance(self) -> float:
        """The largest allowed difference from the eager module, relative to an output's largest value."""
        return self._code.tolerance

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's outputs, as in eval mode."""
        have = torch.get_num_threads()
        if have != self.threads:
            raise wrong_thread_error(self.threads, have)
        return self._code(args, kwargs)

    def prepare(self, sample: object = None) -> Self:
        """Compile for another shape now, rather than in a stream's first call with it.

        `sample` is as for compile_for_streams. After a change of the module: without a sample, or with
        one of a shape that was compiled before, discard all code and compile again, now for this sample
        (None: the first one) and for other shapes at their next call. Raises CompilationError, SampleError.
        """
        call = self.samples[0] if sample is None else sample_call(sample)
        with team_of(self.threads):
            if sample is None or self._code.has_code(*call):
                self._code.discard()
            self._code(*call)
        if sample is not None:
            self.samples.append(call)
        return self

    def compile_call(self, call: Sample) -> None:
        """Compile for the shape of a call, unless that was done. It is not added to `samples`."""
        with team_of(self.threads):
            if not self._code.has_code(*call):
                self._code(*call)

    def check(self, sample: object = None) -> Difference:
        """Compare with the original module as it is now; return the largest difference.

        `sample` is as for compile_for_streams; None: the one that it was compiled with. Raises
        CompilationError if the difference is above the tolerance.
        """
        call = self.samples[0] if sample is None else sample_call(sample)
        with team_of(self.threads):
            return self._code.compare_outputs(self._code.eager(*call), self._code(*call))

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """Return the original module's outputs, in the same modes."""
        return self._code.eager(args, kwargs)

    def describe(self) -> str:
        """Describe what was compiled and measured, in a few lines."""
        code, (graphs, compile_s, different, call_s) = self._code, self.evidence
        notes = [f"torch {torch.__version__}"]
        notes += ["weights frozen"] if code.options.get("freezing") else []
        notes += [f"autocast to {_name(code.autocast.dtype)}"] if code.autocast else []
        notes += ["dimension 0 may vary"] if self.dynamic else []
        return "\n".join(
            (
                f"{code.name}, compiled for streams of {counted(self.threads, 'thread')} ({', '.join(notes)})",
                f"  {pieces(graphs)}, ready after {compile_s:.1f} s; a call takes {call_s * 1e3:.2f} ms",
                *(f"  {note}" for note in code.notes),
                f"  compared with the eager module: {different}",
                f"  graphs compiled so far, for all shapes: {code.graphs}",
            )
        )

    def _compile(self, call: Sample) -> Evidence:
        """Compile for the call in the calling thread, and check the result."""
        expected = self._code.eager(*call)
        began = time.perf_counter()
        outputs = self._code(*call)
        compile_s = time.perf_counter() - began
        graphs = self._code.graphs
        different = self._code.compare_outputs(expected, outputs)
        if different.other_dtypes:
            _log.warning("%s: %s", self._code.name, different.other_dtypes)
        self._call_from_another_thread(call)
        began = time.perf_counter()
        self._code(*call)
        return Evidence(graphs, compile_s, different, time.perf_counter() - began)

    def _call_from_another_thread(self, call: Sample) -> None:
        """Raise CompilationError if a thread that is set up like a stream's cannot run the code."""
        try:
            # Its thread may not compile: only the calling thread may.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(resize_team, self.threads).result()
                pool.submit(self, *call.args, **call.kwargs).result()
        except Exception as error:
            raise CompilationError(
                f"{self._code.name} was compiled, but a second thread cannot run it:"
                f" {first_line(error)}"
            ) from error

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode. Raises CompilationError for training mode."""
        if mode:
            raise CompilationError(
                "a module that was compiled for streams runs in eval mode only: train the original"
                " module, then compile it again"
            )
        return super().train(False)

    compile = _refusing("call .compile() on the original module")
    _apply = _refusing("convert or move the original module")
    load_state_dict = _refusing("load them into the original module")
    __reduce__ = _refusing("pickle or copy the original module")


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
        calling thread's autocast, if that is on.
    freezing
        Make the weights constants of the code: they are packed for the CPU's instructions, and batch
        norms are folded into convolutions.
    dynamic
        Let dimension 0 of every tensor vary from the start; the sample needs at least 2 items.
    options
        More settings of Inductor, as torch.compile takes them, for example {"max_autotune": True}.
    tolerance
        The largest allowed difference from the eager module, relative to the largest value of each
        output. None: what the precision in use explains, see `xruntime.compilation.judge`.
        Infinity: any.

    The calling thread waits, and its thread counts are `threads` meanwhile; the process's do not change.
    A child process compiles, which needs a C++ compiler and a minute or more for large models. Later processes
    load what is kept. Where nothing can be kept, this process compiles; `describe()` says why. The module is
    called twice or more, and the compiled form several times, once from another thread. The logger `xruntime`
    reports progress at level INFO.

    Raises CompilationError, SampleError, ThreadCountError, KernelsUnavailableError. Warns with
    GILWarning if torch cut the module into several graphs.
    """
    call = sample_call(sample)
    code = StreamCode(
        model,
        threads=checked_count("threads", threads, "the number of cores of each stream"),
        freezing=freezing,
        dynamic=dynamic,
        options=options,
        autocast=_chosen_autocast(dtype),
        tolerance=tolerance,
    )
    compiled = CompiledForStreams(
        code, with_varying_sizes(call) if dynamic else call, threads=threads, dynamic=dynamic
    )
    graphs = compiled.evidence.graphs
    if graphs > 1:
        warnings.warn(
            f"{code.name} was compiled {pieces(graphs)}. Streams wait for each other there, because"
            " Python holds the GIL. TORCH_LOGS=graph_breaks shows the cause of each cut",
            GILWarning,
            stacklevel=2,
        )
    return compiled


def _chosen_autocast(dtype: torch.dtype | None) -> Autocast | None:
    if dtype is None:
        return current_autocast()
    if dtype not in DTYPES:
        raise CompilationError(
            f"dtype={dtype}: allowed are {', '.join(_name(allowed) for allowed in DTYPES)}, or None for"
            " the calling thread's autocast"
        )
    return None if dtype is torch.float32 else Autocast(dtype, cache=True)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
