# SPDX-License-Identifier: Apache-2.0
"""Thread counts of libraries that have their own threads, besides OpenMP's.

A variable is set only if the library is installed with the program, which the names of dist-info
directories show, or if it can do no harm.
"""

import sys
from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.environment.contribution import Contribution, Situation
from xlaunch.environment.python_environment import Installed
from xlaunch.environment.variables import Proposal, layout_option
from xlaunch.planning.plans import Instance


class ThreadVariable(NamedTuple):
    """A variable that holds a number of threads: a row of `VARIABLES`."""

    name: str
    packages: tuple[str, ...]
    """Set if one of these distributions is installed; empty: on any `platform` that is listed."""
    reason: str
    source: str
    follows_openmp: bool = False
    """The library uses OMP_NUM_THREADS if this is not set. So xlaunch does not set it, and reports
    a different value that the user set. joblib sets it for each worker process to its share of the
    CPUs, unless it is set already: set here, every worker would use all CPUs."""
    since_python: tuple[int, int] | None = None
    """First version of Python with it."""
    platform: str = ""
    """The sys.platform that it is for; empty: any."""


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
        "TensorFlow has its own thread pool for the work within an operation",
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
        "Apple's Accelerate has its own threads",
        "vecLib(7)",
        platform="darwin",
    ),
)
"""Left out: TOKENIZERS_PARALLELISM, which also decides what happens after a fork, and
NUMBA_NUM_THREADS, above which numba refuses what a program asks for."""


def contribute_threads(situation: Situation) -> Contribution:
    """The number of threads of OpenMP and of other libraries.

    None for a program that divides its CPUs among processes of its own.
    """
    if situation.program.starts_ranks:
        return Contribution()
    installed, option = situation.program.installed, layout_option(situation.plan.layout)

    def of_instance(instance: Instance, known: Mapping[str, str]) -> list[Proposal]:
        reason = "one thread for each CPU that the instance may use"
        count = Proposal("OMP_NUM_THREADS", str(instance.threads), reason, option=option)
        return [count, *thread_settings(instance.threads, installed, known, option)]

    return Contribution(of_instance=of_instance)


def thread_settings(
    threads: int, installed: Installed, environment: Mapping[str, str], option: str | None = None
) -> tuple[Proposal, ...]:
    """The variables that set the number of threads of the installed libraries.

    `environment`: what the instance inherits. `option`: see `Proposal`.
    """
    proposals = []
    for row in VARIABLES:
        if row.packages and not installed.has(*row.packages):
            continue
        if row.platform and sys.platform != row.platform:
            continue
        if row.since_python and (installed.python or row.since_python) < row.since_python:
            continue
        if row.follows_openmp and environment.get(row.name) in (None, "", str(threads)):
            continue
        proposals.append(Proposal(row.name, str(threads), row.reason, option=option))
    return tuple(proposals)
