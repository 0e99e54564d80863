# SPDX-License-Identifier: Apache-2.0
"""Warnings of a run: text, with a kind for programs that treat some of them differently."""

from __future__ import annotations

import enum


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
