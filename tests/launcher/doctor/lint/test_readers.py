# SPDX-License-Identifier: Apache-2.0
"""The table of variables that an import reads, against the libraries themselves."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from xlaunch.doctor.lint.threads import READERS

MAPPED = """\
import ctypes
def mapped(name):
    lines = [line for line in open("/proc/self/maps") if name in line and "/" in line]
    return ctypes.CDLL(lines[0].split(maxsplit=5)[-1].strip())
"""
OPENBLAS = """\
library = mapped("openblas")
names = ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_", "openblas_get_num_threads")
print(next(getattr(library, name) for name in names if hasattr(library, name))())
"""
OPENMP = 'print(mapped("libgomp").omp_get_{}())\n'
CPU = str(min(os.sched_getaffinity(0)))
SHOWN = {
    "MKL_NUM_THREADS": ("1", "print(torch.__config__.parallel_info())\n"),
    "OMP_DYNAMIC": ("true", OPENMP.format("dynamic")),
    "OMP_NUM_THREADS": ("1", OPENMP.format("max_threads")),
    "OMP_PLACES": (f"{{{CPU}}}", OPENMP.format("num_places")),
    "OMP_PROC_BIND": ("spread", OPENMP.format("proc_bind")),
    "OMP_SCHEDULE": (
        "guided,5",
        "kind, chunk = ctypes.c_int(), ctypes.c_int()\n"
        'mapped("libgomp").omp_get_schedule(ctypes.byref(kind), ctypes.byref(chunk))\n'
        "print(chunk.value)\n",
    ),
    "GOMP_CPU_AFFINITY": (CPU, OPENMP.format("num_places")),
    "OPENBLAS_NUM_THREADS": ("1", OPENBLAS),
}
"""A value of each variable, and code that prints what became of it."""


def printed(*lines: str) -> list[str]:
    """What code prints before each line of three dots."""
    clean = {name: value for name, value in os.environ.items() if name not in SHOWN}
    code = MAPPED + "import os\n" + "\n".join(lines)
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    return done.stdout.split("...\n")


def parts(variable: str, module: str) -> tuple[str, str]:
    """Code that sets the variable, and code that prints what became of it."""
    value, show = SHOWN[variable]
    return f"os.environ[{variable!r}] = {value!r}", OPENBLAS if module == "numpy" else show


@functools.cache
def printed_later(module: str) -> dict[str, str]:
    """What became of each variable of a module that is set after its import."""
    variables = [name for name, modules in READERS.items() if module in modules]
    code = [line for name in variables for line in (*parts(name, module), "print('...')")]
    return dict(zip(variables, printed(f"import {module}", *code), strict=False))


@pytest.mark.long
@pytest.mark.parametrize(
    ("variable", "module"),
    [
        (name, module)
        for name in READERS
        for module in ("torch", "numpy")
        if module in READERS[name]
    ],
)
def test_variables_are_read_at_import_and_not_later(variable, module):
    pytest.importorskip(module)
    if variable.endswith("NUM_THREADS") and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one thread on one CPU, whatever the variable says")
    setting, show = parts(variable, module)
    assert printed(setting, f"import {module}", show) != [printed_later(module)[variable]]


def test_intel_openmp_variables_are_in_no_table():
    assert not any(name.startswith("KMP_") for name in READERS)
