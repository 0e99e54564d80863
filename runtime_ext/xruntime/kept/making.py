# SPDX-License-Identifier: Apache-2.0
"""Compiles a model in a child process of low priority, into a library that `store` keeps.

The child is forked, so that it has the model without copying it, by a thread of its own: an OpenMP team that
this process has does not exist in a child, but a thread that never had one can make its own there. The child
ends when this process does, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch import nn

from xruntime import operator_library
from xruntime.aoti.compiling import library_settings
from xruntime.aoti.inputs import input_specs
from xruntime.compilation.inductor import (
    compiling,
    explaining,
    first_line,
    inductor_options,
    mend_compiler,
)
from xruntime.errors import CompilationError
from xruntime.kept.calls import Pattern, ServedSizes
from xruntime.kept.compile_queue import compile_queue
from xruntime.kept.library import LIBRARY, NotCompiledError, write_description
from xruntime.threads.team import team_of

CAN_FORK: Final = hasattr(os, "fork") and sys.platform == "linux"

ONLY_IDLE: Final = 19
"""The niceness that means SCHED_IDLE: the process runs only while a CPU is idle."""

KEPT_SPEED: Final = {5: 0.64, 10: 0.81, ONLY_IDLE: 0.98}
"""Share of its speed that a program keeps beside a process of that niceness, by `benchmarks.optimize.priority` with
two OpenMP threads on two CPUs: one thread that waits holds up the other."""

MAX_SHARING_THREADS: Final = 2
"""Maximum number of threads that share their CPUs with the compiler. With more, all wait for the
one that shares its CPU; they leave a core to the compiler instead."""

ALLOWED_LOSS: Final = 1.05
"""Maximum time of a program, relative to the same program without `optimize`."""


class CompileJob(NamedTuple):
    """What is to be compiled."""

    name: str
    """The model's, for errors."""

    call: Callable[[list[torch.Tensor]], Any]
    """Computes the outputs of a call with these tensors: a list of tensors and other values."""

    tensors: list[torch.Tensor]
    """A sample."""

    pattern: Pattern
    threads: int
    options: Mapping[str, Any] = MappingProxyType({})
    """More settings of Inductor."""

    strict: bool = False
    """Refuse a model in which Python would have to run between graphs. Otherwise that Python is left out."""


WORK: Final = "work"
"""The directory of the compiler's own files, beside what is kept."""


class NoLibraryError(CompilationError):
    """There can be no library of a model; another attempt would fail in the same way."""


class CompilePriority(NamedTuple):
    """How to compile while the program goes on."""

    nice: int
    leaves_core: bool = False
    """Whether the program's calls use one thread less meanwhile."""


def compile_priority(speedup: float, threads: int, cpus: int) -> CompilePriority:
    """Return how to compile beside a program that is `speedup` times as fast as it was.

    `threads`: of its calls. `cpus`: how many CPUs the process may use.
    """
    allowed = ALLOWED_LOSS * speedup
    if threads <= MAX_SHARING_THREADS:
        allowed_levels = [nice for nice, kept in KEPT_SPEED.items() if allowed * kept >= 1]
        return CompilePriority(min(allowed_levels, default=ONLY_IDLE))
    leaves_core = threads >= cpus and allowed * (threads - 1) / threads >= 1
    return CompilePriority(ONLY_IDLE, leaves_core)


def compile_in_child(job: CompileJob, directory: str, nice: int) -> None:
    """Write the library and its description into `directory`.

    `nice`: the child's niceness. Called in a thread that has run nothing parallel. Raises NotCompiledError,
    and OSError where there can be no other process.
    """
    reading, writing = os.pipe()
    life, held = os.pipe()
    with open(reading, "rb") as stream, open(held, "wb"):
        try:
            with compiling, _quiet_tokenizers(), warnings.catch_warnings():
                # Python 3.12 warns of a fork beside other threads. The child runs nothing that depends on
                # them, and the locks of what it runs are free.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
                if child == 0:
                    _leave_program()
                    _run_child(job, directory, nice, writing, life)
        finally:
            os.close(writing)
            os.close(life)
        with compile_queue.child(child):
            with contextlib.suppress(ChildProcessError):  # the program waits for any child
                os.waitpid(child, 0)
            said = stream.read()
    if not said:
        raise NotCompiledError("the process that compiled ended early", final=False)
    result = json.loads(said)
    if result["reason"] is not None:
        raise NotCompiledError(result["reason"], final=result["final"])


@contextlib.contextmanager
def _quiet_tokenizers() -> Any:
    """The package tokenizers would print at a fork that its parallelism is off in the child."""
    name = "TOKENIZERS_PARALLELISM"
    speaks = "tokenizers" in sys.modules and name not in os.environ
    if speaks:
        os.environ[name] = "true"
    try:
        yield
    finally:
        if speaks:
            del os.environ[name]


