# SPDX-License-Identifier: Apache-2.0
"""Loading and calling a package whose library is a few lines of C, and refusing packages.

Packages that torch compiled are in test_packages.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from tests.runtime_ext.aoti.archives import ROWS_OF_3, Change, described, rewritten
from tests.runtime_ext.conftest import Needs
from torch.utils import _pytree as pytree

from xruntime.aoti.package import load_package
from xruntime.aoti.package_file import own_description
from xruntime.compilation.gil import CallableKind, kind_of
from xruntime.errors import ClosedError, PackageError, PackageInputError, ThreadCountError

# What torch compiled would have more functions; these are the ones that are called. `Run` hands its
# input back.
LIBRARY = """
#include <stddef.h>
#include <stdint.h>
#define CONTAINER(name, ...) int32_t AOTInductorModelContainer##name(void *container, ##__VA_ARGS__)
int32_t AOTInductorModelContainerCreateWithDevice(
    void **container, size_t runners, const char *device, const char *directory)
{ *container = (void *)&AOTInductorModelContainerCreateWithDevice; return 0; }
CONTAINER(Delete) { return 0; }
CONTAINER(GetNumInputs, size_t *count) { *count = 1; return 0; }
CONTAINER(GetNumOutputs, size_t *count) { *count = 1; return 0; }
CONTAINER(GetCallSpec, const char **inputs, const char **outputs)
{ *inputs = %s; *outputs = %s; return 0; }
CONTAINER(Run, void **inputs, size_t in, void **outputs, size_t out, void *stream, void *executor)
{ outputs[0] = inputs[0]; return 0; }
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, needs: Needs) -> Path:
    """A package for one thread."""
    compiler = shutil.which("gcc")
    needs(compiler, "gcc")
    directory = tmp_path_factory.mktemp("package")
    _, inputs = pytree.tree_flatten(((0,), {}))
    _, outputs = pytree.tree_flatten({"same": 0})
    specs = [json.dumps(pytree.treespec_dumps(spec)) for spec in (inputs, outputs)]
    (directory / "model.c").write_text(LIBRARY % tuple(specs))
    library = directory / "model.so"
    subprocess.run(
        [str(compiler), "-shared", "-fPIC", directory / "model.c", "-o", library], check=True
    )
    description = {
        "AOTI_DEVICE_KEY": "cpu",
        "AOTI_PLATFORM": sys.platform,
        "AOTI_MACHINE": platform.machine(),
    } | own_description(1, torch.__version__)
    path = directory / "small.pt2"
    root = "small/data/aotinductor/model"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("small/archive_format", "pt2")
        archive.writestr("small/archive_version", "0")
        archive.write(library, f"{root}/code.so")
        archive.writestr(f"{root}/code.cpp", ROWS_OF_3)
        archive.writestr(f"{root}/code_metadata.json", json.dumps(description))
    return path


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_package_is_loaded_called_and_closed(file: Path, one_thread) -> None:
    batch = torch.rand(4, 3)
    with load_package(file, runners=2) as package:
        assert kind_of(package) is CallableKind.PACKAGE
        assert package.threads == 1
        assert package.describe().startswith(
            f"{file}, compiled by torch {torch.__version__}: 2 calls"
        )
        result = package(batch)["same"]
        assert result.data_ptr() == batch.data_ptr()
    package.close()
    with pytest.raises(ClosedError, match="is closed: load it again"):
        package(batch)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((torch.rand(4, 3, dtype=torch.float64),), "float64, and the package was compiled for"),
        ((torch.rand(4, 2),), r"\(4, 2\), and the package was compiled for \(any, 3\)"),
        ((torch.rand(4, 3), 1), "2 positional arguments, and the package was exported with 1"),
        ((3,), "the call has 0 tensors and the package takes 1"),
    ],
)
def test_other_arguments_are_refused(file: Path, one_thread, arguments: tuple, text: str) -> None:
    with load_package(file, runners=1) as package, pytest.raises(PackageInputError, match=text):
        package(*arguments)


def test_a_thread_with_another_number_of_threads_is_refused(file: Path, one_thread) -> None:
    with load_package(file, runners=1) as package:
        torch.set_num_threads(2)
        with pytest.raises(ThreadCountError, match="compiled for streams of 1 thread"):
            package(torch.rand(4, 3))


def test_a_package_that_others_could_change_is_refused(file: Path, tmp_path) -> None:
    path = Path(shutil.copy(file, tmp_path / "open.pt2"))
    path.chmod(0o666)
    with pytest.raises(PackageError, match=r"every user may write .*chmod o-w"):
        load_package(path, runners=1)


def flipped(name: str, content: bytes) -> bytes:
    return content.replace(b"ELF", b"FLE", 1) if name.endswith(".so") else content


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda name, data: None, "but not a package"),
        (lambda name, data: b"zip" if name.endswith("archive_format") else data, "not a package"),
        (lambda name, data: b"7" if name.endswith("archive_version") else data, "version 7.*newer"),
        (lambda name, data: None if "aotinductor" in name else data, "has no compiled model"),
        (lambda name, data: None if name.endswith(".so") else data, "0 shared libraries"),
        (lambda name, data: None if name.endswith(".json") else data, "description.*missing"),
        (lambda name, data: b"{" if name.endswith(".json") else data, "description.*damaged"),
        (described(AOTI_DEVICE_KEY="cuda"), "compiled for the device cuda, and this is cpu"),
        (described(AOTI_MACHINE="s390x"), "compiled for the architecture s390x"),
        (described(AOTI_PLATFORM="win32"), "compiled for the system win32"),
        (described(XLAUNCH_CPU_FLAGS="avx9999"), "does not have .avx9999., and would crash"),
        (flipped, "cannot be loaded .its library: .*ELF.*another torch"),
    ],
)
def test_packages_that_cannot_run_here(file: Path, tmp_path, change: Change, text: str) -> None:
    path = rewritten(file, tmp_path / "other.pt2", change)
    with pytest.raises(PackageError, match=text):
        load_package(path, runners=1)
