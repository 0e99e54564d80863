# SPDX-License-Identifier: Apache-2.0
"""What the instances of a plan are started with: program, interpreter, environment variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.cache.use import NOT_KEPT, CacheSettings, cache_settings
from xlaunch.environment.allocators import (
    AUTO,
    AUTO_LIBRARY,
    PROFILES,
    TUNABLES,
    AllocatorProfile,
    allocator_settings,
    choose_profile,
)
from xlaunch.environment.elf import Elf
from xlaunch.environment.huge_pages import glibc_asks, page_settings, page_warning, system_mode
from xlaunch.environment.openmp import choose_openmp
from xlaunch.environment.program import Program, resolve_program
from xlaunch.environment.substitution import own_program, own_variables
from xlaunch.environment.threads import thread_settings
from xlaunch.environment.variables import (
    Inherited,
    Proposal,
    VariableSetting,
    check_variable,
    choose_settings,
    inherited_notes,
    instance_variables,
    layout_option,
    passed_on,
    split_inherited,
)
from xlaunch.errors import UsageError
from xlaunch.machine.architecture import glibc_version
from xlaunch.planning.contradictions import refuse_contradictions
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import (
    RANK_VARIABLES,
    Caches,
    HugePages,
    ProgramRequest,
    RunRequest,
)
from xlaunch.text import check_passable

__all__ = ["Environment", "Program", "VariableSetting", "prepare_environment"]


class Environment(NamedTuple):
    """Program and variables of each instance. Three tuples have one entry per instance."""

    program: Program
    """Before `--substitute`."""
    programs: tuple[Program, ...]
    settings: tuple[tuple[VariableSetting, ...], ...]
    variables: tuple[dict[str, str], ...]
    warnings: tuple[str, ...] = ()
    """One line each."""
    caches: CacheSettings = CacheSettings()
    forbids_huge_pages: bool = False
    allocator_left_alone: str | None = None
    """Why ``--allocator auto`` sets nothing; None: it sets something, or an allocator was named."""


def prepare_environment(
    plan: Plan,
    request: ProgramRequest,
    inherited: Mapping[str, str],
    *,
    run: RunRequest = RunRequest(),
    make_directories: bool = False,
    untried: str | None = None,
) -> Environment:
    """Find the program of `request` and choose the variables of every instance of `plan`.

    `inherited`: the environment to start from, usually `os.environ`; what an outer launcher set there
    is chosen again. `run`: where the output goes. `make_directories`: create the cache directories
    that variables name. `untried`: see `Program.untried`. Raises what `resolve_program` raises, and `UsageError` for a profile that is
    not available and for options that contradict each other.
    """
    refuse_contradictions({**request._asdict(), **run._asdict()})
    if run.tee and run.log_dir is None:
        raise UsageError(
            "--tee shows what is written to log files: name their directory, --log-dir DIR"
        )
    check_passable(tuple(request.words[1:]))
    for name, value in request.env:
        if not name:
            raise UsageError(f"the variable of the value {value!r} has no name")
        check_variable(name, value)
    outside = split_inherited(passed_on(inherited))
    inherited = outside.users_own
    plan = plan._replace(memory_share_bytes=_share_inside(plan, outside))
    program = resolve_program(request, inherited)._replace(untried=untried)
    warnings: list[str] = []
    given = {**inherited, **dict(request.env)}
    problem = None if program.loads is None else _tunables_problem(program.loads)
    mode, glibc = system_mode(), None if problem else glibc_version()
    openmp = choose_openmp(
        request.omp, plan, program, given, outside=outside.chosen, keep=make_directories
    )
    warnings += openmp.warnings
    allocator = _choose_allocator(
        request.allocator, program, given, glibc, problem, keep=make_directories
    )
    warnings += allocator.warnings
    threads_each = max([instance.threads for instance in plan.instances], default=1)
    proposals = [
        *openmp.proposals,
        *allocator_settings(
            allocator.profile,
            given,
            memory_share_bytes=plan.memory_share_bytes,
            threads=threads_each,
            huge_pages=glibc_asks(request.thp, mode, glibc, threads=threads_each),
        ),
        *page_settings(request.thp),
    ]
    openmp_library = None if openmp.preload is None else openmp.preload.path
    for library, reason in (
        (allocator.library, f"allocator {allocator.profile.name}"),
        (openmp_library, openmp.reason),
    ):
        if library is not None:
            from xlaunch.environment.preload import with_preload

            proposals = with_preload(proposals, given, library, reason)
    if request.optimize_wait and request.optimize is None:
        raise UsageError(
            "--optimize-wait is about what --optimize compiles: add --optimize auto, or drop it"
        )
    if request.optimize is not None:
        from xlaunch.environment.optimization import optimization_settings

        proposals += optimization_settings(
            request.optimize, program, given, wait=request.optimize_wait
        )
    if program.starts_ranks or not RANK_VARIABLES.isdisjoint(given):
        from xlaunch.environment.rank_hook import with_rank_hook

        proposals = with_rank_hook(proposals, program, given)
    caches = NOT_KEPT
    if not request.no_cache:
        caches = cache_settings(
            given,
            packages=program.installed.for_keys(),
            asked=request.cache_dir,
            everything=request.cache is Caches.ALL,
            fixed=dict(request.env),
            program=program.argv,
            make=make_directories,
        )
    proposals += [
        Proposal(it.name, it.value, it.reason, option=it.option) for it in caches.variables
    ]
    warnings += caches.warnings
    piped = (plan.relayed(run) and not run.pty) or run.log_dir is not None
    # An instance that is not relayed writes to this process's own output.
    piped |= "PYTHONUNBUFFERED" in outside.chosen and not run.pty
    if plan.layout.gpus_per_instance is not None:
        from xlaunch.environment.gpus import gpu_settings, refuse_two_choices

        refuse_two_choices(dict(request.env))
    ranks, option = program.starts_ranks, layout_option(plan.layout)
    programs, settings, variables = [], [], []
    for instance in plan.instances:
        asked = own_variables(request, plan, instance)
        threads: tuple[Proposal, ...] = ()
        if not ranks:
            known = {**inherited, **asked}
            threads = thread_settings(instance.threads, program.installed, known, option)
        own = [*proposals, *threads]
        if plan.layout.gpus_per_instance is not None:
            own += gpu_settings(instance.gpus, inherited)
        chosen = choose_settings(
            plan, instance, asked, inherited, own, piped=piped, starts_ranks=ranks
        )
        programs.append(own_program(program, request, plan, instance))
        settings.append(chosen)
        variables.append(instance_variables(plan, instance, asked, chosen, inherited))
    warning = page_warning(request.thp, mode)
    warnings += [warning] if warning is not None else []
    warnings += inherited_notes(settings[0], dict(request.env)) if settings else []
    return Environment(
        program,
        tuple(programs),
        tuple(settings),
        tuple(variables),
        tuple(warnings),
        caches,
        forbids_huge_pages=request.thp is HugePages.NEVER,
        allocator_left_alone=allocator.left_alone,
    )


class _Allocator(NamedTuple):
    profile: AllocatorProfile
    library: str | None = None
    """The file to preload."""
    warnings: tuple[str, ...] = ()
    left_alone: str | None = None
    """See `Environment.allocator_left_alone`."""


def _tunables_problem(program: Elf) -> str | None:
    """Why tunables of glibc's are not set for a program; None: they are."""
    if program.c_library == "glibc":
        if glibc_version() is None:
            return "xlaunch's Python does not run on glibc, whose version is not known here"
        return None
    if program.static:
        return "the program is linked statically"
    return f"the program is linked to {program.c_library or 'another C library'}, not to glibc"


