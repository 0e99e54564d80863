# SPDX-License-Identifier: Apache-2.0
"""What each concern of a launch (allocator, threads, caches ...) contributes to its environment.

The small ones are here: huge pages (`--thp`), an instance's own GPUs (`--gpus-per-instance`), and what xlaunch
does inside a Python program before the program itself, see ``start_hook/startup/sitecustomize.py``. With the
system's mode `madvise` (most distributions), only memory that requests huge pages gets them. glibc requests
them if a tunable says so, torch if a variable does, jemalloc by its configuration. Writing to /sys/kernel/mm
is left to the administrator.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from xlaunch.cache.use import NOT_KEPT, CacheSettings
from xlaunch.children import PATH
from xlaunch.environment.program import Program, interpreter_flags
from xlaunch.environment.variables import PRELOAD, Inherited, Proposal
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
from xlaunch.machine.topology import Gpu
from xlaunch.machine.tree import read_file
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import LOCAL_RANK_VARIABLES, HugePages, ProgramRequest, RunRequest


class Situation(NamedTuple):
    """What a contributor decides by."""

    plan: Plan
    request: ProgramRequest
    run: RunRequest
    program: Program
    given: Mapping[str, str]
    """The user's own variables, with those of --env as they are written."""
    loading: Mapping[str, str]
    """The same, with those entries of LD_PRELOAD that can be loaded."""
    outside: Inherited
    make_directories: bool = False
    """Create the cache directories that variables name."""
    started: bool = True
    """xlaunch starts the program itself, with the masks of the plan and its start-up hook."""


class ListEntry(NamedTuple):
    """An entry that joins the user's own in LD_PRELOAD, at the end, or PYTHONPATH, at the front."""

    variable: str
    entry: str
    """A path."""
    reason: str


OfInstance = Callable[[Instance, Mapping[str, str]], Sequence[Proposal]]
"""Variables that depend on the instance, and on what it inherits, with its own --env."""


class Contribution(NamedTuple):
    """What one concern adds to the environment."""

    proposals: Sequence[Proposal] = ()
    """The same for all instances."""
    of_instance: OfInstance | None = None
    entries: Sequence[ListEntry] = ()
    warnings: Sequence[str] = ()
    caches: CacheSettings = NOT_KEPT
    allocator_left_alone: str | None = None
    """See `xlaunch.environment.Environment`."""


Contributor = Callable[[Situation], Contribution]
"""Raises `UsageError` for what was asked for and is not available."""


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


SYSTEM_MODE_FILE = "/sys/kernel/mm/transparent_hugepage/enabled"
HUGETLB_SINCE = (2, 35)
"""First version of glibc with glibc.malloc.hugetlb."""


class SystemMode(enum.Enum):
    """What the kernel does about huge pages (Documentation/admin-guide/mm/transhuge.rst)."""

    ALWAYS = "always"
    MADVISE = "madvise"
    NEVER = "never"
    UNKNOWN = "unknown"


def system_mode(path: str = SYSTEM_MODE_FILE) -> SystemMode:
    """The mode in brackets: ``always [madvise] never``."""
    text = (read_file(path) or b"").decode(errors="replace")
    mode = text.partition("[")[2].partition("]")[0]
    return next((it for it in SystemMode if it.value == mode), SystemMode.UNKNOWN)


def glibc_asks(asked: HugePages, mode: SystemMode, glibc: tuple[int, int] | None) -> bool:
    """Whether glibc's malloc should request huge pages."""
    has_tunable = glibc is not None and glibc >= HUGETLB_SINCE
    return asked is HugePages.ALWAYS and mode is SystemMode.MADVISE and has_tunable


def contribute_pages(situation: Situation) -> Contribution:
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


REASON = "--gpus-per-instance: the instance's own GPUs"


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
    settings = [Proposal(variable, value, REASON, merged=True)]
    if variable == CUDA and any(gpu.name.isdecimal() for gpu in gpus):
        reason = f"{CUDA} counts GPUs as nvidia-smi does"
        settings.append(Proposal(CUDA_ORDER, BY_PCI_ADDRESS, reason, merged=True))
    if variable == LEVEL_ZERO and LEVEL_ZERO not in inherited:
        settings += [
            Proposal(LEVEL_ZERO_ORDER, "1", f"{LEVEL_ZERO} counts by PCI address", merged=True),
            Proposal(LEVEL_ZERO_HIERARCHY, "COMPOSITE", f"{LEVEL_ZERO} counts cards, not tiles"),
        ]
    return settings


def contribute_gpus(situation: Situation) -> Contribution:
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
