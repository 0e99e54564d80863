# SPDX-License-Identifier: Apache-2.0
"""What can go wrong inside a script that uses xruntime."""

from __future__ import annotations

from xlaunch.errors import XLaunchError


class KernelsUnavailableError(XLaunchError):
    """The native library is absent, cannot be loaded, or is of another version."""
