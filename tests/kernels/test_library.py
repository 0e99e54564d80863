# SPDX-License-Identifier: Apache-2.0
"""libxkernels.so as a C caller meets it."""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kernels.ops.instruction_sets import DECLARING_MODULES

from xruntime import native
from xruntime.native import ABI_VERSION, CTeamMember

KERNELS = Path(__file__).parents[2] / "kernels"
INCLUDE = KERNELS / "include"
DECLARATIONS = "".join(
    path.read_text() for path in [INCLUDE / "xkernels.h", *sorted(INCLUDE.glob("xkernels/*.h"))]
)

Needs = Callable[[object, str], None]


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def kernels(built_library: Path) -> Iterator[ctypes.CDLL]:
    """The library; the calling thread's count of threads is afterwards what it was."""
    loaded = ctypes.CDLL(str(built_library))
    before = loaded.omp_get_max_threads()
    yield loaded
    loaded.omp_set_num_threads(before)


def test_version_is_the_headers_and_the_packages(kernels: ctypes.CDLL) -> None:
    declared = re.search(r"#define XK_ABI_VERSION (\d+)", DECLARATIONS)
    assert declared
    assert kernels.xk_abi_version() == int(declared[1]) == ABI_VERSION


def test_python_declares_every_function_once() -> None:
    """Either it releases the interpreter's lock or it keeps it, or ctypes has nothing to do with it."""
    pytest.importorskip("torch")
    for name in DECLARING_MODULES:
        importlib.import_module(name)
    declared = re.findall(r"XK_API [\w ]+\*? (\w+)\(([^)]*)\)", DECLARATIONS)
    signatures = {**native._WAITING, **native._QUICK}
    assert not set(native._WAITING) & set(native._QUICK)
    without = {f"xk_mailbox_{name}" for name in ("post", "next", "await")}
    assert sorted({*signatures, *without}) == sorted(name for name, _ in declared)
    for name, arguments in declared:
        if name in without:
            continue
        count = 0 if arguments == "void" else arguments.count(",") + 1
        assert len(signatures[name][1]) == count, name


def test_python_knows_every_answer_below_zero() -> None:
    declared = dict(re.findall(r"#define XK_(\w+) \((-\d+)\)", DECLARATIONS))
    problems = {problem.name: problem.value for problem in native.ArgumentProblem}
    others = {name: getattr(native, name) for name in declared.keys() - problems.keys()}
    assert len(others) == 6
    assert others | problems == {name: int(value) for name, value in declared.items()}


def test_team_reports_every_thread_once(kernels: ctypes.CDLL) -> None:
    members = (CTeamMember * 4)()
    kernels.omp_set_num_threads(3)
    assert kernels.xk_openmp_team(members, 4) == 3
    assert [member.openmp_id for member in members[:3]] == [0, 1, 2]
    assert members[0].thread_id == threading.get_native_id()
    assert len({member.thread_id for member in members[:3]}) == 3
    assert all(member.cpu >= 0 for member in members[:3])


def test_team_writes_no_more_than_there_is_room_for(kernels: ctypes.CDLL) -> None:
    untouched = -7
    members = (CTeamMember * 3)(*[CTeamMember(untouched, untouched, untouched)] * 3)
    kernels.omp_set_num_threads(3)
    assert kernels.xk_openmp_team(members, 1) == 3
    assert [member.openmp_id for member in members] == [0, untouched, untouched]
    assert kernels.xk_openmp_team(None, 0) == 3


@pytest.mark.parametrize("capacity", [-1, -(2**31)])
def test_team_refuses_a_negative_capacity(kernels: ctypes.CDLL, capacity: int) -> None:
    assert kernels.xk_openmp_team((CTeamMember * 1)(), capacity) == -1


def test_team_refuses_room_that_is_nowhere(kernels: ctypes.CDLL) -> None:
    assert kernels.xk_openmp_team(None, 1) == -1


def test_exports_only_what_the_header_declares(built_library: Path, needs: Needs) -> None:
    needs(shutil.which("nm"), "nm (binutils)")
    exported = {
        line.split()[-1]
        for line in output_of("nm", "-D", "--defined-only", built_library).splitlines()
    }
    declared = set(re.findall(r"XK_API [\w ]+\*? (\w+)\(", DECLARATIONS))
    assert exported == declared


def test_asks_for_libgomp_by_its_plain_name_and_carries_no_path(
    built_library: Path, needs: Needs
) -> None:
    needs(shutil.which("readelf"), "readelf (binutils)")
    dynamic = output_of("readelf", "--dynamic", "--wide", built_library)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert "libgomp.so.1" in needed
    assert not [name for name in needed if re.match(r"lib(iomp|omp|stdc\+\+|torch)", name)]
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic


def test_every_header_can_be_included_alone(needs: Needs) -> None:
    compiler = shutil.which("gcc")
    needs(compiler, "gcc")
    names = [str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.h")]
    assert len(names) == 15
    for name in names:
        subprocess.run(
            [str(compiler), "-x", "c", "-std=c99", "-Werror", "-I", INCLUDE, "-fsyntax-only", "-"],
            input=f'#include "{name}"\nint32_t value;\n',
            check=True,
            text=True,
        )


def test_header_serves_a_c_program(built_library: Path, needs: Needs, tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    needs(compiler, "gcc")
    source = tmp_path / "caller.c"
    source.write_text(
        """
        #include <stdio.h>
        #include "xkernels.h"
        int main(void) {
          xk_team_member members[2];
          if (xk_abi_version() != XK_ABI_VERSION) return 1;
          printf("%d\\n", (int)xk_openmp_team(members, 2));
          return 0;
        }
        """
    )
    program = tmp_path / "caller"
    output_of(
        *(str(compiler), "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"),
        *("-I", INCLUDE, source, built_library, f"-Wl,-rpath,{built_library.parent}"),
        *("-o", program),
    )
    answer = subprocess.run(
        [program], check=True, capture_output=True, text=True, env={"OMP_NUM_THREADS": "2"}
    )
    assert answer.stdout == "2\n"
