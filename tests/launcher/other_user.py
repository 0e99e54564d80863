# SPDX-License-Identifier: Apache-2.0
"""Run the interpreter and this checkout as a user who may not reach them, such as in root's home."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
OPEN = """
mount -t tmpfs tmpfs "$1"
mkdir "$1/changed" "$1/work"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/changed,workdir=$1/work" "$2"
chmod a+rx "$2"
shift 2
exec "$@"
"""
"""Runs a command for which the private directory $2 is open to every user, such as root's home with the
interpreter in it. $1 is an empty directory. Nothing changes outside of a mount namespace."""


def open_directory() -> Iterator[Path]:
    """A directory that every user can reach, as a container's ``/`` is; pytest's are private."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def opened(place: Path) -> tuple[str, ...]:
    """The start of a command for which every user can reach the interpreter; for root alone."""
    words: tuple[str, ...] = ()
    for number, closed in enumerate(sorted(closed_directories(), reverse=True)):
        empty = place / f"mount-{number}"
        empty.mkdir()
        unshare = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", OPEN, "sh")
        words = (*unshare, str(empty), str(closed), *words)
    return words


def closed_directories() -> set[Path]:
    """The directories that keep other users from the interpreter, packages and this checkout."""
    needed = [Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parent]
    needed += [Path(path) for path in sys.path if os.path.isabs(path) and os.path.isdir(path)]
    above = {directory for path in needed for directory in (path, *path.parents)}
    return {directory for directory in above if not directory.stat().st_mode & stat.S_IXOTH}
