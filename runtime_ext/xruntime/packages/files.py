# SPDX-License-Identifier: Apache-2.0
"""The file of an AOTInductor package: whether it may be trusted, and what is in it.

A package (.pt2) is a zip archive with one folder, which holds for each model
data/aotinductor/<model>/ with a shared library, the C++ it was made from, and a description of the
machine it was made for. Loading it is running it.

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
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from xlaunch.environment.ownership import inspect_ownership
from xruntime.errors import PackageError

FORMAT: Final = b"pt2"
FORMAT_VERSION: Final = b"0"
"""The one that torch 2.8 to 2.13 write."""

MODELS: Final = "data/aotinductor/"

THREADS_KEY: Final = "XLAUNCH_THREADS"
TORCH_KEY: Final = "XLAUNCH_TORCH"
CPU_FLAGS_KEY: Final = "XLAUNCH_CPU_FLAGS"
"""What `compile_package` adds to the description."""

_FLAGS_OF: Final = {
    "AVX2": ("avx2", "fma"),
    "AVX512": ("avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"),
    "AVX512_VNNI": ("avx512_vnni",),
    "AMX_TILE": ("amx_tile", "amx_bf16", "amx_int8"),
    "AMX_FP16": ("amx_fp16",),
}
"""What Inductor's names for instruction sets need, in the words of /proc/cpuinfo."""

_CODE_FLAGS: Final = ("avx", "amx", "fma", "bmi", "f16c", "gfni", "vaes", "vpclmulqdq", "sha_ni")
"""How the flags begin of instructions that a C++ compiler may use by itself."""


class PackageContents(NamedTuple):
    """One model of a package."""

    library: str
    """The name of its shared library in the archive."""

    library_bytes: int
    description: dict[str, str]
    sources: tuple[str, ...]
    """The C++ that the library was made from."""

    needs_torchs_runner: str | None
    """Why only torch's own runner can load it; None where the C interface is enough."""


def check_trusted(path: str) -> None:
    """Raises PackageError if another user could have put code into the file, or could do so now."""
    reason = inspect_ownership(path).refusal
    if reason is not None:
        raise PackageError(
            f"{path}: {reason}. A package is code that this process would run, so only you and root may"
            " be able to change it: chmod go-w, or copy it into a folder of your own"
        )


@contextlib.contextmanager
def opened(path: str) -> Iterator[zipfile.ZipFile]:
    """The archive. Raises PackageError where it is none, cannot be read, or was altered."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except FileNotFoundError as error:
        raise PackageError(f"{path}: there is no such file") from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise PackageError(
            f"{path} cannot be read as a package: {error}. It is incomplete, altered, or something else;"
            " make it anew with torch._inductor.aoti_compile_and_package"
        ) from error


def read_contents(archive: zipfile.ZipFile, path: str, model: str) -> PackageContents:
    """What the archive holds of the model. Raises PackageError where that cannot run here."""
    root = _root(archive, path)
    files = [name[len(root) + 1 :] for name in archive.namelist() if name.startswith(f"{root}/")]
    models = sorted(
        {name[len(MODELS) :].split("/")[0] for name in files if name.startswith(MODELS)}
    )
    if model not in models:
        there = f"there are {', '.join(models)}" if models else "it holds no compiled model"
        raise PackageError(
            f"{path}: no model {model!r}; {there}. Name one of them by model=, or make a package with"
            " torch._inductor.aoti_compile_and_package"
        )
    own = [PurePosixPath(name) for name in files if name.startswith(f"{MODELS}{model}/")]
    libraries = [name for name in own if name.suffix == ".so"]
    if len(libraries) != 1:
        raise PackageError(
            f"{path}: {len(libraries)} shared libraries for {model!r}, and one is expected. A package of"
            " sources (aot_inductor.package_cpp_only) has to be built first"
        )
    library = libraries[0]
    description = _description(archive, f"{root}/{library.with_suffix('')}_metadata.json", path)
    _check_machine(description, path)
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
    archive: zipfile.ZipFile, contents: PackageContents, folder: str, path: str
) -> str:
    """Write the library into `folder`, which is private; returns its path. Raises PackageError."""
    check_trusted(folder)
    target = os.path.join(folder, "model.so")
    free = shutil.disk_usage(folder).free
    if free < contents.library_bytes:
        raise PackageError(
            f"{path}: its library needs {contents.library_bytes >> 20} MiB in {folder}, where"
            f" {free >> 20} MiB are free; set TMPDIR to a folder with more room"
        )
    # zipfile compares the checksum when it has read all.
    with archive.open(contents.library) as packed, open(target, "xb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    return target


def machine_flags() -> set[str]:
    """The CPU's instruction sets, as /proc/cpuinfo names them; empty where it does not."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(value.split())
    return set()