def _choose_allocator(
    asked: str,
    program: Program,
    given: Mapping[str, str],
    glibc: tuple[int, int] | None,
    problem: str | None,
    *,
    keep: bool,
) -> _Allocator:
    """The profile that `--allocator` asks for, and its library; `problem`: see `_tunables_problem`.

    `auto` preloads into Python programs only. It preloads nothing if the user has chosen, by an
    allocator in LD_PRELOAD, which is kept, or by glibc's tunables.
    """
    if asked == AUTO:
        if given.get("LD_PRELOAD"):
            from xlaunch.environment.preload import other_allocator

            if other_allocator(given) is not None:
                return _Allocator(PROFILES["glibc"])
        chosen = "glibc.malloc" in given.get(TUNABLES, "")
        if sys.platform != "linux" or program.interpreter is None or chosen:
            return _Allocator(choose_profile(AUTO, glibc=glibc), left_alone=problem)
        from xlaunch.environment.preload import find_preloadable

        tried = find_preloadable("--allocator auto", AUTO_LIBRARY, program, given, keep=keep)
        profile = choose_profile(AUTO, glibc=glibc, is_installed=tried.library is not None)
        if tried.library is not None:
            return _Allocator(profile, tried.library.path, tried.notes)
        refused = "".join(f"; refused: {text}" for text in tried.refused)
        left_alone = None if problem is None else problem + refused
        return _Allocator(profile._replace(reason=profile.reason + refused), left_alone=left_alone)
    profile = choose_profile(asked, glibc=glibc)
    if profile.library is None:
        return _Allocator(profile)
    from xlaunch.environment.preload import refuse_second_allocator, require_library

    library, notes = require_library(
        f"--allocator {asked}", profile.library, program, given, keep=keep
    )
    refuse_second_allocator(library.path, given)
    return _Allocator(profile, library.path, notes)


def _share_inside(plan: Plan, outside: Inherited) -> int | None:
    """Each instance's memory: an equal part of the machine's, or of the enclosing instance's."""
    if outside.memory_share_bytes is None:
        return plan.memory_share_bytes
    share = outside.memory_share_bytes // plan.count
    return share if plan.memory_share_bytes is None else min(share, plan.memory_share_bytes)
