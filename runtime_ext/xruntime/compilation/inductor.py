# SPDX-License-Identifier: Apache-2.0
"""Inductor's settings and errors, and the rule that one thread at a time compiles.

torch does not promise that two threads may compile at once (pytorch issues 118260, 136833, 168042), and
it starts compiling in whichever thread calls; so compiling needs a lock and a permission here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from xruntime.compilation.gil import CallableKind, kind_of
from xruntime.errors import CompilationError

compiling: Final = threading.RLock()
"""Held by the thread that compiles."""


class _Permission(threading.local):
    """Whether the calling thread, which then holds `compiling`, may compile."""

    given = False


_permission = _Permission()


class NotPermittedError(RuntimeError):
    """Raised through torch when a thread without permission would compile."""


def may_compile() -> bool:
    """Whether the calling thread is inside `permitted`."""
    return _permission.given


def eager_module(model: object) -> torch.nn.Module:
    """Return the eager module to compile. Raises CompilationError for what cannot be compiled."""
    original = getattr(model, "_orig_mod", None)
    if isinstance(model, torch.nn.Module) and isinstance(original, torch.nn.Module):
        model = original  # what torch.compile() was given
    if not callable(model):
        raise CompilationError(f"only an eager module can be compiled, not {type(model).__name__}")
    kind = kind_of(model)
    if kind is not CallableKind.EAGER or not isinstance(model, torch.nn.Module):
        raise CompilationError(
            f"only an eager module can be compiled, and this {type(model).__name__} is {kind.value}: give"
            " the module that it was made from"
        )
    training = parts_in_training(model)
    if training:
        raise CompilationError(
            f"the module is in training mode ({training}): call .eval() on it first"
        )
    elsewhere = {f"{p.device}" for p in model.parameters() if p.device.type != "cpu"}
    if elsewhere:
        raise CompilationError(
            f"the module has weights on {', '.join(sorted(elsewhere))}, and it is compiled for CPUs:"
            ' move it there by .to("cpu") first'
        )
    return model


def parts_in_training(model: torch.nn.Module) -> str:
    """Name the parts of a model that are in training mode, for a message; empty if there are none."""
    names = [name or "the module itself" for name, part in model.named_modules() if part.training]
    return ", ".join([*names[:1], *["..." for _ in names[1:2]]])


def inductor_options(
    requested: Mapping[str, Any] | None, *, threads: int, freezing: bool
) -> dict[str, Any]:
    """Join our settings of Inductor with those asked for. Raises CompilationError for a wrong one."""
    ours = {
        # The wrapper in C++ releases the GIL; the default one, in Python, does not.
        "cpp_wrapper": True,
        "freezing": freezing,
        # This makes the number of threads part of the key of torch's cache on disk, which lacks it
        # before torch 2.13 (pytorch issue 167463).
        "cpp.threads": threads,
    }
    requested = dict(requested or {})
    for name in ("cpp_wrapper", "cpp.threads"):
        if requested.get(name, ours[name]) != ours[name]:
            raise CompilationError(
                f"options: {name} has to be {ours[name]}, not {requested[name]!r}; leave it out"
            )
    if requested:
        import torch._inductor as inductor  # takes a second

        unknown = sorted(requested.keys() - set(inductor.list_options()))
        if unknown:
            raise CompilationError(
                f"options: torch {torch.__version__} has no {', '.join(unknown)}; torch._inductor."
                "list_options() lists all"
            )
    return ours | requested


def mend_compiler() -> None:
    """Work around errors of torch's compiler. Called before each use of it."""
    _keep_device_guard()
    _keep_reads_inside()
    _load_probes_without_torch()


@functools.cache
def _keep_device_guard() -> None:
    """Keep CUDA's device guard, which torch's tracing replaces, in a thread that never ends.

    A torch for CUDA on a machine without a device replaces that guard when something is first
    traced. It is freed when the tracing thread ends, and later tracing in any thread crashes.
    Seen with torch 2.11.
    """
    ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)  # noqa: SLF001 - there is no public one
    if ensure is None or torch.version.cuda is None or torch.cuda.is_available():
        return
    if threading.current_thread() is threading.main_thread():
        ensure()
        return
    done = threading.Event()

    def own() -> None:
        ensure()
        done.set()
        threading.Event().wait()

    threading.Thread(target=own, name="xruntime device guard", daemon=True).start()
    done.wait()


