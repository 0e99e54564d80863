# SPDX-License-Identifier: Apache-2.0
"""Reading and checking the file of an AOTInductor package.

A package (.pt2) is a zip archive with one directory, which holds for each model
data/aotinductor/<model>/ with a shared library, its C++ source, and a description of the machine that
it was compiled for. Loading a package runs its code.

Source: torch/export/pt2_archive/constants.py; torch/_inductor/codecache.py, AotCodeCompiler.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from xlaunch.files import open_input
from xlaunch.ownership import inspect_ownership
from xruntime.devices import cpu_flags
from xruntime.errors import PackageError

FORMAT: Final = b"pt2"
FORMAT_VERSION: Final = b"0"
"""The version that torch 2.8 to 2.13 write."""

MODELS: Final = "data/aotinductor/"

THREADS_KEY: Final = "XLAUNCH_THREADS"
TORCH_KEY: Final = "XLAUNCH_TORCH"
CPU_FLAGS_KEY: Final = "XLAUNCH_CPU_FLAGS"
"""The entries that `compile_package` adds to the description."""

_FLAGS_OF: Final = {
    "AVX2": ("avx2", "fma"),
    "AVX512": ("avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"),
    "AVX512_VNNI": ("avx512_vnni",),
    "AMX_TILE": ("amx_tile", "amx_bf16", "amx_int8"),
    "AMX_FP16": ("amx_fp16",),
}
"""The flags of /proc/cpuinfo for Inductor's names of instruction sets."""

_CODE_FLAGS: Final = ("avx", "amx", "fma", "bmi", "f16c", "gfni", "vaes", "vpclmulqdq", "sha_ni")
"""Prefixes of the flags for instructions that a C++ compiler may use on its own."""


class PackageContents(NamedTuple):
    """One model of a package."""

    library: str
    """The name of its shared library in the archive."""

    library_bytes: int
    description: dict[str, str]
    sources: tuple[str, ...]
    """The C++ source of the library."""

    needs_torchs_runner: str | None
    """The reason why only torch's own runner can load it; None if the C interface suffices."""


def check_trusted(path: str) -> None:
    """Raise PackageError if another user can write to the file."""
    reason = inspect_ownership(path).refusal
    if reason is not None:
        raise PackageError(
            f"{path}: {reason}. A package is code that this process runs, so no other user may be able"
            " to change it: chmod o-w, or copy it into a directory of your own"
        )


@contextlib.contextmanager
def opened(path: str) -> Iterator[zipfile.ZipFile]:
    """Open the archive. Raises PackageError if it is not a readable, undamaged zip file."""
    try:
        with open_input(path) as stream, zipfile.ZipFile(stream) as archive:
            yield archive
    except FileNotFoundError as error:
        raise PackageError(f"{path}: no such file") from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise PackageError(
            f"{path} cannot be read as a package: {error}. It is incomplete, damaged or something else;"
            " compile it again with compile_package"
        ) from error


def read_contents(archive: zipfile.ZipFile, path: str, model: str) -> PackageContents:
    """Read the contents of one model. Raises PackageError if it cannot run here."""
    root = _root(archive, path)
    files = [name[len(root) + 1 :] for name in archive.namelist() if name.startswith(f"{root}/")]
    models = sorted(
        {name[len(MODELS) :].split("/")[0] for name in files if name.startswith(MODELS)}
    )
    if model not in models:
        there = f"there are {', '.join(models)}" if models else "it has no compiled model"
        raise PackageError(
            f"{path}: no model {model!r}; {there}. Name one by model=, or compile a package with"
            " compile_package"
        )
    own = [PurePosixPath(name) for name in files if name.startswith(f"{MODELS}{model}/")]
    libraries = [name for name in own if name.suffix == ".so"]
    if len(libraries) != 1:
        raise PackageError(
            f"{path}: {len(libraries)} shared libraries for {model!r} instead of one. A package of sources"
            " (aot_inductor.package_cpp_only) has to be built first"
        )
    library = libraries[0]
    description = _description(archive, f"{root}/{library.with_suffix('')}_metadata.json", path)
    check_machine(description, path)
    sources = tuple(
        archive.read(f"{root}/{name}").decode(errors="replace")
        for name in own
        if name.suffix == ".cpp"
    )
    return PackageContents(
        library=f"{root}/{library}",
        library_bytes=archive.getinfo(f"{root}/{library}").file_size,
        description=description,
        sources=sources,
        needs_torchs_runner=_needs_torchs_runner(own, library, path),
    )


