# SPDX-License-Identifier: Apache-2.0
"""Builds and loads libxoperators.so: the operators of DLRM, called by torch without Python.

Without it torch calls every operator through Python, and takes the GIL for it. `python -m xruntime kernels
--build` compiles the library with the torch that is installed. It uses torch's stable ABI, so newer
versions take it too. XRUNTIME_OPERATORS=python leaves it unloaded.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from xlaunch.files import remove_dead, temporary_directory
from xruntime import native
from xruntime.errors import KernelsUnavailableError

OPERATORS = frozenset({"merged_embedding_bag", "merged_embedding_bag_packed", "interaction"})
"""The operators of the library. Their derivatives are called through Python."""

_HANDLES = "const AtenTensorHandle*, int64_t"
C_FUNCTIONS = {
    "interaction": f"AOTITorchError aoti_torch_cpu_interaction({_HANDLES}, AtenTensorHandle*)",
    "merged_embedding_bag_packed": (
        "AOTITorchError aoti_torch_cpu_merged_embedding_bag_packed("
        f"{_HANDLES}, {_HANDLES}, {_HANDLES}, {_HANDLES}, int64_t, int32_t, AtenTensorHandle*)"
    ),
}
"""The declaration of the C function with which an AOTInductor library calls each operator."""

VARIABLE = "XRUNTIME_OPERATORS"
OLDEST_TORCH = (2, 11)
"""The stable ABI that the library uses."""

BUILD_COMMAND = "python -m xruntime kernels --build"

LINK_OPTIONS = ("-Wl,-Bsymbolic", "-Wl,--exclude-libs,libstdc++.a")
"""By which a library that is compiled here uses its own copy of the functions that it defines.

Templates of C++ headers, such as those of std::regex, are compiled into every library that uses them, under the
same names. The loader binds all of them to the first that it finds; compiled by another version of GCC, that
crashes (seen with GCC 13 and a torch 2.11 for CUDA 13, also in torch's own loader of packages). -Bsymbolic binds
a library's calls to its own definitions.

A compiler without a shared libstdc++ links the static one into the library. Its unique symbols are shared with
the process in spite of -Bsymbolic: half of the library's locale would be the process's, and writing a number or
parsing a name ends in half a message, bad_cast or a crash (seen on Ubuntu 24.04). So names from the static
libstdc++ are hidden.
"""


class LoadResult(NamedTuple):
    """What `load` did."""

    path: Path | None
    """The library; None: there is none, and torch calls all operators through Python."""
    reason: str
    """Why there is none, and what to do; empty with a library."""


@functools.cache
def loaded() -> LoadResult:
    """Return the part of the library that this process uses; load it at the first call."""
    return load()


def c_calls() -> dict[str, Any]:
    """Return the settings of Inductor with which its code calls the C functions of the library.

    Without the library, or with a torch that has no such setting, there are none. What is compiled under
    them has to be linked with the library.
    """
    if loaded().path is None:
        return {}
    import torch
    from torch._inductor import config

    present = getattr(config.aot_inductor, "custom_ops_to_c_shims", None)
    if present is None:
        return {}
    operators = torch.ops.xruntime  # defined by xruntime.nn
    defined = [name for name in C_FUNCTIONS if hasattr(operators, name)]
    ours = {getattr(operators, name).default: [C_FUNCTIONS[name]] for name in defined}
    return {"aot_inductor.custom_ops_to_c_shims": {**present, **ours}}


def build() -> Path:
    """Compile the library beside libxkernels.so in place of older ones, and return its path.

    Raises KernelsUnavailableError, with what the compiler says, if that cannot be done.
    """
    torch_directory = _torch_directory()
    path = library_path()
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(compiler[0]) is None:
        raise KernelsUnavailableError(
            f"there is no C++ compiler {compiler[0]}: install one (Debian and Ubuntu: apt-get install g++),"
            " or name it in CXX"
        )
    try:
        remove_dead(str(path.parent))
        with temporary_directory(".xruntime-build", str(path.parent)) as directory:
            library = Path(directory, path.name)
            done = subprocess.run(
                [*compiler, *_arguments(torch_directory, library)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines() or ["it gives no reason"]
                reason = next((line for line in lines if "error" in line), lines[-1])
                raise KernelsUnavailableError(
                    f"{shlex.join(compiler)} cannot compile {_source()}: {reason}"
                )
            library.replace(path)
        for other in path.parent.glob("libxoperators-*.so"):
            if other != path:
                other.unlink()
    except OSError as error:
        raise KernelsUnavailableError(
            f"{path} cannot be written ({error.strerror}): run this as the user who installed xlaunch"
        ) from error
    return path


def _arguments(torch_directory: Path, made: Path) -> list[str]:
    major, minor = OLDEST_TORCH
    return [
        *("-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", *LINK_OPTIONS),
        f"-DTORCH_TARGET_VERSION={major << 56 | minor << 48:#x}ULL",
        *("-isystem", f"{torch_directory / 'include'}", f"-I{native.installed_path('include')}"),
        *(f"{_source()}", "-o", f"{made}"),
        *(f"{native.library_path()}", "-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{made.name}"),
        *(f"-L{torch_directory / 'lib'}", "-ltorch_cpu"),
    ]


def library_path() -> Path:
    """Return the path of the library for this source, built or not. Raises KernelsUnavailableError."""
    digest = hashlib.sha256(_source().read_bytes()).hexdigest()[:8]
    name = f"libxoperators-{native.ABI_VERSION}-{digest}.so"
    return native.library_path().parent / name


def load() -> LoadResult:
    """Load the library where it is built. Must precede the registration of the same operators."""
    if os.environ.get(VARIABLE) == "python":
        return LoadResult(None, f"{VARIABLE}=python")
    try:
        _torch_directory()
        path = library_path()
        if not path.is_file():
            return LoadResult(None, f"not built: {BUILD_COMMAND}")
        native.library()
        import torch

        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except (KernelsUnavailableError, OSError) as error:
        return LoadResult(None, f"{error}")
    return LoadResult(path, "")


def _torch_directory() -> Path:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise KernelsUnavailableError("torch is not installed") from error
    numbers = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if numbers < OLDEST_TORCH:
        raise KernelsUnavailableError(
            f"torch {torch.__version__} is too old: operators without Python need torch"
            f" {'.'.join(map(str, OLDEST_TORCH))} or newer"
        )
    return Path(torch.__file__).parent


def _source() -> Path:
    return native.installed_path("src/operators.cpp")
