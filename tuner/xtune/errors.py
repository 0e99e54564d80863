# SPDX-License-Identifier: Apache-2.0
"""Errors of a search: each is one line and has an exit code.

A failure of the workload is not an error but an `Outcome`.
"""

from __future__ import annotations

from xlaunch.errors import UsageError, XLaunchError


class TunerError(XLaunchError):
    """The tuner itself cannot continue. Exit code 125."""


class SpaceError(UsageError, ValueError):
    """Invalid parameters or conditions, or a configuration outside the space."""


class ObjectiveError(UsageError, ValueError):
    """A metric, goal or requirement that cannot be parsed or compared."""


class BudgetError(UsageError, ValueError):
    """A budget that cannot be parsed or is too small."""


class MetricNotSeenError(TunerError):
    """The workload succeeded without printing the metric."""


class StudyError(UsageError):
    """A study that does not exist, or of another machine, command or space."""


class StorageError(TunerError):
    """The storage cannot be reached, read or written."""


class StorageNameError(UsageError, StorageError):
    """A --storage that names nothing in which studies can be stored. Exit code 2."""
