# SPDX-License-Identifier: Apache-2.0
"""Which allocator serves the process is known by what `malloc` is bound to, not by wishes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime_ext.allocator.children import ask, run
from tests.runtime_ext.conftest import Needs

import xlaunch
import xruntime

PACKAGES_PATH = os.pathsep.join(
    sorted(
        {
            str(Path(directory).parent)
            for package in (xlaunch, xruntime)
            for directory in package.__path__
        }
    )
)
"""Where a program that is not this environment's Python finds them."""

IDENTITY = """
tell(name=heap.name, version=heap.version, path=heap.path, in_program=heap.in_program,
     notes=heap.notes, text=repr(heap))
"""

# A Python whose main function is ours; libpython does the rest.
PROGRAM = """
#include <stdlib.h>
int Py_BytesMain(int, char **);
%s
int main(int argc, char **argv) { %s return Py_BytesMain(argc, argv); }
"""

OWN_MALLOC = (
    "void *__libc_malloc(size_t); void *malloc(size_t size) { return __libc_malloc(size); }"
)


@pytest.mark.parametrize(
    ("name", "known_as", "version"),
    [
        ("glibc", "glibc", r"2\.\d+"),
        ("jemalloc", "jemalloc", r"\d+\.\d+\.\d+-\d+-g\w+"),
        ("tcmalloc", "tcmalloc(_minimal)?", r"2\.\d+(\.\d+)?"),
        ("mimalloc", "mimalloc", r"\d+\.\d+\.\d+"),
    ],
)
def test_allocator_is_named_with_file_and_version(
    name: str, known_as: str, version: str, library: Callable[[str], str | None]
) -> None:
    preloaded = library(name)
    answer = ask(IDENTITY, preloaded)
    assert re.fullmatch(known_as, answer["name"])
    assert re.fullmatch(version, answer["version"])
    assert not answer["in_program"]
    assert not answer["notes"]
    assert answer["path"] in answer["text"]
    if preloaded is None:
        assert re.match(r"libc[.-]", Path(answer["path"]).name)
        assert answer["version"] == os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    else:
        assert answer["path"] == os.path.realpath(preloaded)


def test_version_of_mimalloc_is_that_of_its_file(mimalloc: str) -> None:
    """libmimalloc.so.2.0 is of 2.0: the number that mi_version gives was taken apart rightly."""
    found = re.search(r"\.so\.(\d+)\.(\d+)", os.path.realpath(mimalloc))
    assert ask(IDENTITY, mimalloc)["version"].split(".")[:2] == [found[1], found[2]]


def test_library_that_is_only_loaded_does_not_serve(mimalloc: str, glibc: None) -> None:
    answer = ask(
        f"ctypes.CDLL({mimalloc!r}, mode=ctypes.RTLD_GLOBAL)\nallocator.current.cache_clear()\n"
        "heap = allocator.current()\n" + IDENTITY
    )
    assert answer["name"] == "glibc"


def test_wish_that_the_loader_did_not_grant_is_not_believed(glibc: None, tmp_path: Path) -> None:
    absent = tmp_path / "libjemalloc.so.2"
    assert ask(IDENTITY, str(absent))["name"] == "glibc"


def test_first_of_two_preloaded_allocators_serves(tcmalloc: str, jemalloc: str) -> None:
    assert ask(IDENTITY, f"{tcmalloc}:{jemalloc}")["name"].startswith("tcmalloc")
    assert ask(IDENTITY, f"{jemalloc}:{tcmalloc}")["name"] == "jemalloc"


@pytest.fixture
def build(needs: Needs, tmp_path: Path) -> Callable[..., str]:
    """`build(before, inside, *flags)`: a Python made of `PROGRAM`."""
    compiler = shutil.which("gcc")
    directory, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY")
    shared = Path(directory or "", name or "")
    needs(compiler, "gcc")
    if shared.suffix != ".so" or not shared.is_file():
        pytest.skip("this Python has no shared libpython to make another program of")

    def compile_it(before: str, inside: str, *flags: str) -> str:
        source, program = tmp_path / "program.c", tmp_path / "program"
        source.write_text(PROGRAM % (before, inside))
        command = [compiler, *flags, source, "-o", program, shared, f"-Wl,-rpath,{shared.parent}"]
        subprocess.run(command, check=True, capture_output=True)
        return str(program)

    return compile_it


def in_program(program: str, code: str, library: str | None = None) -> dict:
    return ask(code, library, python=program, PYTHONHOME=sys.base_prefix, PYTHONPATH=PACKAGES_PATH)


def test_malloc_of_the_main_executable_is_told(build: Callable[..., str], glibc: None) -> None:
    program = build(OWN_MALLOC, "")
    answer = in_program(
        program,
        "failed = refusal(allocator.release)\nnumbers = allocator.stats()._asdict()\n"
        + IDENTITY.replace("tell(", "tell(failed=failed, numbers=numbers, "),
    )
    assert (answer["name"], answer["version"], answer["path"]) == ("unknown", None, program)
    assert answer["in_program"]
    assert "preloading another allocator has no effect" in answer["notes"][0]
    assert answer["failed"][0] == "AllocatorUnsupportedError"
    told = {name for name, value in answer["numbers"].items() if value is not None}
    assert told == {"process_resident", "process_peak_resident"}


@pytest.mark.machine
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other linkers make no such entry")
@pytest.mark.parametrize("name", ["glibc", "mimalloc"])
def test_program_that_only_refers_to_malloc_does_not_own_it(
    name: str, build: Callable[..., str], library: Callable[[str], str | None]
) -> None:
    """Such an executable has an entry of that name, and the loader answers with its address."""
    reference = "void *(*volatile reference)(size_t);"
    program = build(reference, "reference = malloc;", "-fno-pie", "-no-pie")
    answer = in_program(
        program,
        """
from xruntime.allocator.loader import _mapped_at
entry = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value
tell(name=heap.name, in_program=heap.in_program, entry=_mapped_at(entry))
""",
        library(name),
    )
    assert answer == {"name": name, "in_program": False, "entry": program}


def test_import_is_without_torch_and_other_heavy_modules() -> None:
    done = run(
        [
            sys.executable,
            "-c",
            "import sys\nfrom xruntime import allocator\nallocator.stats()\n"
            "print(*sorted({'torch', 'numpy', 'rich', 'optuna', 'psutil', 'click'} & set(sys.modules)))",
        ]
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
