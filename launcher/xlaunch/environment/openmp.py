# SPDX-License-Identifier: Apache-2.0
"""OpenMP profiles: which runtime a program uses, and how its threads wait.

torch's wheels carry GNU's runtime, libgomp. Intel's and LLVM's have its entry points as well, so
either of them, preloaded, takes its place: every library in the process then uses one runtime and
one team of threads. libgomp stays mapped, and idle.

What no profile sets, and why:

- OMP_PROC_BIND, GOMP_CPU_AFFINITY, KMP_AFFINITY: with them a runtime shrinks the main thread to one
  CPU when it is loaded, and loader workers that are forked later inherit that (pytorch issues 99625,
  91989, 101850). Instances are confined by their mask instead.
- OMP_SCHEDULE: applies to loops that ask for it (``schedule(runtime)``), and torch's do not.
- OMP_DYNAMIC: off is every runtime's default; on, libgomp takes threads away by the load average.
- KMP_DUPLICATE_LIB_OK: hides a second runtime instead of avoiding it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from xlaunch.environment.contribution import Contribution, ListEntry, Situation
from xlaunch.environment.program import Program
from xlaunch.environment.variables import PRELOAD, Proposal
from xlaunch.errors import UsageError
from xlaunch.planning.plans import Plan

if TYPE_CHECKING:
    from xlaunch.environment.libraries import Library

AUTO = "auto"


class OpenMPProfile(NamedTuple):
    """A runtime with its settings: a row of `PROFILES`."""

    name: str
    reason: str
    source: str
    settings: Mapping[str, str] = {}
    """Variables if each thread has a CPU of its own."""
    passive: Mapping[str, str] = {}
    """Variables if waiting threads must not spin: with a CPU quota, or with shared CPUs."""
    library: str | None = None
    """The library to preload, by its name in `xlaunch.environment.libraries`; None: nothing."""


KMP_AFFINITY = "KMP_AFFINITY"
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", KMP_AFFINITY)
"""Variables that shrink the main thread's mask; the last one only with Intel's and LLVM's runtimes."""
KMP = ("intel", "llvm")
_KMP_TYPES = ("compact", "scatter", "balanced", "explicit", "logical", "physical", "proclist")
"""Types of KMP_AFFINITY that bind threads; without a type it binds none."""
_BINDS_NOTHING = ("false", "none", "disabled")

PASSIVE = {"OMP_WAIT_POLICY": "passive"}
"""Valid for every runtime: libgomp then never spins, Intel's and LLVM's have a block time of 0."""

KEEP_WORKERS = {"KMP_HOT_TEAMS_MODE": "1"}
"""Intel's and LLVM's runtimes give unused workers of a team to other teams, with their affinity masks;
this keeps them. It has an effect only before the first parallel region."""

_SPINS_1_MS = {"KMP_BLOCKTIME": "1", **KEEP_WORKERS}
_NEVER_SPINS = {**PASSIVE, "KMP_BLOCKTIME": "0", **KEEP_WORKERS}

PROFILES = {
    profile.name: profile
    for profile in (
        OpenMPProfile(
            AUTO,
            "the program's own runtime, waiting in its own way: none was seen to be faster",
            "benchmarks/openmp on 64 CPUs; docs/measurements.md",
            passive=PASSIVE,
        ),
        OpenMPProfile("none", "nothing is set but the number of threads", "asked for"),
        OpenMPProfile(
            "gnu",
            "one libgomp for all libraries of the process; it spins about 3 ms before it sleeps",
            "libgomp/env.c: GOMP_SPINCOUNT is 300,000 unless set, 0 when passive",
            passive=PASSIVE,
            library="gnu",
        ),
        OpenMPProfile(
            "intel",
            "Intel's runtime; it spins 1 ms before it sleeps, not 200 as by default, so that waiting "
            "threads do not slow down the others",
            "Intel Extension for PyTorch's launcher; openmp/runtime/src/kmp_settings.cpp",
            _SPINS_1_MS,
            _NEVER_SPINS,
            "intel",
        ),
        OpenMPProfile(
            "llvm",
            "LLVM's runtime; it spins 1 ms before it sleeps, not 200 as by default",
            "as for Intel's, from which it descends; openmp/docs/design/Runtimes.rst",
            _SPINS_1_MS,
            _NEVER_SPINS,
            "llvm",
        ),
    )
}


