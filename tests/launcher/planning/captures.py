# SPDX-License-Identifier: Apache-2.0
"""Captured machines of other people, kept beside the project and never copied into it."""

from __future__ import annotations

import functools
import tarfile
import tempfile
from pathlib import Path

from xlaunch.machine import read_machine
from xlaunch.machine.topology import Machine

CAPTURES = Path(__file__).parents[4] / "shared" / "topologies"
"""``NAME.tar.xz`` each; may be absent."""
MEMORY = Path("/dev/shm")
"""Thousands of small files are unpacked ten times as fast there."""


def capture_names() -> list[str]:
    """The names of all captures, sorted; none where the folder is absent."""
    return sorted(path.name.removesuffix(".tar.xz") for path in CAPTURES.glob("*.tar.xz"))


@functools.cache
def read_capture(name: str) -> Machine:
    """The captured machine of that name; its root is no folder any more."""
    folder = MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=folder) as root,
        tarfile.open(CAPTURES / f"{name}.tar.xz") as tar,
    ):
        tar.extractall(root, filter="tar")
        return read_machine(root)._replace(root=name)
