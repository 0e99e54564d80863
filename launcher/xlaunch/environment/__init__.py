# SPDX-License-Identifier: Apache-2.0
"""From a plan to what each instance is started with: program, interpreter, variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.environment.allocators import allocator_settings, choose_profile, glibc_version
from xlaunch.environment.caches import cache_settings
from xlaunch.environment.pages import glibc_asks, page_settings, page_warning, system_mode
from xlaunch.environment.program import Program, resolve_program
from xlaunch.environment.variables import Setting, choose_settings, instance_variables
from xlaunch.planning.plan import Plan

__all__ = ["Environment", "Program", "Setting", "prepare_environment"]


class Environment(NamedTuple):
    """What the instances of a plan are started with; two tuples run parallel to its instances."""

    program: Program
    settings: tuple[tuple[Setting, ...], ...]
    variables: tuple[dict[str, str], ...]
    warnings: tuple[str, ...] = ()
    """What the user should know before it runs, one line each."""


def prepare_environment(plan: Plan, inherited: Mapping[str, str]) -> Environment:
    """Find the program of `plan` and choose the variables of every instance.

    `inherited` is the environment to start from, as a rule `os.environ`.
    Raises what `resolve_program` raises, and `UsageError` for a profile that cannot be had.
    """
    request = plan.request
    program = resolve_program(request, inherited)
    mode, glibc = system_mode(), glibc_version()
    profile = choose_profile(request.allocator, glibc=glibc)
    proposals = [
        *allocator_settings(
            profile,
            inherited,
            memory_share_bytes=plan.memory_share_bytes,
            huge_pages=glibc_asks(request.thp, mode, glibc),
        ),
        *page_settings(request.thp),
    ]
    if profile.library is not None:
        from xlaunch.environment.preload import preload_for

        proposals.append(preload_for(profile, program, inherited))
    if not request.no_cache:
        proposals += cache_settings(request.cache_dir, inherited)
    piped = plan.relayed or request.log_dir is not None
    settings = tuple(
        choose_settings(plan, instance, inherited, proposals, piped=piped)
        for instance in plan.instances
    )
    variables = tuple(
        instance_variables(plan, instance, chosen, inherited)
        for instance, chosen in zip(plan.instances, settings, strict=True)
    )
    warning = page_warning(request.thp, mode)
    return Environment(program, settings, variables, () if warning is None else (warning,))