def _leave_program() -> None:
    """Go on in a child of this process, in a process group named after this one, which ends.

    So the compiler is no child that the program could wait for.
    """
    try:
        os.setpgid(0, 0)
        child = os.fork()
    except BaseException:  # noqa: BLE001 - this process must not go on as the program
        os._exit(1)
    if child:
        os._exit(0)


def _run_child(job: CompileJob, directory: str, nice: int, writing: int, life: int) -> NoReturn:
    reason, final = None, False
    try:
        _become_background(nice, {writing, life})
        threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()
        compile_library(job, directory)
    except CompilationError as error:
        reason, final = str(error), isinstance(error, NoLibraryError)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the program goes on
        reason = first_line(error)
    finally:
        shutil.rmtree(os.path.join(directory, WORK), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.write(writing, json.dumps({"reason": reason, "final": final}).encode())
        os._exit(0)


def _become_background(nice: int, kept: set[int]) -> None:
    """Detach from the program's terminal, files and signals, and take a lower priority."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    # A GPU's context cannot be used in a forked process; torch's compiler looks at its random numbers.
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: 0
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    # The program's streams may use descriptors that are closed now.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    logging.disable()
    os.nice(nice)
    if nice == ONLY_IDLE:  # niceness alone takes a tenth from a program that saves nothing
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Where memory runs out, this process is what can be spared. And `ps` shows what it is.
    for name, value in (("oom_score_adj", "1000"), ("comm", "xruntime-compil")):
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as stream:
            stream.write(value)


def _end_with_parent(life: int) -> None:
    """Wait until no process holds the other end of the pipe any more; then end, with the compiler."""
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


class _CallModule(nn.Module):
    """The call as a module, as torch.export wants it. It has the model's parameters through `model`."""

    def __init__(self, call: Callable[[list[torch.Tensor]], Any]) -> None:
        super().__init__()
        self.model = getattr(call, "model", None)
        self._call = call
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self._call(list(tensors))


def compile_library(job: CompileJob, directory: str) -> None:
    """Compile into `directory`, in this process, where the model serves nothing else. Raises CompilationError."""
    import torch._inductor as inductor
    import torch._inductor.config as settings

    began = time.perf_counter()
    work = os.path.join(directory, WORK)
    os.mkdir(work)
    module = as_module(job)
    _separate(module)
    given = inductor_options(job.options, threads=job.threads, freezing=True)
    given = operator_library.c_calls() | given
    options = library_settings(given, operator_library.loaded().path)
    options["aot_inductor.output_path"] = os.path.join(work, LIBRARY)
    mend_compiler()
    with (
        compiling,
        team_of(1),  # threads that wait for work would take more from the program
        explaining(module, only_compiles=True),
        torch.no_grad(),
        settings.patch(compile_threads=1),
        _packing_for(job.threads),
    ):
        exported = exported_program(module, job)
        graph: Any = exported.module(check_guards=False)
        written: Any = inductor.aot_compile(graph, tuple(job.tensors), options=options)
    sizes = served_sizes(exported)
    problem = calls_by_torch(work)
    if problem is not None:
        raise NoLibraryError(f"{job.name} calls {problem}")
    sources = [path.read_text(errors="replace") for path in Path(work).glob("*.cpp")]
    specs = input_specs(sources, len(job.tensors))
    os.rename(written, os.path.join(directory, LIBRARY))
    os.chmod(os.path.join(directory, LIBRARY), 0o600)
    machine = options["aot_inductor.metadata"]
    write_description(directory, sizes, specs, machine, time.perf_counter() - began)


def _separate(module: nn.Module) -> None:
    """Give the weights that are parts of wider memory their own: the compiler writes the memory of each."""
    for tensor in (*module.parameters(), *module.buffers()):
        plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
        if plain and tensor.untyped_storage().nbytes() > tensor.nbytes:
            tensor.data = tensor.data.clone()


def as_module(job: CompileJob) -> nn.Module:
    """Return what is exported, of a class with the model's name, which errors have."""
    named: type[_CallModule] = type(job.name, (_CallModule,), {})
    return named(job.call)


def exported_program(module: nn.Module, job: CompileJob) -> torch.export.ExportedProgram:
    """Export it. Raises NoLibraryError, also for a call that writes into its arguments or the model, and what the
    model raises.
    """
    auto = torch.export.Dim.AUTO
    varying = [{d: auto for d, n in enumerate(dims) if n is None} for dims in job.pattern.dims]
    try:
        with _refusing_disabled(job.name):
            exported = torch.export.export(
                module,
                tuple(job.tensors),
                dynamic_shapes={"tensors": tuple(varying)} if any(varying) else None,
                strict=job.strict,
            )
        _refuse_writes(exported)
    except Exception as error:
        if type(error).__module__.startswith("torch."):
            text = f"torch.export cannot export {job.name}: {first_line(error)}"
            raise NoLibraryError(text) from error
        raise
    return exported


def _refuse_writes(exported: torch.export.ExportedProgram) -> None:
    """Refuse what writes, whatever the values: the sample's may be those that were there."""
    schemas = [getattr(node.target, "_schema", None) for node in exported.graph.nodes]
    if any(schema is not None and schema.is_mutable for schema in schemas):
        signature = exported.run_decompositions({}).graph_signature
        if signature.user_inputs_to_mutate:
            raise NoLibraryError("a call changes its arguments")
        if signature.buffers_to_mutate or signature.parameters_to_mutate:
            raise NoLibraryError("a call changes the model")


@contextlib.contextmanager
def _packing_for(threads: int) -> Iterator[None]:
    """Let torch pack weights for calls of `threads` threads. oneDNN's formats depend on that number, and weights
    in another format would be converted in each call.
    """
    import torch._inductor.freezing as freezing

    original = freezing.freeze

    def freeze(*args: Any, **kwargs: Any) -> Any:
        with team_of(threads):
            return original(*args, **kwargs)

    freezing.freeze = freeze
    try:
        yield
    finally:
        freezing.freeze = original


def calls_by_torch(work: str) -> str | None:
    """Return which calls of the code only torch's own runner can make; None if there are none."""
    texts = [path.read_text() for path in Path(work).glob("*.wrapper.json")]
    if not texts:
        return None
    names = sorted({name for text in texts for name in re.findall(r'"target": *"([^"]*)"', text)})
    problem = f"operators that have no C interface: {', '.join(names)}"
    library = operator_library.loaded()
    ours = {f"xruntime::{name}" for name in operator_library.C_FUNCTIONS}
    if library.path is None and ours.intersection(names):
        problem += f"; libxoperators.so has it, and is not in use ({library.reason})"
    return problem


@contextlib.contextmanager
def _refusing_disabled(name: str) -> Iterator[None]:
    """Refuse functions under torch.compiler.disable: a lenient export calls them once, and keeps the result."""
    import torch._dynamo.eval_frame as frames

    original = getattr(frames, "_callback_from_stance", None)  # each such function calls it

    def refuse(callback: Any) -> Any:
        function = sys._getframe(1).f_locals.get("fn")  # noqa: SLF001
        if callback is None and not getattr(function, "__module__", "torch.").startswith("torch."):
            raise NoLibraryError(
                f"{name} calls {getattr(function, '__qualname__', function)}, which torch.compiler.disable"
                " keeps out of compiled code"
            )
        return original(callback)  # type: ignore[misc]

    if original is not None:
        frames._callback_from_stance = refuse  # noqa: SLF001
    try:
        yield
    finally:
        if original is not None:
            frames._callback_from_stance = original  # noqa: SLF001


def served_sizes(exported: Any) -> ServedSizes:
    """Return for which sizes a program was exported, once it has been compiled.

    The compiler adds conditions to those of the export. Raises CompilationError where they cannot be
    written down.
    """
    from torch.utils._sympy.printers import PythonPrinter

    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    inputs = [nodes[name].meta["val"] for name in exported.graph_signature.user_inputs]
    environment = None
    # Sizes that depend on others, such as that of offsets with the last one, by names of their own.
    derived: dict[str, Any] = {}
    dims: list[list[int | str]] = []
    for value in inputs:
        own: list[int | str] = []
        for size in value.shape:
            if isinstance(size, torch.SymInt):
                environment, expression = size.node.shape_env, size.node.expr
                if expression.is_Integer:
                    own.append(int(expression))
                elif expression.is_Symbol:
                    own.append(str(expression))
                else:
                    name = f"derived{len(derived)}"
                    derived[name] = expression
                    own.append(name)
            else:
                own.append(int(size))
        dims.append(own)
    if environment is None:
        return ServedSizes(dims, {}, ())
    used = {name for own in dims for name in own if isinstance(name, str)}
    ranges: dict[str, tuple[int, int | None]] = {}
    for symbol, limits in environment.var_to_range.items():
        if str(symbol) in used:
            high = int(limits.upper) if limits.upper.is_Integer else None
            ranges[str(symbol)] = max(2, int(limits.lower)), high
    ranges |= dict.fromkeys(derived, (0, None))
    written = PythonPrinter().doprint
    conditions = {f"{name} == {written(it)}": it for name, it in derived.items()}
    for guard in environment.guards:
        condition = environment.replace(guard.expr)
        if condition.free_symbols:  # otherwise it held when the code was compiled
            conditions[written(condition)] = condition
    for condition in conditions.values():
        if not {str(symbol) for symbol in condition.free_symbols} <= used:
            raise CompilationError(f"it holds under a condition that no size tells: {condition}")
    return ServedSizes(dims, ranges, sorted(conditions))
