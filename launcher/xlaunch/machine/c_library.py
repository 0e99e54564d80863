# SPDX-License-Identifier: Apache-2.0
"""The C library of this process."""

from __future__ import annotations

import os


def glibc_version() -> tuple[int, int] | None:
    """The system's glibc version; None with another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
    except (ValueError, OSError, AttributeError):
        return None
    return (int(major), int(minor)) if name == "glibc" else None
