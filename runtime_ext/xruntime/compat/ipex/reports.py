# SPDX-License-Identifier: Apache-2.0
"""Warnings of arguments that have another effect here, or none: each is given once in a process."""

from __future__ import annotations

import warnings

from xruntime.errors import CompatibilityWarning

_reported: set[str] = set()


def report(said: str, *, stacklevel: int = 2) -> None:
    """Warn of `said`, unless that was done before. `stacklevel` is the caller's, as in warnings.warn."""
    if said not in _reported:
        _reported.add(said)
        warnings.warn(said, CompatibilityWarning, stacklevel=stacklevel + 1)
