# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the command's tests."""

from __future__ import annotations

from launcher.cli.commands import no_program_starts

__all__ = ["no_program_starts"]
