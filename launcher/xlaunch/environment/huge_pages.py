# SPDX-License-Identifier: Apache-2.0
"""Transparent huge pages, requested without changing the system's settings.

With the system's mode `madvise` (most distributions), only memory that requests huge pages gets
them. glibc requests them if a tunable says so, torch if a variable does, jemalloc by its
configuration. Writing to /sys/kernel/mm is left to the administrator.
"""

from __future__ import annotations

import enum

from xlaunch.environment.contribution import Contribution, Situation
from xlaunch.environment.variables import Proposal
from xlaunch.planning.request import HugePages

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
    try:
        with open(path, encoding="ascii") as file:
            text = file.read()
        return SystemMode(text.partition("[")[2].partition("]")[0])
    except (OSError, ValueError):
        return SystemMode.UNKNOWN


def glibc_asks(asked: HugePages, mode: SystemMode, glibc: tuple[int, int] | None) -> bool:
    """Whether glibc's malloc should request huge pages."""
    has_tunable = glibc is not None and glibc >= HUGETLB_SINCE
    return asked is HugePages.ALWAYS and mode is SystemMode.MADVISE and has_tunable


def contribute_pages(situation: Situation) -> Contribution:
    """The variables of `--thp`."""
    asked = situation.request.thp
    warning = page_warning(asked, system_mode())
    return Contribution(page_settings(asked), warnings=() if warning is None else (warning,))


def page_settings(asked: HugePages) -> tuple[Proposal, ...]:
    """Variables that make libraries request huge pages."""
    if asked is not HugePages.ALWAYS:
        return ()
    reason = "--thp always: torch requests huge pages for tensors"
    return (Proposal("THP_MEM_ALLOC_ENABLE", "1", reason, option="--thp always"),)


def page_warning(asked: HugePages, mode: SystemMode) -> str | None:
    """A warning if the system does not allow what was asked; else None."""
    if asked is HugePages.ALWAYS and mode is SystemMode.NEVER:
        return (
            "--thp always has no effect: the system's mode is never; "
            f"the administrator can write madvise to {SYSTEM_MODE_FILE}"
        )
    return None
