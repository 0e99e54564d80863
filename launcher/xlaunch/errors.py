# SPDX-License-Identifier: Apache-2.0
"""Every error and warning that a user can see, each of one line; an error sets the exit code.

A message says what is wrong, the value, what would be allowed, and what to do.
"""

from __future__ import annotations

import enum


class XLaunchError(Exception):
    """The launcher itself failed. Exit code 125."""

    exit_code = 125


class UsageError(XLaunchError):
    """Bad options or arguments. Nothing was started. Exit code 2."""

    exit_code = 2


class ProgramNotFoundError(XLaunchError):
    """The program to run does not exist. Exit code 127, as in a shell."""

    exit_code = 127


class ProgramNotExecutableError(XLaunchError):
    """The program exists and cannot be run. Exit code 126, as in a shell."""

    exit_code = 126


class WarningKind(enum.Enum):
    """What a warning is about."""

    OTHER = "other"
    SHARED_CPUS = "shared CPUs"
    """Other processes or other virtual machines used the CPUs of the run."""
    UNSEEN_METRIC = "unseen metric"
    """No instance printed a metric."""


class RunWarning(str):
    """A warning's text with its kind."""

    kind: WarningKind

    def __new__(cls, text: str, kind: WarningKind) -> RunWarning:
        warning = super().__new__(cls, text)
        warning.kind = kind
        return warning

    def __getnewargs__(self) -> tuple[str, WarningKind]:  # type: ignore[override]
        """For pickle."""
        return str(self), self.kind


def kind_of(warning: str) -> WarningKind:
    """The kind of an entry of `Report.warnings`."""
    return warning.kind if isinstance(warning, RunWarning) else WarningKind.OTHER
