# SPDX-License-Identifier: Apache-2.0
"""Runs AOTInductor packages, code that was compiled elsewhere or before, without the interpreter's lock.

    compile_package(model, sample, "model.pt2", threads=4)      # needs a C++ compiler; this machine
    package = load_package("model.pt2", runners=16)             # needs none
    streams = MultiStreamModule(package, num_streams=16)

torch's own runner, torch._inductor.aoti_load_package, keeps the lock while the code computes (pytorch
issue 197516), runs one call at a time unless told otherwise (134946), and reads tensors of a wrong
dtype or layout as if they were right. The code itself has a C interface, which is called here.

Where that cannot be done (see `packages.runners`) torch's runner is used, and a warning says so.
"""

from __future__ import annotations

import inspect
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch

from xruntime.compilation.inductor import (
    chosen_options,
    compiling,
    eager_module,
    explaining,
    keep_device_guard,
)
from xruntime.compilation.kinds import Kind
from xruntime.compilation.samples import Sample, check_threads, sample_call, wrong_thread_error
from xruntime.errors import (
    CompilationError,
    InterpreterLockWarning,
    PackageError,
    ThreadCountError,
    UncheckedInputWarning,
)
from xruntime.packages.files import (
    THREADS_KEY,
    TORCH_KEY,
    PackageContents,
    check_trusted,
    extract_library,
    opened,
    own_description,
    read_contents,
)
from xruntime.packages.inputs import Inputs, input_specs
from xruntime.packages.linking import linking_settings
from xruntime.packages.runners import CRunner, Runner, TorchRunner, why_not_by_hand
from xruntime.threads.team import team_of

TRIED_TORCH: Final = "2.8 to 2.13"


