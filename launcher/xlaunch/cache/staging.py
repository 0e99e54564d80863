# SPDX-License-Identifier: Apache-2.0
"""Staging directories: removed when a signal ends their process, and by later ones after a SIGKILL."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from xlaunch.cache.store import (
    COUNTERS,
    DAY_S,
    IMPORTING,
    PARTIAL,
    REMOVING,
    SEEDING,
    open_below,
    remove_below,
    stored,
)
from xlaunch.cache.table import BY_NAME
from xlaunch.files import try_lock

OUTSIDE_CACHES = (IMPORTING, SEEDING, REMOVING, COUNTERS)
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


class Interruption(BaseException):
    """A signal came in a part that it may interrupt."""


class HeldSignals:
    """Signals that would end this process in the block end it after the block.

    Outside the main thread, where Python handles no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._received: int | None = None
        self._interruptible = False

    def __enter__(self) -> HeldSignals:
        for number in [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]:
            # Ignored as under nohup, or handled by other than Python code.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                with contextlib.suppress(ValueError):  # not in the main thread
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._received is not None:
            signal.raise_signal(self._received)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """The first signal ends this part of the block by `Interruption`."""
        self._interruptible = True
        try:
            if self._received is not None:
                raise Interruption
            yield
        finally:
            self._interruptible = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received = number
            if self._interruptible:
                raise Interruption


@contextlib.contextmanager
def staging_directory(base: str) -> Iterator[tuple[str, HeldSignals]]:
    """An empty private directory below `base` for the block, which holds signals back. Raises OSError."""
    with _abandoned(base, timeout_s=math.inf) as abandoned, HeldSignals() as signals:
        for path in abandoned:
            remove_below(base, path)
        path = os.path.join(base, IMPORTING + os.urandom(8).hex())
        try:
            os.mkdir(path, 0o700)
            yield path, signals
        finally:
            remove_below(base, path)


def leftovers(base: str) -> list[str]:
    """Abandoned staging directories."""
    with contextlib.suppress(OSError), _abandoned(base) as abandoned:
        return abandoned
    return []


def remove_leftovers(base: str) -> None:
    """Remove abandoned staging directories."""
    with contextlib.suppress(OSError), _abandoned(base) as abandoned:
        for path in abandoned:
            remove_below(base, path)


@contextlib.contextmanager
def _abandoned(base: str, *, timeout_s: float = 0.0) -> Iterator[list[str]]:
    """The paths of abandoned directories. Raises OSError.

    Nothing was added to them for a day, and the process whose PID the name contains has ended.
    `base` is locked against imports during the block, unless one takes longer than `timeout_s`.
    """
    with open_below(base) as lock:
        alone = try_lock(lock, timeout_s=timeout_s)
        abandoned = []
        places: list[tuple[list[str], tuple[str, ...]]] = [([], OUTSIDE_CACHES)]
        places += [([name], OUTSIDE_CACHES) for name in BY_NAME]
        places += [([directory.cache, directory.key], (PARTIAL,)) for directory in stored(base)]
        for above, prefixes in places:
            with (
                contextlib.suppress(OSError),
                open_below(base, *above) as descriptor,
                os.scandir(descriptor) as entries,
            ):
                for entry in entries:
                    if not entry.name.startswith(prefixes) or not entry.is_dir(
                        follow_symlinks=False
                    ):
                        continue
                    number = (
                        entry.name.removeprefix(COUNTERS).removeprefix(PARTIAL).partition("-")[0]
                    )
                    running = number.isdecimal() and os.path.exists(f"/proc/{number}")
                    old = time.time() - entry.stat(follow_symlinks=False).st_mtime > DAY_S
                    if (old and not running) or (alone and entry.name.startswith(IMPORTING)):
                        abandoned.append(os.path.join(base, *above, entry.name))
        yield abandoned
