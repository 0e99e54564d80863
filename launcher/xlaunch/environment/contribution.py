# SPDX-License-Identifier: Apache-2.0
"""What each concern of a launch (allocator, threads, caches ...) contributes to its environment, and what it decides by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from xlaunch.cache.use import NOT_KEPT, CacheSettings
from xlaunch.environment.program import Program
from xlaunch.environment.variables import InheritedVariables, Proposal
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import ProgramRequest, RunRequest


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
    outside: InheritedVariables
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