class StreamPackage:
    """A loaded package: called like the module that it was made from, by many threads at once.

    `runners` calls run at a time, on one copy of the weights; others wait for one to end, without the
    lock. Made by `load_package`. close(), or the last reference going away, frees the weights.

    A call raises PackageInputError where it does not fit what the package was made for,
    ThreadCountError in a thread with another number of threads, if the package was made by
    `compile_package`, PackageError with the code's own message where that fails, and ClosedError.
    """

    def __init__(
        self,
        path: str,
        contents: PackageContents,
        runner: Runner,
        *,
        runners: int,
        reason: str | None,
    ) -> None:
        self.path = path
        self.runners = runners
        noted = contents.description.get(THREADS_KEY, "")
        self.threads = int(noted) if noted.isdigit() else None
        """How many threads the code was made for; None where the package does not tell."""

        self.stream_kind = Kind.PACKAGE if reason is None else Kind.PACKAGE_UNDER_LOCK
        self._reason = reason
        self._torch = contents.description.get(TORCH_KEY)
        self._runner = runner
        self._inputs = Inputs(runner.input_form, input_specs(contents.sources, runner.inputs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's outputs."""
        if self.threads is not None and (have := torch.get_num_threads()) != self.threads:
            raise wrong_thread_error(self.threads, have)
        return self._runner.run(self._inputs.of_call(args, kwargs))

    @property
    def unchecked(self) -> str:
        """Which inputs are passed on without a check, in words; empty if none is."""
        return self._inputs.unchecked

    def describe(self) -> str:
        """What is loaded and how it is called: a few lines to read."""
        made = f", made by torch {self._torch}" if self._torch else ""
        threads = "unknown" if self.threads is None else str(self.threads)
        lock = (
            "free during a call"
            if self._reason is None
            else f"held during a call, because {self._reason}"
        )
        lines = [
            f"{self.path}{made}: {self.runners} calls at a time, threads of each: {threads}",
            f"  the interpreter's lock is {lock}",
        ]
        if self._inputs.unchecked:
            lines.append(
                f"  not checked: {self._inputs.unchecked}, of which its C++ does not tell enough"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<StreamPackage {self.path}, {self.runners} calls at a time>"

    def close(self) -> None:
        """Wait for the calls that run, then free the weights. Closing again does nothing."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def load_package(
    path: str | os.PathLike[str], *, runners: int, model: str = "model"
) -> StreamPackage:
    """Load a package (.pt2) for `runners` calls at a time: as many as there will be streams.

    `model` names one of several that a package may hold. A package is code that this process runs, so
    it must not be writable by other users. Its library is unpacked into a private temporary folder
    (TMPDIR), and deleted when it is loaded.

    Raises PackageError for a file that is no package, is altered, may be changed by others, or was
    made for another machine; ThreadCountError for runners below 1. Warns with InterpreterLockWarning
    where the code can only be called through torch's own runner, and with UncheckedInputWarning where
    its C++ does not tell what tensors it takes.
    """
    _check_runners(runners)
    path = os.path.abspath(os.fspath(path))
    if not os.path.exists(path):
        raise PackageError(f"{path}: there is no such file")
    check_trusted(path)
    with tempfile.TemporaryDirectory(prefix="xruntime-package-") as folder:
        with opened(path) as archive:
            contents = read_contents(archive, path, model)
            reason = contents.needs_torchs_runner or why_not_by_hand()
            library = None if reason else extract_library(archive, contents, folder, path)
        # Once it is loaded nothing reads the file again.
        runner: Runner = (
            TorchRunner(path, runners, model)
            if library is None
            else CRunner(library, runners, path)
        )
    if reason is not None:
        warnings.warn(
            f"{path} is called through torch's own runner, which holds the interpreter's lock (GIL)"
            f" while the code computes, so streams wait for each other: {reason}",
            InterpreterLockWarning,
            stacklevel=2,
        )
    package = StreamPackage(path, contents, runner, runners=runners, reason=reason)
    if package.unchecked:
        warnings.warn(
            f"{path}: {package.unchecked} will not be checked, since its C++ does not tell what they have to"
            f" be in a way that is known from torch {TRIED_TORCH}. A tensor of another dtype, shape or"
            " memory layout would give wrong numbers. Make it by compile_package, with the torch that"
            " runs it",
            UncheckedInputWarning,
            stacklevel=2,
        )
    return package


def _check_runners(runners: object) -> None:
    if isinstance(runners, bool) or not isinstance(runners, int) or runners < 1:
        raise ThreadCountError(
            f"runners={runners!r}: it is the number of calls that may run at a time, at least 1"
        )


def compile_package(
    model: torch.nn.Module,
    sample: object,
    path: str | os.PathLike[str],
    *,
    threads: int,
    freezing: bool = True,
    dynamic: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Compile an eager module into the package `path` (.pt2), for streams of `threads` cores.

    `sample`, `freezing`, `dynamic` and `options` are as for compile_for_streams; precision is the
    module's own, so convert it first, by .to(torch.bfloat16) for instance. Only the sample's shape can
    be run, save that with `dynamic` dimension 0 of every tensor may vary whose size is not fixed by the
    module. The package runs on CPUs with
    the instructions of this one.

    Raises CompilationError, SampleError, ThreadCountError, KernelsUnavailableError.
    """
    import torch._inductor as inductor

    call = _dense(sample_call(sample))
    module = eager_module(model)
    path = os.path.abspath(os.fspath(path))
    if not path.endswith(".pt2") or not os.path.isdir(os.path.dirname(path)):
        raise CompilationError(
            f"{path}: a package needs a name that ends in .pt2, in a folder that exists"
        )
    settings = chosen_options(options, threads=check_threads(threads), freezing=freezing)
    del settings["cpp_wrapper"]  # it always is
    metadata = own_description(threads, torch.__version__)
    settings["aot_inductor.metadata"] = metadata | settings.get("aot_inductor.metadata", {})
    keep_device_guard()
    with compiling, team_of(threads), explaining(module, only_compiles=True), torch.no_grad():
        settings = linking_settings() | settings
        exported = torch.export.export(
            module,
            call.args,
            call.kwargs,
            dynamic_shapes=_varying(module, call) if dynamic else None,
        )
        if dynamic and not exported.range_constraints:
            raise CompilationError(
                f"dynamic=True: dimension 0 of no tensor of the sample can vary in"
                f" {type(module).__name__}. Give a sample of at least 2 items; TORCH_LOGS=+dynamic tells"
                " what fixes the size"
            )
        written: str = inductor.aoti_compile_and_package(
            exported, package_path=path, inductor_configs=settings
        )
    return Path(written)


def _dense(call: Sample) -> Sample:
    """The same call, its tensors without gaps: what is made of them then expects no other."""

    def dense(value: Any) -> Any:
        gaps = isinstance(value, torch.Tensor) and _has_gaps(value)
        return value.contiguous() if gaps else value

    return Sample(_mapped(dense, call.args), _mapped(dense, call.kwargs))


def _has_gaps(value: torch.Tensor) -> bool:
    formats = [torch.contiguous_format]
    formats += {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(value.dim(), [])
    return not any(value.is_contiguous(memory_format=known) for known in formats)


def _varying(module: torch.nn.Module, call: Sample) -> dict[str, Any]:
    """torch.export's words for "dimension 0 may vary if it can", by forward's parameters."""

    def vary(value: Any) -> dict[int, Any] | None:
        tensor = isinstance(value, torch.Tensor) and value.dim()
        return {0: torch.export.Dim.AUTO} if tensor else None

    bound = inspect.signature(module.forward).bind(*call.args, **call.kwargs)
    return {name: _mapped(vary, value) for name, value in bound.arguments.items()}


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The nest of tuples, lists and dicts, with what the function makes of what is in them."""
    if type(value) in (tuple, list):
        return type(value)([_mapped(function, item) for item in value])
    if type(value) is dict:
        return {key: _mapped(function, item) for key, item in value.items()}
    return function(value)
