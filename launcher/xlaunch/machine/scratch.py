# SPDX-License-Identifier: Apache-2.0
"""A temporary folder for a machine that is unpacked or made up: thousands of small files."""

from __future__ import annotations

import os
import tempfile

MEMORY = "/dev/shm"  # noqa: S108 - the folder made there is new and private
ENOUGH_BYTES = 1 << 28
"""Containers often have 64 MiB there, which a large machine's files can fill."""


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A new folder, in memory where there is room, which is several times as fast as a disk.

    A TMPDIR that the user chose is kept to.
    """
    place = None
    if not os.environ.get("TMPDIR") and os.access(MEMORY, os.W_OK | os.X_OK):
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize >= ENOUGH_BYTES:
            place = MEMORY
    return tempfile.TemporaryDirectory(prefix="xlaunch-machine-", dir=place)
