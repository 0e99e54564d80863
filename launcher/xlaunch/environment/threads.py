# SPDX-License-Identifier: Apache-2.0
"""Thread counts: OMP_NUM_THREADS, and the variables of libraries that have their own threads; and the start-up hook.

A variable that child processes inherit switches off what joblib, Dask, Ray and others do for their
workers, which get a share of the CPUs only if it is unset. So a count that every library of the program
finds by itself is not set (`every_library_counts_the_mask`), and any other is kept in the program's own process (`start_hook`).
A variable of another library is set only if that is installed with the program, which the names of
dist-info directories show, or if it can do no harm.

The hook is what xlaunch does inside a Python program before the program itself, see
``start_hook/startup/sitecustomize.py``.
"""

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.children import PATH
from xlaunch.environment.contribution import Contribution, ListEntry, Situation
from xlaunch.environment.elf import MACHINES
from xlaunch.environment.program import Program, interpreter_flags
from xlaunch.environment.python_environment import InstalledPackages, site_directories
from xlaunch.environment.variables import Proposal, Reach, layout_option
from xlaunch.files import names_in
from xlaunch.machine.tree import read_file
from xlaunch.planning.plans import Instance
from xlaunch.planning.request import LOCAL_RANK_VARIABLES

OPENMP_COUNT = "OMP_NUM_THREADS"


class ThreadVariable(NamedTuple):
    """A variable that holds a number of threads: a row of `VARIABLES`."""

    name: str
    packages: tuple[str, ...]
    """Set if one of these distributions is installed; empty: on any `platform` that is listed."""
    reason: str
    source: str
    follows_openmp: bool = False
    """The library uses OMP_NUM_THREADS if this is not set, and what it counts without either. So xlaunch
    does not set it, reports a different value that the user set, and removes that if an option replaces it."""
    counts_mask: bool = False
    """Without the variable the library takes the CPUs of the mask."""
    since_python: tuple[int, int] | None = None
    """First version of Python with it."""
    platform: str = ""
    """The sys.platform that it is for; empty: any."""


VARIABLES = (
    ThreadVariable("MKL_NUM_THREADS", ("mkl", "torch"), "MKL follows OMP_NUM_THREADS",
        "oneMKL developer guide, Changing the Number of OpenMP Threads at Run Time; joblib, "
        "ParallelBackendBase.MAX_NUM_THREADS_VARS", follows_openmp=True),
    ThreadVariable("OPENBLAS_NUM_THREADS", ("numpy", "scipy"), "OpenBLAS follows OMP_NUM_THREADS",
        "OpenBLAS, driver/others/blas_server.c and README: Setting the number of threads; joblib",
        follows_openmp=True),
    ThreadVariable("BLIS_NUM_THREADS", ("numpy",), "BLIS follows OMP_NUM_THREADS",
        "BLIS, docs/Multithreading.md; joblib", follows_openmp=True),
    ThreadVariable("NUMEXPR_NUM_THREADS", ("numexpr",), "NumExpr follows OMP_NUM_THREADS",
        "numexpr/utils.py, _init_num_threads; joblib", follows_openmp=True),
    ThreadVariable("NUMEXPR_MAX_THREADS", ("numexpr",),
        "NumExpr runs on one thread when asked for more than this, which is 64 unless set",
        "numexpr/utils.py, _init_num_threads; seen with 2.14 and OMP_NUM_THREADS=100"),
    ThreadVariable("RAYON_NUM_THREADS", ("tokenizers",),
        "tokenizers would start a thread for each CPU of the mask, whatever the instance's share",
        "rayon, ThreadPoolBuilder::num_threads; std::thread::available_parallelism", counts_mask=True),
    ThreadVariable("POLARS_MAX_THREADS", ("polars",),
        "Polars would start a thread for each CPU of the mask, whatever the instance's share",
        "Polars user guide, environment variables; std::thread::available_parallelism", counts_mask=True),
    ThreadVariable("TF_NUM_INTRAOP_THREADS", ("tensorflow", "tensorflow-cpu", "intel-tensorflow"),
        "TensorFlow has its own thread pool for the work within an operation",
        "tensorflow/core/common_runtime/process_util.cc, NumIntraOpThreadsFromEnvironment; port.cc",
        counts_mask=True),
    ThreadVariable("LOKY_MAX_CPU_COUNT", ("joblib", "loky"), "n_jobs=-1 means the instance's share",
        "loky, cpu_count", counts_mask=True),
    ThreadVariable("PYTHON_CPU_COUNT", (), "os.cpu_count() is the instance's share, not the machine's",
        "Python 3.13, Command line and environment", since_python=(3, 13)),
    ThreadVariable("VECLIB_MAXIMUM_THREADS", (), "Apple's Accelerate has its own threads",
        "vecLib(7)", platform="darwin"),
)  # fmt: skip
"""Left out: TOKENIZERS_PARALLELISM, which also decides what happens after a fork, and
NUMBA_NUM_THREADS, above which numba refuses what a program asks for."""


