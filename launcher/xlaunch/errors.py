# SPDX-License-Identifier: Apache-2.0
"""Every error that a user can see. Each is one line, and sets the exit code of the command.

A message says what is wrong, the value, what would be allowed, and what to do.
"""

from __future__ import annotations


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
