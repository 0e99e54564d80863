# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all: written beside their place, then moved there."""

from __future__ import annotations

import contextlib
import os
import re

from xlaunch.errors import UsageError


def write_whole(path: str, data: bytes, *, mode: int = 0o666) -> None:
    """Write a regular file, or replace one. Raises OSError, and then leaves nothing behind.

    A link is followed. The umask applies to `mode`.
    """
    directory, name = os.path.split(os.path.realpath(path))
    temporary = os.path.join(directory, f".{name[:200]}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
        os.replace(temporary, os.path.join(directory, name))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


BINARY = getattr(os, "O_BINARY", 0)
"""Windows alone has a text mode."""


def write_output(path: str, text: str, *, option: str = "") -> None:
    """Write a text file that an option names, whole. Raises `UsageError`, which names `option`."""
    what = f"{option} {path!r}".strip()
    try:
        write_whole(path, text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} cannot be written: a value in it is not UTF-8") from None
    except OSError as error:
        raise UsageError(f"{what} cannot be written: {error.strerror}") from None


def is_special_file(path: str) -> bool:
    """Whether `path` is a pipe, a terminal, or a name such as /dev/stdout: nothing to be replaced."""
    if os.path.exists(path) and not os.path.isfile(path):
        return True
    directory, name = os.path.split(path)
    try:
        place = os.path.join(os.path.realpath(directory), name)
    except OSError:  # relative to a working directory that was removed
        return False
    return re.fullmatch("/dev/std(out|err)|/proc/[0-9]+/fd/[0-9]+", place) is not None
