# SPDX-License-Identifier: Apache-2.0
"""Ctrl-Z during a launch: the launch is in a process group of its own, so the terminal stops only xtune."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import TypeVar

from xlaunch.machine.processes import has_job_control

Answer = TypeVar("Answer")


class Suspended(BaseException):
    """Ctrl-Z ended the launch that was being measured; now `suspend` stops this process."""


@contextlib.contextmanager
def suspendable() -> Iterator[None]:
    """Raise `Suspended` at Ctrl-Z (SIGTSTP) during the block, instead of stopping this process.

    Without a shell that could continue it, Ctrl-Z does nothing, as for other programs. Outside the main
    thread, and where the caller handles SIGTSTP, the signal is left alone.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return
    try:
        signal.signal(signal.SIGTSTP, _take)
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _take(number: int, frame: FrameType | None) -> None:
    if has_job_control(os.getpid()):
        raise Suspended


def repeated(
    make: Callable[[], Answer],
    host_lock: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    resumed: Callable[[], None] = lambda: None,
) -> Answer:
    """The result of `make`, called under `host_lock`; called again, after `resumed`, if Ctrl-Z has ended it."""
    while True:
        try:
            with host_lock(), suspendable():
                return make()
        except Suspended:
            suspend()
            resumed()


def suspend() -> None:
    """Stop this process until the shell continues it."""
    os.kill(os.getpid(), signal.SIGSTOP)
