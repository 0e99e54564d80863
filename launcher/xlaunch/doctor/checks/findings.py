# SPDX-License-Identifier: Apache-2.0
"""What a check reads, and what it finds."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from xlaunch.machine.topology import Machine
from xlaunch.machine.tree import Tree, parse_fields


class Severity(enum.Enum):
    """How much a finding matters; the worst first."""

    SERIOUS = "serious"
    """Work fails, or runs many times slower than it could."""
    WARNING = "warning"
    ADVICE = "advice"
    OK = "ok"


class Finding(NamedTuple):
    """What one check says about the machine."""

    severity: Severity
    found: str
    """One line."""
    why: str = ""
    """Why it matters, with a figure and its source; empty if it is in order."""
    advise: str = ""
    """The remedy: commands to copy, one a line, with words to fill in in capitals; empty if in order."""


ok = partial(Finding, Severity.OK)
advice = partial(Finding, Severity.ADVICE)
warning = partial(Finding, Severity.WARNING)
serious = partial(Finding, Severity.SERIOUS)


class Facts(NamedTuple):
    """What checks read. Nothing is changed by reading it."""

    machine: Machine
    tree: Tree
    live: bool
    """Whether the machine is this one, where system calls apply; False for a captured tree."""
    environment: Mapping[str, str]
    """The variables that a program would inherit; empty for a captured tree."""
    interpreter: str | None = None
    """The program's Python; None if no environment is checked, as for a captured tree."""
    prefix: str | None = None
    """Its environment."""
    imports: tuple[str, ...] = ()
    """Modules to import in a child, to see which OpenMP runtimes come together."""

    @property
    def flags(self) -> frozenset[str]:
        """The features of the first CPU by ``/proc/cpuinfo``, whatever the architecture calls them."""
        fields = parse_fields(self.tree.read_start("/proc/cpuinfo"))
        names = (fields.get(name, "") for name in ("flags", "Features", "features"))
        return frozenset(" ".join(names).split())


class Check(NamedTuple):
    """One question to the machine."""

    name: str
    """**Ex.:** ``cpu-quota``."""
    show: Callable[[Facts], Iterator[Finding]]
    """Yields what was found; nothing where the machine does not show it."""
    available: Callable[[Facts], bool] = lambda facts: True


def is_live(facts: Facts) -> bool:
    """For checks that need the running system."""
    return facts.live


def has_environment(facts: Facts) -> bool:
    """For checks of the program's packages and libraries."""
    return facts.prefix is not None