@functools.cache
def _keep_reads_inside() -> None:
    """Keep the vectors that compiled code reads inside the tensor.

    Where a row ends within a vector, torch's code reads all of it if the read has another condition: a padded
    pooling of 20 channels reads past its input, and ends the process where no memory follows. Seen with
    torch 2.11 and 2.13.
    """
    from torch._inductor.codegen.cpp import CppVecKernel

    original = CppVecKernel._get_vec_load_line  # noqa: SLF001 - there is no public one

    def load_line(
        self: Any, var: str, index: Any, dtype: torch.dtype, load_mask: Any = None
    ) -> str:
        line: str = original(self, var, index, dtype, load_mask)
        mask, loads, rest = line.partition(".template loadu<")
        if not loads or not self.tail_size:
            return line
        kind = self._get_mask_type(torch.float)
        return f"{kind}::set({kind}::from(false), {mask}, {self.tail_size}){loads}{rest}"

    CppVecKernel._get_vec_load_line = load_line  # type: ignore[method-assign]  # noqa: SLF001


@functools.cache
def _load_probes_without_torch() -> None:
    """Try the CPU's vector instructions without importing torch, as torch 2.13 does it.

    Each process that compiles loads a library for each instruction set in a Python of its own, up to six times.
    Before, each of these imported torch: 10 s in all on a Xeon, and a minute at a low priority.
    """
    import torch._inductor.cpu_vec_isa as probing

    probes: Any = probing
    importing, loading = "\nimport torch\n", getattr(probes.VecISA, "_avx_py_load", "")
    environment = getattr(probes, "python_subprocess_env", None)
    if sys.platform != "linux" or environment is None or not loading.startswith(importing):
        return

    def with_torch_libraries() -> dict[str, str]:
        directories = [os.path.join(os.path.dirname(torch.__file__), "lib")]
        variables: dict[str, str] = environment()
        directories += [variables["LD_LIBRARY_PATH"]] if variables.get("LD_LIBRARY_PATH") else []
        return variables | {"LD_LIBRARY_PATH": ":".join(directories)}

    probes.python_subprocess_env = with_torch_libraries
    probes.VecISA._avx_py_load = loading.removeprefix(importing)  # noqa: SLF001


@contextlib.contextmanager
def permitted() -> Iterator[None]:
    """Let the calling thread, which holds `compiling`, compile in the block, without any fallback."""
    from torch._dynamo import config

    # torch must not fall back to the eager module, neither after an error nor after many shapes.
    strict = {"suppress_errors": False, "fail_on_recompile_limit_hit": True}
    mend_compiler()
    settings = {name: value for name, value in strict.items() if hasattr(config, name)}
    before = _permission.given
    _permission.given = True
    try:
        with config.patch(settings):
            yield
    finally:
        _permission.given = before


@contextlib.contextmanager
def explaining(model: torch.nn.Module, *, only_compiles: bool = False) -> Iterator[None]:
    """Turn torch's compile errors in the block into a CompilationError of one line.

    Other errors pass, unless the block `only_compiles`.
    """
    try:
        yield
    except CompilationError:
        raise
    except Exception as error:
        explanation = _explanation(error)
        if explanation is None and only_compiles:
            explanation = first_line(error)
        if explanation is None:
            raise
        raise CompilationError(
            f"{type(model).__name__} cannot be compiled: {explanation}"
        ) from error


def _explanation(error: Exception) -> str | None:
    """Why torch could not compile; None for another error, such as the module's own."""
    if find_error(error, "InvalidCxxCompiler") is not None:
        return (
            "no C++ compiler works. Install one (Debian and Ubuntu: apt-get install g++), or name it in"
            " the variable CXX before Python starts"
        )
    failed = find_error(error, "CppCompileError")
    if failed is not None:
        text = str(failed)
        if "Python.h" in text:
            return (
                "the C++ compiler does not find Python.h. Install Python's headers (Debian and Ubuntu:"
                " apt-get install python3-dev)"
            )
        reasons = [line.strip() for line in text.splitlines() if "error" in line.lower()]
        return f"the C++ compiler failed: {reasons[1 if reasons[1:] else 0] if reasons else text[:200]}"
    if find_error(error, "FailOnRecompileLimitHit") is not None:
        return (
            "there are more shapes than torch compiles for (torch._dynamo.config.recompile_limit):"
            " pad the inputs to fewer sizes, or give compile_for_streams dynamic=True"
        )
    failed = find_error(error, "BackendCompilerFailed") or find_error(error, "TorchDynamoException")
    return None if failed is None else first_line(failed)


def find_error(error: BaseException, wanted: type | str) -> BaseException | None:
    """Find an error of that class, or a class of that name, among the error and its causes."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        candidate = waiting.pop(0)
        if not isinstance(candidate, BaseException) or candidate in seen:
            continue
        seen.append(candidate)
        if any(kind is wanted or kind.__name__ == wanted for kind in type(candidate).__mro__):
            return candidate
        waiting += [
            candidate.__cause__,
            candidate.__context__,
            getattr(candidate, "inner_exception", None),
        ]
    return None


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:400]}" if lines else type(error).__name__
