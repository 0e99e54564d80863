# SPDX-License-Identifier: Apache-2.0
"""What the instances of a plan are started with: program, interpreter, environment variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xlaunch.cache.use import NOT_KEPT, CacheSettings, cache_settings
from xlaunch.environment.allocators import contribute_allocator
from xlaunch.environment.contribution import Contribution, Contributor, ListEntry, Situation
from xlaunch.environment.openmp import contribute_openmp
from xlaunch.environment.program import Program, resolve_program
from xlaunch.environment.threads import contribute_rank_hook, contribute_threads
from xlaunch.environment.variables import (
    PRELOAD,
    InheritedVariables,
    Proposal,
    VariableSetting,
    check_variable,
    choose_settings,
    inherited_notes,
    instance_variables,
    own_program,
    own_variables,
    passed_on,
    split_inherited,
)
from xlaunch.errors import UsageError
from xlaunch.machine.gpus import (
    BY_PCI_ADDRESS,
    CUDA,
    CUDA_ORDER,
    LEVEL_ZERO,
    LEVEL_ZERO_HIERARCHY,
    LEVEL_ZERO_ORDER,
    SYCL,
    VARIABLES,
)
from xlaunch.machine.limits import SYSTEM_MODE_FILE, SystemMode, system_mode
from xlaunch.machine.topology import Gpu
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import (
    Caches,
    HugePages,
    ProgramRequest,
    RunRequest,
    refuse_contradictions,
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


# The small concerns: output, optimization, caches, huge pages, GPUs.


def _contribute_output(situation: Situation) -> Contribution:
    plan, run = situation.plan, situation.run
    piped = (plan.relayed(run) and not run.pty) or run.log_dir is not None
    # An instance that is not relayed writes to this process's own output.
    piped |= "PYTHONUNBUFFERED" in situation.outside.chosen and not run.pty
    if not piped:
        return Contribution()
    return Contribution(
        [Proposal("PYTHONUNBUFFERED", "1", "so that output shows as it is written")]
    )


def _contribute_optimization(situation: Situation) -> Contribution:
    request = situation.request
    if request.optimize is None:
        if request.optimize_wait:
            raise UsageError(
                "--optimize-wait is about what --optimize compiles: add --optimize auto, or drop it"
            )
        return Contribution()
    from xlaunch.environment.optimization import contribute_optimization

    return contribute_optimization(request.optimize, situation)


def _contribute_caches(situation: Situation) -> Contribution:
    request = situation.request
    if request.no_cache:
        caches = NOT_KEPT
    else:
        caches = cache_settings(
            situation.given,
            packages=situation.program.installed.for_keys(),
            asked=request.cache_dir,
            everything=request.cache is Caches.ALL,
            fixed=dict(request.env),
            program=situation.program.argv,
            make=situation.make_directories,
        )
    variables = [
        Proposal(variable.name, variable.value, variable.reason, option=variable.option)
        for variable in caches.variables
    ]
    return Contribution(variables, warnings=caches.warnings, caches=caches)


def _contribute_pages(situation: Situation) -> Contribution:
    """The variables of `--thp`."""
    return request_pages(situation.request.thp, system_mode())


def request_pages(thp: HugePages, mode: SystemMode) -> Contribution:
    """The variable by which torch requests huge pages, and a warning if the system grants none."""
    if thp is not HugePages.ALWAYS:
        return Contribution()
    warnings = []
    if mode is SystemMode.NEVER:
        warnings.append(
            "--thp always has no effect: the system's mode is never; "
            f"the administrator can write madvise to {SYSTEM_MODE_FILE}"
        )
    reason = "--thp always: torch requests huge pages for tensors"
    setting = Proposal("THP_MEM_ALLOC_ENABLE", "1", reason, option="--thp always")
    return Contribution([setting], warnings=warnings)


_GPUS_REASON = "--gpus-per-instance: the instance's own GPUs"


def _gpu_settings(gpus: Sequence[Gpu], inherited: Mapping[str, str]) -> list[Proposal]:
    """The variables of an instance with these GPUs; none without any.

    Numbers are by PCI address: for CUDA that is nvidia-smi's order, which every program takes, while
    some do not take UUIDs. Words of an inherited variable are used as they are.
    """
    if not gpus:
        return []
    variable = gpus[0].variable
    value = ",".join([gpu.name for gpu in gpus])
    if variable == SYCL:
        value = f"level_zero:{value}"
    settings = [Proposal(variable, value, _GPUS_REASON, merged=True)]
    if variable == CUDA and any(gpu.name.isdecimal() for gpu in gpus):
        reason = f"{CUDA} counts GPUs as nvidia-smi does"
        settings.append(Proposal(CUDA_ORDER, BY_PCI_ADDRESS, reason, merged=True))
    if variable == LEVEL_ZERO and LEVEL_ZERO not in inherited:
        settings += [
            Proposal(LEVEL_ZERO_ORDER, "1", f"{LEVEL_ZERO} counts by PCI address", merged=True),
            Proposal(LEVEL_ZERO_HIERARCHY, "COMPOSITE", f"{LEVEL_ZERO} counts cards, not tiles"),
        ]
    return settings


def _contribute_gpus(situation: Situation) -> Contribution:
    """The variables of `--gpus-per-instance`. Raises `UsageError` where `--env` chooses GPUs, too."""
    if situation.plan.layout.gpus_per_instance is None:
        return Contribution()
    for name, _ in situation.request.env:
        if name in VARIABLES:
            raise UsageError(
                f"--env {name} and --gpus-per-instance both choose GPUs: drop one, or set {name} "
                "before xlaunch, which then divides the GPUs that it names"
            )
    own = situation.outside.users_own
    return Contribution(of_instance=lambda instance, _: _gpu_settings(instance.gpus, own))


CONTRIBUTORS: tuple[Contributor, ...] = (
    contribute_threads,
    _contribute_output,
    contribute_allocator,
    contribute_openmp,
    _contribute_pages,
    _contribute_optimization,
    contribute_rank_hook,
    _contribute_caches,
    _contribute_gpus,
)
"""The concerns, in the order in which --explain shows their variables."""


def prepare_environment(
    plan: Plan,
    request: ProgramRequest,
    inherited: Mapping[str, str],
    *,
    run: RunRequest = RunRequest(),
    make_directories: bool = False,
    untried: str | None = None,
    started: bool = True,
) -> Environment:
    """Find the program of `request` and choose the variables of every instance of `plan`.

    `inherited`: the environment to start from, usually `os.environ`; what an outer launcher set there
    is chosen again. `run`: where the output goes. `untried`: see `Program.untried`. For the others see
    `Situation`. Raises what `resolve_program` raises, and `UsageError` for a profile that is
    not available and for options that contradict each other.
    """
    _check(request, run)
    outside = split_inherited(passed_on(inherited))
    unset = [VariableSetting(n, None, "--unset") for n in request.unset if n in outside.users_own]
    inherited = {n: value for n, value in outside.users_own.items() if n not in request.unset}
    outside = outside._replace(users_own=inherited)
    plan = plan._replace(memory_share_bytes=_share_inside(plan, outside))
    program = resolve_program(request, inherited)._replace(untried=untried)
    given = {**inherited, **dict(request.env)}
    loading, warnings = _loading(given, program, keep=make_directories)
    situation = Situation(
        plan, request, run, program, given, loading, outside, make_directories, started
    )
    parts = [contribute(situation) for contribute in CONTRIBUTORS]
    lists = join_entries([entry for part in parts for entry in part.entries], given)
    programs, settings, variables = [], [], []
    for instance in plan.instances:
        asked = own_variables(request, plan, instance)
        variables_of_user = {**inherited, **asked}
        proposals = list[Proposal]()
        for part in parts:
            proposals += part.proposals
            if part.of_instance is not None:
                proposals += part.of_instance(instance, variables_of_user)
        proposals = [proposal for proposal in proposals if proposal.name not in request.unset]
        chosen = choose_settings(plan, instance, asked, inherited, [*proposals, *lists])
        programs.append(own_program(program, request, plan, instance))
        settings.append((*chosen, *unset))
        variables.append(instance_variables(plan, instance, asked, chosen, inherited))
    warnings += [text for part in parts for text in part.warnings]
    warnings += inherited_notes(settings[0], dict(request.env)) if settings else []
    left_alone = [part.allocator_left_alone for part in parts if part.allocator_left_alone]
    return Environment(
        program,
        tuple(programs),
        tuple(settings),
        tuple(variables),
        tuple(warnings),
        caches=next((part.caches for part in parts if part.caches != NOT_KEPT), NOT_KEPT),
        forbids_huge_pages=request.thp is HugePages.NEVER,
        allocator_left_alone=next(iter(left_alone), None),
    )


def _check(request: ProgramRequest, run: RunRequest) -> None:
    """Raise `UsageError` for options that contradict or need each other, and for what no program can be given."""
    refuse_contradictions({**request._asdict(), **run._asdict()})
    if run.tee and run.log_dir is None:
        raise UsageError(
            "--tee shows what is written to log files: name their directory, --log-dir DIR"
        )
    if run.log_size is not None and run.log_dir is None:
        raise UsageError("--log-size limits log files: name their directory, --log-dir DIR")
    check_passable(tuple(request.words[1:]))
    for name, value in request.env:
        if not name:
            raise UsageError(f"the variable of the value {value!r} has no name")
        check_variable(name, value)
    if both := dict(request.env).keys() & set(request.unset):
        raise UsageError(f"--env and --unset both name {', '.join(sorted(both))}: drop one")


def _loading(
    given: Mapping[str, str], program: Program, *, keep: bool
) -> tuple[Mapping[str, str], list[str]]:
    """`given` with those entries of LD_PRELOAD that can be loaded, and a warning for each other."""
    if not given.get(PRELOAD) or sys.platform != "linux":
        return given, []
    from xlaunch.environment.preload import prove_entries, prover_of

    users = prove_entries(given, prover_of(program), keep=keep)
    warnings = [
        f"LD_PRELOAD names {entry}, which cannot be loaded, and does not count: {refusal}"
        for entry, refusal in users.refused
    ]
    return {**given, PRELOAD: users.value} if warnings else given, warnings


def _share_inside(plan: Plan, outside: InheritedVariables) -> int | None:
    """Each instance's memory: an equal part of the machine's, or of the enclosing instance's."""
    if outside.memory_share_bytes is None:
        return plan.memory_share_bytes
    share = outside.memory_share_bytes // plan.count
    return share if plan.memory_share_bytes is None else min(share, plan.memory_share_bytes)


def join_entries(entries: Sequence[ListEntry], given: Mapping[str, str]) -> list[Proposal]:
    """One proposal for each variable, which keeps the user's own entries."""
    joined: dict[str, Proposal] = {}
    for name, entry, reason in entries:
        before = joined.get(name)
        value = given.get(name) if before is None else before.value
        if name == PRELOAD:
            from xlaunch.environment.preload import preload_list

            value = preload_list(value, [entry])
        elif value is None or value.split(os.pathsep)[0] != entry:
            value = f"{entry}{os.pathsep}{value}" if value else entry
        reasons = reason if before is None else f"{before.reason}; {reason}"
        joined[name] = Proposal(name, value, reasons, merged=True)
    return list(joined.values())
