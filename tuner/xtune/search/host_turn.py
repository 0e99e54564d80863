# SPDX-License-Identifier: Apache-2.0
"""A lock that allows one launch at a time on a host, since simultaneous launches distort each other.

It is a lock on a file that all searches of this user on this host share. The kernel releases it when
its holder ends in any way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from xtune.errors import TunerError

MEMORY = "/dev/shm"  # noqa: S108 - the directory made there is private, which is checked


def runtime_directory(environment: Mapping[str, str], memory: str = MEMORY) -> Path:
    """Make a private directory of this user on this host, not on a shared file system.

    Raises TunerError if that is not possible.
    """
    given = environment.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given) and os.access(given, os.W_OK | os.X_OK):
        directory = Path(given, "xtune")
    else:
        directory = Path(memory, f"xtune-{os.geteuid()}")
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise TunerError(
            f"no directory for locks: {directory}: {error.strerror}; set XDG_RUNTIME_DIR to a private"
            " directory of this host"
        ) from error
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not private or status.st_mode & 0o077:
        raise TunerError(
            f"{directory} is not a private directory of yours; remove it, or set XDG_RUNTIME_DIR"
        )
    return directory


class HostTurn:
    """A context manager factory for launches; the context excludes other launches on this host."""

    def __init__(self, directory: Path, waiting: Callable[[str], None] | None = None) -> None:
        """`directory`: see `runtime_directory`. `waiting`: called with the holder's name before waiting."""
        self._path = directory / "launching.lock"
        self._waiting = waiting

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(descriptor)
            # The last holder's name stays until it is overwritten, so a waiting process reads a name.
            name = f"PID {os.getpid()}".encode()
            os.pwrite(descriptor, name, 0)
            os.truncate(descriptor, len(name))
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if self._waiting is not None:
                holder = os.pread(descriptor, 100, 0).decode(errors="replace")
                self._waiting(holder or "another process")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
