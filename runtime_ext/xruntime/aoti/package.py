# SPDX-License-Identifier: Apache-2.0
"""Loads AOTInductor packages, compiled ahead of time, and runs them without the GIL.

    compile_package(model, sample, "model.pt2", threads=4)      # needs a C++ compiler
    package = load_package("model.pt2", runners=16)             # needs none
    streams = MultiStreamModule(package, num_streams=16)

torch's own runner, torch._inductor.aoti_load_package, holds the GIL while the code computes (pytorch
issue 197516), runs one call at a time by default (134946), and does not check dtypes and layouts of
tensors. The code itself has a C interface, which is called here.

Where that is impossible (see `aoti.runners`), torch's runner is used and a warning says so.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any, Final, Self

import torch

from xlaunch.files import temporary_directory
from xruntime.aoti.inputs import Inputs, input_specs
from xruntime.aoti.package_file import (
    THREADS_KEY,
    TORCH_KEY,
    PackageContents,
    check_trusted,
    extract_library,
    opened,
    read_contents,
)
from xruntime.aoti.runners import CRunner, Runner, TorchRunner, c_interface_problem
from xruntime.compilation.gil import CallableKind
from xruntime.compilation.samples import checked_count, wrong_thread_error
from xruntime.errors import (
    GILWarning,
    PackageError,
    UncheckedInputWarning,
)

TRIED_TORCH: Final = "2.8 to 2.13"


class StreamPackage:
    """A loaded package, called like the module that it was compiled from. Made by `load_package`.

    Many threads may call it. `runners` calls run at a time, on one copy of the weights; others wait,
    without the GIL. close(), or dropping the last reference, frees the weights.

    A call raises PackageInputError for arguments that the package was not compiled for,
    ThreadCountError in a thread with another number of threads (for packages of `compile_package`),
    PackageError with the code's own message if the code fails, and ClosedError.
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
        """The number of threads that the code was compiled for; None if the package does not say."""

        self.stream_kind = (
            CallableKind.PACKAGE if reason is None else CallableKind.PACKAGE_UNDER_GIL
        )
        self._reason = reason
        self._torch = contents.description.get(TORCH_KEY)
        self._runner = runner
        self._inputs = Inputs(runner.input_form, input_specs(contents.sources, runner.inputs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's outputs."""
        if self.threads is not None and (have := torch.get_num_threads()) != self.threads:
            raise wrong_thread_error(self.threads, have)
        return self._runner.run(self._inputs.of_call(args, kwargs))

    @property
    def unchecked(self) -> str:
        """The inputs that are not checked, in words; empty if all are."""
        return self._inputs.unchecked

    def describe(self) -> str:
        """Describe what is loaded and how it is called, in a few lines."""
        compiled_by = f", compiled by torch {self._torch}" if self._torch else ""
        threads = "unknown" if self.threads is None else str(self.threads)
        gil = (
            "released during a call"
            if self._reason is None
            else f"held during a call, because {self._reason}"
        )
        lines = [
            f"{self.path}{compiled_by}: {self.runners} calls at a time, threads of each: {threads}",
            f"  the GIL is {gil}",
        ]
        if self._inputs.unchecked:
            lines.append(
                f"  not checked: {self._inputs.unchecked}, because the package's C++ does not describe them"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<StreamPackage {self.path}, {self.runners} calls at a time>"

    def close(self) -> None:
        """Wait for running calls, then free the weights. Closing again does nothing."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_package(
    path: str | os.PathLike[str], *, runners: int, model: str = "model"
) -> StreamPackage:
    """Load a package (.pt2) for `runners` calls at a time: one for each stream.

    `model` names one of the models in the package. A package is code that this process runs, so it must
    not be writable by other users. Its library is unpacked into a private temporary directory (TMPDIR)
    and deleted once it is loaded.

    Raises PackageError for a file that is not a package, is damaged, can be changed by others, or was
    compiled for another machine; ThreadCountError for runners below 1. Warns with GILWarning if only
    torch's own runner can call the code, and with UncheckedInputWarning if the package's C++ does not
    describe its inputs.
    """
    checked_count("runners", runners, "the number of calls that run at a time")
    path = os.path.abspath(os.fspath(path))
    if not os.path.exists(path):
        raise PackageError(f"{path}: no such file")
    check_trusted(path)
    with temporary_directory("xruntime-package", tempfile.gettempdir()) as directory:
        with opened(path) as archive:
            contents = read_contents(archive, path, model)
            reason = contents.needs_torchs_runner or c_interface_problem()
            library = None if reason else extract_library(archive, contents, directory, path)
        # The library's file is not read again after loading.
        runner: Runner = (
            TorchRunner(path, runners, model)
            if library is None
            else CRunner(library, runners, path)
        )
    if reason is not None:
        warnings.warn(
            f"{path} is called through torch's own runner, which holds the GIL while the code computes,"
            f" so streams wait for each other: {reason}",
            GILWarning,
            stacklevel=2,
        )
    package = StreamPackage(path, contents, runner, runners=runners, reason=reason)
    if package.unchecked:
        warnings.warn(
            f"{path}: {package.unchecked} will not be checked, because the package's C++ does not describe"
            f" them as torch {TRIED_TORCH} does. A tensor of another dtype, shape or memory layout would"
            " give wrong numbers. Compile it by compile_package, with the torch that runs it",
            UncheckedInputWarning,
            stacklevel=2,
        )
    return package
