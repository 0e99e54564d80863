# SPDX-License-Identifier: Apache-2.0
"""Ask a supervised run through its socket: its state, or to restart its instances.

A request is one word and a newline; the answer is one JSON object, and the end of the connection.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xlaunch.errors import XLaunchError

STATE, RESTART = "state", "restart"
TIMEOUT_S = 5.0


def ask(path: str, word: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The answer of the run whose socket is at `path`. Raises `XLaunchError`.

    `word`: `STATE` or `RESTART`. `timeout_s`: longest wait for each part of the answer.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection, short_name(path) as name:
            connection.settimeout(timeout_s)
            connection.connect(name)
            connection.sendall(f"{word}\n".encode())
            data = b""
            while more := connection.recv(1 << 16):
                data += more
        answer: dict[str, Any] = json.loads(data)
    except (OSError, ValueError) as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else error
        raise XLaunchError(f"the run does not answer at {path}: {why}") from None
    if "error" in answer:
        raise XLaunchError(answer["error"])
    return answer


@contextmanager
def short_name(path: str) -> Iterator[str]:
    """A name of `path` that fits into the 108 bytes of a socket's address. Raises OSError."""
    directory, name = os.path.split(path)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
