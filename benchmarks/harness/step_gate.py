# SPDX-License-Identifier: Apache-2.0
"""The side of the working processes in turns.py; it imports the standard library alone.

    gate = StepGate(directory)
    while True:
        with gate:
            step()

A process ends when the benchmark does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from pathlib import Path
from typing import Self

GATE, FLOOR, ALIVE = "gate", "floor", "alive"
STEP = struct.Struct("=idd")
"""Slot, beginning and end of a step (time.perf_counter, which all processes share)."""


class StepGate:
    """Used by the working processes: a `with` block is one step, which waits for its turn.

    directory
        The benchmark's directory of locks, from the command line.
    slot, slots
        The number of this slot, and how many steps of this process may run at once, one for each
        thread or stream. Each slot has a StepGate of its own.
    """

    def __init__(self, directory: Path, slot: int = 0, slots: int = 1) -> None:
        self._slot = slot
        self._gate, self._floor, self._alive = (
            os.open(directory / name, os.O_RDWR) for name in (GATE, FLOOR, ALIVE)
        )
        steps = directory / f"{os.getpid()}-{slots}.steps"
        self._steps = os.open(steps, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __enter__(self) -> Self:
        # While waiting for the floor it holds the gate, so that no step can begin unnoticed.
        fcntl.flock(self._gate, fcntl.LOCK_SH)
        fcntl.flock(self._floor, fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os._exit(0)  # the benchmark, which held it, is gone
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._steps, STEP.pack(self._slot, self._began, time.perf_counter()))
        fcntl.flock(self._floor, fcntl.LOCK_UN)
