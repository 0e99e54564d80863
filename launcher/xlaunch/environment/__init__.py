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
from xlaunch.environment.huge_pages import glibc_asks, page_settings, page_warning, system_mode
from xlaunch.environment.openmp import choose_openmp
from xlaunch.environment.program import Program, resolve_program, starts_ranks
from xlaunch.environment.python_environment import (
    Installed,
    find_installed,
    interpreter_of,
    prefix_of,
)
from xlaunch.environment.substitution import own_program, with_own_variables
from xlaunch.environment.threads import thread_settings
from xlaunch.environment.variables import (
    Inherited,
    Proposal,
    Setting,
    choose_settings,
    inherited_notes,
    instance_variables,
    layout_option,
    split_inherited,
)
from xlaunch.errors import UsageError
from xlaunch.machine.c_library import glibc_version
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import Caches

__all__ = ["Environment", "Program", "Setting", "prepare_environment"]


class Environment(NamedTuple):
    """Program and variables of each instance. Three tuples have one entry per instance."""

    program: Program
    """Before `--substitute`."""
    programs: tuple[Program, ...]
    settings: tuple[tuple[Setting, ...], ...]
    variables: tuple[dict[str, str], ...]
    warnings: tuple[str, ...] = ()
    """One line each."""
    caches: CacheSettings = CacheSettings()


def prepare_environment(
    plan: Plan, inherited: Mapping[str, str], *, make_directories: bool = False
) -> Environment:
    """Find the program of `plan` and choose the variables of every instance.

    `inherited`: the environment to start from, usually `os.environ`; what an outer launcher set there
    is chosen again. `make_directories`: create the cache directories that variables name. Raises
    what `resolve_program` raises, and `UsageError` for a profile that is not available.
    """
    request = plan.request
    outside = split_inherited(inherited)
    inherited = outside.users_own
    plan = plan._replace(memory_share_bytes=_share_inside(plan, outside))
    program = resolve_program(request, inherited)
    warnings: list[str] = []
    given = {**inherited, **dict(request.env)}
    interpreter = interpreter_of(program, inherited)
    prefix = None if interpreter is None else prefix_of(interpreter)
    mode, glibc = system_mode(), glibc_version()
    openmp = choose_openmp(request.omp, plan, program, given, outside=outside.chosen)
    warnings += openmp.warnings
    allocator = _choose_allocator(request.allocator, program, interpreter, prefix, given, glibc)
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
    if allocator.library is not None:
        from xlaunch.environment.preload import with_preload

        reason = f"allocator {allocator.profile.name}"
        proposals = with_preload(proposals, given, allocator.library, reason)
    if openmp.preload is not None:
        from xlaunch.environment.preload import with_preload

        proposals = with_preload(proposals, given, openmp.preload.path, openmp.reason)
    if request.optimize_wait and request.optimize is None:
        raise UsageError(
            "--optimize-wait is about what --optimize compiles: add --optimize auto, or drop it"
        )
    if request.optimize is not None:
        from xlaunch.environment.optimization import optimization_settings

        proposals += optimization_settings(
            request.optimize, program, interpreter, given, wait=request.optimize_wait
        )
    installed = Installed()
    if interpreter is not None and prefix is not None:
        installed = find_installed(prefix, interpreter, given)
    caches = NOT_KEPT
    if not request.no_cache:
        caches = cache_settings(
            given,
            packages=installed.for_keys(),
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
    piped = (plan.relayed and not request.pty) or request.log_dir is not None
    # An instance that is not relayed writes to this process's own output.
    piped |= "PYTHONUNBUFFERED" in outside.chosen and not request.pty
    ranks = starts_ranks(program)
    programs, settings, variables = [], [], []
    for instance in plan.instances:
        own = with_own_variables(plan, instance)
        known = {**inherited, **dict(own.request.env)}
        threads: tuple[Proposal, ...] = ()
        if not ranks:
            option = layout_option(request)
            threads = thread_settings(instance.threads, installed, known, option)
        chosen = choose_settings(
            own, instance, inherited, [*proposals, *threads], piped=piped, starts_ranks=ranks
        )
        programs.append(own_program(program, plan, instance))
        settings.append(chosen)
        variables.append(instance_variables(own, instance, chosen, inherited))
    warning = page_warning(request.thp, mode)
    warnings += [warning] if warning is not None else []
    warnings += inherited_notes(settings[0], plan) if settings else []
    return Environment(
        program, tuple(programs), tuple(settings), tuple(variables), tuple(warnings), caches
    )


class _Allocator(NamedTuple):
    profile: AllocatorProfile
    library: str | None = None
    """The file to preload."""
    warnings: tuple[str, ...] = ()


def _choose_allocator(
    asked: str,
    program: Program,
    interpreter: str | None,
    prefix: str | None,
    given: Mapping[str, str],
    glibc: tuple[int, int] | None,
) -> _Allocator:
    """The profile that `--allocator` asks for, and its library.

    `auto` preloads into Python alone, and nothing where the user has chosen: by an allocator in
    LD_PRELOAD, which is kept as it is, or by tunables of glibc's.
    """
    if asked == AUTO:
        if given.get("LD_PRELOAD"):
            from xlaunch.environment.preload import other_allocator

            if other_allocator(given) is not None:
                return _Allocator(PROFILES["glibc"])
        chosen = "glibc.malloc" in given.get(TUNABLES, "")
        if sys.platform != "linux" or interpreter is None or prefix is None or chosen:
            return _Allocator(choose_profile(AUTO, glibc=glibc))
        from xlaunch.environment.preload import find_preloadable

        tried = find_preloadable(
            "--allocator auto",
            AUTO_LIBRARY,
            prefix=prefix,
            interpreter=interpreter,
            environment=given,
        )
        profile = choose_profile(AUTO, glibc=glibc, is_installed=tried.library is not None)
        if tried.library is not None:
            return _Allocator(profile, tried.library.path, tried.notes)
        refused = "".join(f"; refused: {text}" for text in tried.refused)
        return _Allocator(profile._replace(reason=profile.reason + refused))
    profile = choose_profile(asked, glibc=glibc)
    if profile.library is None:
        return _Allocator(profile)
    from xlaunch.environment.preload import refuse_second_allocator, require_library

    library, notes = require_library(
        f"--allocator {asked}",
        profile.library,
        prefix=prefix,
        interpreter=interpreter or program.executable,
        environment=given,
    )
    refuse_second_allocator(library.path, given)
    return _Allocator(profile, library.path, notes)


def _share_inside(plan: Plan, outside: Inherited) -> int | None:
    """Each instance's memory: an equal part of the machine's, or of the enclosing instance's."""
    if outside.memory_share_bytes is None:
        return plan.memory_share_bytes
    share = outside.memory_share_bytes // plan.count
    return share if plan.memory_share_bytes is None else min(share, plan.memory_share_bytes)