def contribute_openmp(situation: Situation) -> Contribution:
    """The settings of `--omp`, and its runtime."""
    return choose_openmp(
        situation.request.omp,
        situation.plan,
        situation.program,
        situation.loading,
        outside=situation.outside.chosen,
        keep=situation.make_directories,
    )


def choose_openmp(
    asked: str,
    plan: Plan,
    program: Program,
    environment: Mapping[str, str],
    *,
    outside: Mapping[str, str] | None = None,
    keep: bool = True,
) -> Contribution:
    """Choose the variables and the runtime for ``--omp`` `asked`.

    `environment`: what the program inherits; a runtime in its LD_PRELOAD is kept as the only one.
    `outside`: what an outer launcher has set. `keep`: see `prove_preload`. Raises `UsageError` if the runtime is not available.
    """
    profile = PROFILES.get(asked)
    if profile is None and "/" not in asked:
        raise UsageError(
            f"--omp: {asked!r} is not an OpenMP profile; there are {', '.join(PROFILES)}, or the path "
            "of a runtime"
        )
    library: Library | None = None
    warnings: tuple[str, ...] = ()
    if profile is None or profile.library is not None:
        profile, library, warnings = _runtime(asked, program, environment, keep=keep)
    warnings += _warn_of_binding(profile, program, environment)
    why_passive = _why_passive(plan, outside or {})
    if why_passive is None:
        variables, reason = profile.settings, f"OpenMP {profile.name}: {profile.reason}"
    else:
        variables, reason = profile.passive, why_passive
    proposals = [Proposal(name, value, reason) for name, value in variables.items()]
    entries = []
    if library is not None:
        version = f" {library.version}" if library.version else ""
        why = f"OpenMP {profile.name}{version}: {library.origin}"
        entries.append(ListEntry(PRELOAD, library.path, why))
    return Contribution(proposals, entries=entries, warnings=warnings)


def _why_passive(plan: Plan, outside: Mapping[str, str]) -> str | None:
    """Why waiting threads should sleep at once; None if they may spin."""
    if plan.cpu_quota is not None:
        return f"threads that spin while they wait use up the CPU quota of {plan.cpu_quota:g}"
    instances = plan.instances
    unseen = len(instances) < plan.count and plan.layout.oversubscribe
    if unseen or sum([instance.threads for instance in instances]) > len(plan.used_cpus):
        return "CPUs are shared: a thread that spins keeps others from what it waits for"
    if PASSIVE.items() <= outside.items():
        return "the outer launcher lets instances share these CPUs, or has a CPU quota"
    return None


def _warn_of_binding(
    profile: OpenMPProfile, program: Program, environment: Mapping[str, str]
) -> tuple[str, ...]:
    if profile is PROFILES["none"]:
        return ()
    binding = binding_variable(environment, program, profile.library)
    if binding is None:
        return ()
    return (
        f"{binding.assignment} is set and kept: with {binding.runtime} it shrinks a program's main thread "
        "to one place, and with it every process that the program starts",
    )


class Binding(NamedTuple):
    """A variable by which an OpenMP runtime binds the main thread of a process."""

    assignment: str
    """**Ex.:** ``KMP_AFFINITY=compact``."""
    runtime: str
    """**Ex.:** ``/opt/lib/libiomp5.so``, ``any runtime``."""


def binding_variable(
    environment: Mapping[str, str], program: Program, chosen: str | None = None
) -> Binding | None:
    """The inherited variable by which a runtime of the program binds its main thread; None: there is none.

    `environment`: what `program` inherits, with the entries of LD_PRELOAD that it will load. `chosen`:
    the runtime that ``--omp`` preloads. KMP_AFFINITY has an effect with Intel's and LLVM's only, there also
    where OMP_PROC_BIND is false.
    """
    value = environment.get(KMP_AFFINITY, "")
    if value and any(word in value.lower() for word in _KMP_TYPES):
        runtime = f"--omp {chosen}" if chosen in KMP else _kmp_runtime(program, environment)
        if runtime is not None:
            return Binding(f"{KMP_AFFINITY}={value}", runtime)
    if environment.get("OMP_PROC_BIND", "").lower() == "false":
        return None
    for name in BINDING[:-1]:
        value = environment.get(name, "")
        if value and not any(word in value.lower() for word in _BINDS_NOTHING):
            return Binding(f"{name}={value}", "any runtime")
    return None