def own_description(threads: int, torch_version: str) -> dict[str, str]:
    """What `compile_package` notes in a package, beside what torch does."""
    flags = sorted(flag for flag in machine_flags() if flag.startswith(_CODE_FLAGS))
    return {
        THREADS_KEY: str(threads),
        TORCH_KEY: torch_version,
        CPU_FLAGS_KEY: " ".join(flags),
    }


def _root(archive: zipfile.ZipFile, path: str) -> str:
    """The one folder that everything is in."""
    for name in archive.namelist():
        root, _, rest = name.partition("/")
        if rest == "archive_format" and archive.read(name) == FORMAT:
            break
    else:
        raise PackageError(
            f"{path} is a zip archive and no package of torch's: it has no entry archive_format with"
            " the content pt2"
        )
    with contextlib.suppress(KeyError):
        version = archive.read(f"{root}/archive_version")
        if version != FORMAT_VERSION:
            raise PackageError(
                f"{path}: version {version.decode(errors='replace')} of the format, and"
                f" {FORMAT_VERSION.decode()} is known: it comes from a newer torch. Make it with the"
                " torch that loads it"
            )
    return root


def _description(archive: zipfile.ZipFile, name: str, path: str) -> dict[str, str]:
    try:
        description: Any = json.loads(archive.read(name))
    except (KeyError, ValueError) as error:
        raise PackageError(
            f"{path}: the description of the machine it was made for, {name}, is missing or damaged;"
            " make the package anew"
        ) from error
    return {str(key): str(value) for key, value in dict(description).items()}


def _check_machine(description: dict[str, str], path: str) -> None:
    """Raises PackageError for another device, system or CPU: it would not load, or crash."""
    wanted = (
        ("AOTI_DEVICE_KEY", "cpu", "device"),
        ("AOTI_PLATFORM", sys.platform, "system"),
        ("AOTI_MACHINE", platform.machine(), "architecture"),
    )
    for key, here, what in wanted:
        made_for = description.get(key, here)
        if made_for != here:
            raise PackageError(
                f"{path} was made for the {what} {made_for}, and this is {here}: make it here, or for"
                " this one"
            )
    flags = machine_flags()
    needed = set(description.get(CPU_FLAGS_KEY, "").split())
    for name in description.get("AOTI_CPU_ISA", "").split():
        needed.update(_FLAGS_OF.get(name, ()))
    if flags and not needed <= flags:
        raise PackageError(
            f"{path} uses instructions that this CPU does not have"
            f" ({' '.join(sorted(needed - flags))}), and would end the process: make it on a CPU like"
            " this one"
        )


def _needs_torchs_runner(
    files: list[PurePosixPath], library: PurePosixPath, path: str
) -> str | None:
    names = {file.name for file in files}
    if "weights_config.json" in names:
        raise PackageError(
            f"{path} has its weights beside the code, pickled (aot_inductor.package_constants_on_disk_"
            "format): make it with the weights in the code, which is the default"
        )
    if f"{library.stem}.json" in names:
        return "it uses operators that have no C interface, which torch's own runner looks up"
    if any(name.endswith(".blob") for name in names):
        return "its weights lie in a file beside the code, which torch's own runner maps"
    return None
