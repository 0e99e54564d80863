# SPDX-License-Identifier: Apache-2.0
"""Log files: the instances write them straight, byte for byte."""

from __future__ import annotations

import os

from xlaunch.errors import UsageError

STREAMS = ("out", "err")


def log_path(folder: str, index: int, stream: str) -> str:
    """Where an instance's stream goes. **Ex.:** ``logs/instance-0.out``."""
    return os.path.join(folder, f"instance-{index}.{stream}")


def prepare_log_folder(folder: str) -> None:
    """Make the folder if need be. Raises `UsageError` when files could not be written there."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--log-dir: cannot make the folder {folder!r}: {error.strerror}"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--log-dir: no permission to write in {folder!r}")


def open_logs(folder: str, index: int, *, new: bool = True) -> tuple[int, int]:
    """Open an instance's two files, new; those of an earlier run are kept with `.1` at the end.

    Not new: what is there is added to.
    """
    descriptors = []
    for stream in STREAMS:
        path = log_path(folder, index, stream)
        if new and os.path.exists(path):
            os.replace(path, f"{path}.1")
        descriptors.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666))
    return descriptors[0], descriptors[1]
