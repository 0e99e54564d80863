# SPDX-License-Identifier: Apache-2.0
"""A lock that allows one launch at a time on a host, since simultaneous launches distort each other.

It is a lock on a file that all searches of this user on this host share. The kernel releases it when
its holder ends in any way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from xlaunch import files


def runtime_directory(environment: Mapping[str, str]) -> Path:
    """Make the user's private directory for locks on this host. Raises XLaunchError."""
    return Path(files.runtime_directory("xtune", environment))


class HostTurn:
    """A context manager factory for launches; the context excludes other launches on this host."""

    def __init__(self, directory: Path, waiting: Callable[[str], None] | None = None) -> None:
        """`directory`: see `runtime_directory`. `waiting`: called with the holder's name before waiting."""
        self._path = str(directory / "launching.lock")
        self._waiting = waiting

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with files.locked(self._path, waiting=self._report) as descriptor:
            # The last holder's name stays until it is overwritten, so a waiting process reads a name.
            files.write_record(descriptor, f"PID {os.getpid()}".encode())
            yield

    def _report(self, descriptor: int) -> None:
        if self._waiting is not None:
            holder = files.read_record(descriptor).decode(errors="replace")
            self._waiting(holder or "another process")
