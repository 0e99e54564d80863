# SPDX-License-Identifier: Apache-2.0
"""Thread counts of libraries that have their own threads, beside OpenMP's.

A variable is set only where the library is installed with the program, told by the names of its
dist-info folders, or where it can do no harm.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.environment.prefix import python_version, site_folders
from xlaunch.environment.variables import Proposal


class ThreadVariable(NamedTuple):
    """One variable that holds a number of threads. Adding one is adding a row to `VARIABLES`."""

    name: str
    packages: tuple[str, ...]
    """Set where one of these distributions is installed; empty: wherever `platform` allows."""
    reason: str
    source: str
    follows_openmp: bool = False
    """The library takes OMP_NUM_THREADS when this is not set. So it is not set, and a value of the
    user's that differs is shown. joblib sets these for its worker processes, to each one's share of
    the CPUs, unless they are set already: setting them here would give every worker all CPUs."""
    since_python: tuple[int, int] | None = None
    """The Python that brought it."""
    platform: str = ""
    """What sys.platform must be, unless empty."""


VARIABLES = (
    ThreadVariable(
        "MKL_NUM_THREADS",
        ("mkl", "torch"),
        "MKL follows OMP_NUM_THREADS",
        "oneMKL developer guide, Changing the Number of OpenMP Threads at Run Time; joblib, "
        "ParallelBackendBase.MAX_NUM_THREADS_VARS",
        follows_openmp=True,
    ),
    ThreadVariable(
        "OPENBLAS_NUM_THREADS",
        ("numpy", "scipy"),
        "OpenBLAS follows OMP_NUM_THREADS",
        "OpenBLAS, driver/others/blas_server.c and README: Setting the number of threads; joblib",
        follows_openmp=True,
    ),
    ThreadVariable(
        "BLIS_NUM_THREADS",
        ("numpy",),
        "BLIS follows OMP_NUM_THREADS",
        "BLIS, docs/Multithreading.md; joblib",
        follows_openmp=True,
    ),
    ThreadVariable(
        "NUMEXPR_NUM_THREADS",
        ("numexpr",),
        "NumExpr follows OMP_NUM_THREADS",
        "numexpr/utils.py, _init_num_threads; joblib",
        follows_openmp=True,
    ),
    ThreadVariable(
        "NUMEXPR_MAX_THREADS",
        ("numexpr",),
        "NumExpr runs on one thread when asked for more than this, which is 64 unless set",
        "numexpr/utils.py, _init_num_threads; seen with 2.14 and OMP_NUM_THREADS=100",
    ),
    ThreadVariable(
        "RAYON_NUM_THREADS",
        ("tokenizers",),
        "tokenizers would start a thread for each CPU of the mask, whatever the instance's share",
        "rayon, ThreadPoolBuilder::num_threads",
    ),
    ThreadVariable(
        "POLARS_MAX_THREADS",
        ("polars",),
        "Polars would start a thread for each CPU of the mask, whatever the instance's share",
        "Polars user guide, environment variables; polars.thread_pool_size",
    ),
    ThreadVariable(
        "TF_NUM_INTRAOP_THREADS",
        ("tensorflow", "tensorflow-cpu", "intel-tensorflow"),
        "TensorFlow has a pool of its own for the work within an operation",
        "tensorflow/core/common_runtime/process_util.cc, NumIntraOpThreadsFromEnvironment",
    ),
    ThreadVariable(
        "LOKY_MAX_CPU_COUNT",
        ("joblib", "loky"),
        "n_jobs=-1 means the instance's share",
        "loky, cpu_count",
    ),
    ThreadVariable(
        "PYTHON_CPU_COUNT",
        (),
        "os.cpu_count() is the instance's share, not the machine's",
        "Python 3.13, Command line and environment",
        since_python=(3, 13),
    ),
    ThreadVariable(
        "VECLIB_MAXIMUM_THREADS",
        (),
        "Apple's Accelerate has threads of its own",
        "vecLib(7)",
        platform="darwin",
    ),
)
"""Left out: TOKENIZERS_PARALLELISM, which also decides what happens after a fork, and
NUMBA_NUM_THREADS, above which numba refuses what a program asks for."""

_PACKAGES = frozenset(package for row in VARIABLES for package in row.packages)


class Installed(NamedTuple):
    """What is known of a program's environment. Nothing was imported for it."""

    packages: frozenset[str] = frozenset()
    """Those of its distributions that `VARIABLES` asks for."""
    python: tuple[int, int] | None = None
    """None where it is not known."""


def find_installed(prefix: str, interpreter: str) -> Installed:
    """What the environment holds: one listing of each of its folders of packages."""
    found = set()
    for site in site_folders(prefix, interpreter):
        try:
            names = os.listdir(site)
        except OSError:
            continue
        for name in names:
            if name.endswith(("-info", ".egg-link")):  # .dist-info, .egg-info
                package = name.partition("-")[0].replace("_", "-").replace(".", "-").lower()
                if package in _PACKAGES:
                    found.add(package)
    return Installed(frozenset(found), python_version(prefix, interpreter))


def thread_settings(
    threads: int, installed: Installed, environment: Mapping[str, str], option: str | None = None
) -> tuple[Proposal, ...]:
    """The variables that tell the installed libraries how many threads an instance may have.

    `environment`: what it inherits. `option`: the one that asked for so many, see `Proposal`.
    """
    proposals = []
    for row in VARIABLES:
        if row.packages and installed.packages.isdisjoint(row.packages):
            continue
        if row.platform and sys.platform != row.platform:
            continue
        if row.since_python and (installed.python or row.since_python) < row.since_python:
            continue
        if row.follows_openmp and not _differs(environment, row.name, threads):
            continue
        proposals.append(Proposal(row.name, str(threads), row.reason, option=option))
    return tuple(proposals)


def _differs(environment: Mapping[str, str], name: str, threads: int) -> bool:
    return environment.get(name) not in (None, "", str(threads))
