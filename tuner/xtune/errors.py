# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in a search, each one line, each with the exit code it ends the command with.

What a workload does under a setting is never an error: it is an `Outcome`.
"""

from __future__ import annotations

from xlaunch.errors import UsageError, XLaunchError


class TunerError(XLaunchError):
    """The tuner itself cannot go on. Exit code 125."""


class SpaceError(UsageError, ValueError):
    """Parameters or conditions that make no space to search, or a configuration outside of it."""


class ObjectiveError(UsageError, ValueError):
    """A metric, goal or requirement that cannot be read, or that nothing can be compared by."""


class BudgetError(UsageError, ValueError):
    """A budget that cannot be read, or that is too small for anything to be learnt."""


class MetricNotSeenError(TunerError):
    """The workload ran well and printed nothing that is to be measured."""


class StudyError(UsageError):
    """A study of another machine, command or space, or one that is not there."""


class StorageError(TunerError):
    """Where results are kept cannot be reached, read or written."""
