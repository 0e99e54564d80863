# SPDX-License-Identifier: Apache-2.0
"""File systems, from the table of mounts of proc_pid_mountinfo(5)."""

from __future__ import annotations

import os

from xlaunch.machine.tree import Tree


def file_system_of(tree: Tree, path: str) -> str:
    """The type of the file system of an existing or future path; empty if unknown."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in (tree.read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        words = left.split()
        point = words[4].replace("\\040", " ") if len(words) > 4 else ""
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # Later mounts hide earlier ones.
        if point and inside and len(point) >= len(best):
            best, kind = point, right.partition(" ")[0]
    return kind