def extract_library(
    archive: zipfile.ZipFile, contents: PackageContents, directory: str, path: str
) -> str:
    """Write the library into the private `directory`; return its path. Raises PackageError."""
    check_trusted(directory)
    target = os.path.join(directory, "model.so")
    free = shutil.disk_usage(directory).free
    if free < contents.library_bytes:
        raise PackageError(
            f"{path}: its library needs {contents.library_bytes >> 20} MiB in {directory}, where"
            f" {free >> 20} MiB are free; set TMPDIR to a directory with more room"
        )
    # zipfile compares the checksum at the end.
    with archive.open(contents.library) as packed, open(target, "xb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    return target


def own_description(threads: int, torch_version: str) -> dict[str, str]:
    """Return the entries that `compile_package` adds to a package's description."""
    flags = sorted(flag for flag in cpu_flags() if flag.startswith(_CODE_FLAGS))
    return {
        THREADS_KEY: str(threads),
        TORCH_KEY: torch_version,
        CPU_FLAGS_KEY: " ".join(flags),
    }


def _root(archive: zipfile.ZipFile, path: str) -> str:
    """The archive's single top directory."""
    for name in archive.namelist():
        root, _, rest = name.partition("/")
        if rest == "archive_format" and archive.read(name) == FORMAT:
            break
    else:
        raise PackageError(
            f"{path} is a zip archive but not a package: it has no entry archive_format with the content"
            " pt2"
        )
    with contextlib.suppress(KeyError):
        version = archive.read(f"{root}/archive_version")
        if version != FORMAT_VERSION:
            raise PackageError(
                f"{path}: format version {version.decode(errors='replace')} is not"
                f" {FORMAT_VERSION.decode()}: it is from a newer torch. Compile it with the torch that"
                " loads it"
            )
    return root


def _description(archive: zipfile.ZipFile, name: str, path: str) -> dict[str, str]:
    try:
        description: Any = json.loads(archive.read(name))
    except (KeyError, ValueError) as error:
        raise PackageError(
            f"{path}: the description of its machine, {name}, is missing or damaged; compile the"
            " package again"
        ) from error
    return {str(key): str(value) for key, value in dict(description).items()}


def check_machine(description: dict[str, str], path: str) -> None:
    """Raise PackageError if the code is for another device, system or CPU, where it would fail or crash."""
    wanted = (
        ("AOTI_DEVICE_KEY", "cpu", "device"),
        ("AOTI_PLATFORM", sys.platform, "system"),
        ("AOTI_MACHINE", platform.machine(), "architecture"),
    )
    for key, here, what in wanted:
        made_for = description.get(key, here)
        if made_for != here:
            raise PackageError(
                f"{path} was compiled for the {what} {made_for}, and this is {here}: compile it for this"
                " one"
            )
    flags = cpu_flags()
    needed = set(description.get(CPU_FLAGS_KEY, "").split())
    for name in description.get("AOTI_CPU_ISA", "").split():
        needed.update(_FLAGS_OF.get(name, ()))
    if flags and not needed <= flags:
        raise PackageError(
            f"{path} uses instructions that this CPU does not have"
            f" ({' '.join(sorted(needed - flags))}), and would crash: compile it on a CPU like this one"
        )


def _needs_torchs_runner(
    files: list[PurePosixPath], library: PurePosixPath, path: str
) -> str | None:
    names = {file.name for file in files}
    if "weights_config.json" in names:
        raise PackageError(
            f"{path} has pickled weights in separate files (aot_inductor.package_constants_on_disk_"
            "format): compile it with the weights in the code, which is the default"
        )
    if f"{library.stem}.json" in names:
        return "it uses operators that have no C interface"
    if any(name.endswith(".blob") for name in names):
        return "its weights are in a separate file"
    return None