def _kmp_runtime(program: Program, environment: Mapping[str, str]) -> str | None:
    """Where Intel's or LLVM's runtime comes from that `program` loads; None: it is not known to load one.

    Preloaded by the user, linked to the executable or to torch, brought by a package for itself, or by MKL.
    """
    from xlaunch.environment.libraries import find_libraries, kind_of
    from xlaunch.environment.preload import preloaded_of

    for entry in preloaded_of(environment, KMP):
        return entry
    for name in () if program.loads is None else program.loads.needed:
        if kind_of(name) in KMP:
            return name
    if program.prefix is None:
        return None
    own = program_runtime(program.prefix, program.interpreter)
    if own in KMP:
        return f"the {own} runtime of torch"
    if program.installed.has("mkl"):
        return "the libiomp5 that MKL loads"
    for library in find_libraries(KMP, program.prefix, {}, loads=None):
        if "-packages/" in library.path:
            return library.path
    return None


def _runtime(
    asked: str, program: Program, environment: Mapping[str, str], *, keep: bool
) -> tuple[OpenMPProfile, Library | None, tuple[str, ...]]:
    """The profile, the library to preload for it, and warnings."""
    from xlaunch.environment.libraries import OPENMP, kind_of
    from xlaunch.environment.preload import preloaded_of, require_library

    kind = _kind_of_file(asked) if "/" in asked else PROFILES[asked].library
    profile = PROFILES[kind] if kind is not None else PROFILES[AUTO]
    for entry in preloaded_of(environment, OPENMP):
        present = str(kind_of(entry))
        is_asked = present == kind
        if "/" in asked:
            is_asked = os.path.realpath(entry) == os.path.realpath(asked)
        if is_asked:
            return profile, None, ()
        warning = (
            f"--omp {asked}: LD_PRELOAD names {entry} already, which is kept: two OpenMP "
            "runtimes in one process interfere with each other"
        )
        return PROFILES[present], None, (warning,)
    own = program_runtime(program.prefix, program.interpreter)
    if own is not None and own != kind and own != "gnu":
        raise UsageError(
            f"--omp {asked}: torch in {program.prefix} is linked to the {own} runtime, whose place no other "
            f"can take; use --omp {own} or auto"
        )
    library, notes = require_library(
        f"--omp {asked}", asked if "/" in asked else str(kind), program, environment, keep=keep
    )
    return profile._replace(name=asked), library, notes


def program_runtime(prefix: str | None, interpreter: str | None = None) -> str | None:
    """The OpenMP runtime that torch in `prefix` is linked to; None without torch or a runtime.

    Only the names in the dynamic section of libtorch_cpu.so are read.
    """
    from xlaunch.environment.elf import ElfError, read_elf
    from xlaunch.environment.libraries import OPENMP, kind_of
    from xlaunch.environment.python_environment import site_directories

    for site in site_directories(prefix, interpreter) if prefix is not None else ():
        try:
            needed = read_elf(f"{site}/torch/lib/libtorch_cpu.so").needed
        except ElfError:
            continue
        return next((kind for kind in map(kind_of, needed) if kind in OPENMP), None)
    return None


def _kind_of_file(path: str) -> str | None:
    """Which runtime a file is, by its soname or name. Raises `UsageError` for any other file."""
    from xlaunch.environment.elf import ElfError, read_elf
    from xlaunch.environment.libraries import OPENMP, kind_of

    try:
        soname = read_elf(path).soname
        with open(path, "rb") as stream:
            is_runtime = b"\0omp_get_max_threads\0" in stream.read(1 << 26)
    except ElfError as error:
        raise UsageError(f"--omp: {path} {error}") from None
    except OSError as error:
        raise UsageError(f"--omp: {path} cannot be read ({error.strerror})") from None
    if not is_runtime:
        raise UsageError(f"--omp: {path} is not an OpenMP runtime: it has no omp_get_max_threads")
    kinds = (kind_of(soname or ""), kind_of(os.path.realpath(path)), kind_of(path))
    return next((kind for kind in kinds if kind in OPENMP), None)