def contribute_threads(situation: Situation) -> Contribution:
    """The number of threads of OpenMP and of other libraries.

    None for a program that divides its CPUs among processes of its own.
    """
    plan, program = situation.plan, situation.program
    if program.starts_ranks:
        return Contribution()

    option = layout_option(plan.layout)
    users_own = OPENMP_COUNT in dict(situation.request.env) or (
        option is None and situation.given.get(OPENMP_COUNT)
    )
    is_masked = situation.started and plan.bound
    # MKL looks at the CPU itself to see which CPUs of the mask share a core.
    mask_tells = is_masked and plan.cores_known and every_library_counts_the_mask(program)
    is_hooked = situation.started and hook_reaches(program)

    def count_of(instance: Instance) -> Proposal:
        value, reach = str(instance.threads), Reach.CHILDREN
        reason = "one thread for each CPU that the instance may use"
        if mask_tells and instance.threads == len(instance.cpus) == instance.ncores:
            reach = Reach.NO_PROCESS
            reason = f"libraries count the CPUs of the mask: {instance.threads}"
        elif is_hooked and not users_own:
            reach = Reach.PROGRAM
            reason += "; processes that the program starts do not inherit it"
        return Proposal(OPENMP_COUNT, value, reason, option=option, reach=reach)

    def of_instance(instance: Instance, known: Mapping[str, str]) -> list[Proposal]:
        proposals = [count_of(instance)]
        if proposals[0].reach is Reach.PROGRAM and known.get(OPENMP_COUNT) != proposals[0].value:
            reason = f"tells the hook that {OPENMP_COUNT} is for the program's own process"
            proposals.append(Proposal(NOT_INHERITED, OPENMP_COUNT, reason, merged=True))
        masked = is_masked and instance.threads == len(instance.cpus)
        proposals += thread_settings(
            instance.threads, program.installed, known, option, is_masked=masked
        )
        return proposals

    reaches_of_counts = {count_of(instance).reach for instance in plan.instances}
    if Reach.PROGRAM in reaches_of_counts:
        reason = f"loads a hook that keeps {OPENMP_COUNT} from child processes, and removes itself"
        return Contribution(of_instance=of_instance, entries=[hook_entry(reason)])
    warnings: tuple[str, ...] = ()
    if Reach.CHILDREN in reaches_of_counts and situation.started and not users_own:
        warnings = _warn_of_workers(program)
    return Contribution(of_instance=of_instance, warnings=warnings)


WORKERS = ("joblib", "distributed", "ray", "lightning", "pytorch-lightning")
"""Packages that give each of their workers a share of the CPUs only where no variable says a number."""


def _warn_of_workers(program: Program) -> tuple[str, ...]:
    """A warning for a Python program that ignores the hook, if it can use one of `WORKERS`."""
    flags = [flag for flag in interpreter_flags(program) if flag in "EIS"] if program.prefix else []
    packages = [name for name in WORKERS if program.installed.has(name)]
    if not flags or not packages:
        return ()
    return (
        f"python -{flags[0]} keeps xlaunch's start-up hook out, so workers of {', '.join(packages)} "
        f"inherit {OPENMP_COUNT}: leave -{flags[0]} out, or give --unset {OPENMP_COUNT}",
    )


def every_library_counts_the_mask(program: Program) -> bool:
    """Whether all libraries that `program` may load take the mask for their number of threads.

    Without OMP_NUM_THREADS, libgomp (config/linux/proc.c), libiomp5 and libomp (z_Linux_util.cpp) and OpenBLAS
    on glibc (driver/others/memory.c) count the CPUs of the mask; MKL, and torch linked to it
    (ParallelOpenMP.cpp), its cores; torch without MKL (ParallelCommon.cpp) and OpenBLAS on other C libraries
    those of the machine; BLIS takes one thread, and NumExpr what NUMEXPR_MAX_THREADS says. A program that is
    not Python may start one with torch, whose usual builds have MKL on x86-64 only.
    """
    if program.loads is None or program.loads.c_library != "glibc":
        return False
    if program.prefix is None:
        return MACHINES.get(program.loads.target.machine) == "x86-64"
    if [name for name in names_in(f"{program.prefix}/lib") if name.startswith("libblis.so")]:
        return False
    return not program.installed.has("torch") or _torch_has_mkl(program)


def _torch_has_mkl(program: Program) -> bool:
    """Whether the program's torch is linked to a threaded MKL; False if that cannot be seen."""
    for site in site_directories(program.prefix, program.interpreter) if program.prefix else ():
        text = read_file(f"{site}/torch/include/ATen/Config.h", max_bytes=1 << 16)
        if text is not None:
            return b"AT_MKL_ENABLED() 1" in text and b"AT_MKL_SEQUENTIAL() 0" in text
    return False


def thread_settings(
    threads: int,
    installed: InstalledPackages,
    environment: Mapping[str, str],
    option: str | None = None,
    *,
    is_masked: bool = False,
) -> tuple[Proposal, ...]:
    """The variables that set the number of threads of the installed libraries.

    `environment`: what the instance inherits. `option`: see `Proposal`. `is_masked`: the instance has a
    mask of so many CPUs.
    """
    proposals = []
    for row in VARIABLES:
        if row.packages and not installed.has(*row.packages):
            continue
        if row.platform and sys.platform != row.platform:
            continue
        if row.since_python and (installed.python or row.since_python) < row.since_python:
            continue
        is_known = row.follows_openmp or (is_masked and row.counts_mask)
        if is_known and environment.get(row.name) in (None, "", str(threads)):
            continue
        reach = Reach.NO_PROCESS if is_known else Reach.CHILDREN
        proposals.append(Proposal(row.name, str(threads), row.reason, option=option, reach=reach))
    return tuple(proposals)


HOOK_DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start_hook", "startup")
NOT_INHERITED = "XLAUNCH_NOT_INHERITED"
"""For the hook: names of variables that the program's libraries read and its child processes do not get."""
NOT_FOR_DASK = "XLAUNCH_NOT_FOR_DASK"
"""For the hook: variables that Dask's workers do not get, ``NAME=VALUE;...`` with the user's own values."""
RANKS_MENDED = (3, 14)
"""First version of Python whose ranks need no hook at their end."""


def hook_reaches(program: Program) -> bool:
    """Whether Python's module `site` would import the start-up hook when `program` starts."""
    if sys.platform != "linux" or program.interpreter is None or os.pathsep in HOOK_DIRECTORY:
        return False
    return all(flag not in "EIS" for flag in interpreter_flags(program))


def hook_entry(reason: str, *, slash: bool = False) -> ListEntry:
    """The start-up hook on PYTHONPATH. `slash`: it is passed on to ranks."""
    return ListEntry(PATH, f"{HOOK_DIRECTORY}/" if slash else HOOK_DIRECTORY, reason)


def contribute_rank_hook(situation: Situation) -> Contribution:
    """The hook, for a rank, or a program that starts ranks, with torch and a Python that needs it."""
    program = situation.program
    if not program.starts_ranks and LOCAL_RANK_VARIABLES.isdisjoint(situation.given):
        return Contribution()
    is_old = (program.installed.python or RANKS_MENDED) < RANKS_MENDED
    if not is_old or not hook_reaches(program) or not program.installed.has("torch"):
        return Contribution()
    reason = (
        "loads a hook that waits for gloo's threads at the end of a rank, and removes itself there"
    )
    return Contribution(entries=[hook_entry(reason, slash=program.starts_ranks)])
