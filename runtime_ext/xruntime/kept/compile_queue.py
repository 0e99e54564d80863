# SPDX-License-Identifier: Apache-2.0
"""One thread at a time has code made, and none when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

SILENT_S: Final = 2.0
"""Time after which a wait for the compiler is shown."""

LOOK_EVERY_S: Final = 0.1
"""Interval at which a thread that waits for another process looks whether the program ends."""

CLEAR_LINE: Final = "\r\033[K"


class _CompileQueue:
    """Lets one thread at a time have code made, by one child process."""

    def __init__(self) -> None:
        self.renew()
        atexit.register(self.end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Forget the threads and children of the parent, one of which may hold the lock."""
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._children: set[int] = set()
        self._ending = False
        self._shown = False

    def start(self, make: Callable[[], None]) -> threading.Thread:
        """Run `make` in a thread of its own, see `making`, when no other runs."""

        def run() -> None:
            try:
                with self._lock:
                    if not self._ending:
                        make()
            finally:
                self._threads.discard(thread)

        thread = threading.Thread(target=run, name="xruntime-compile", daemon=True)
        self._threads.add(thread)
        thread.start()
        return thread

    def run(self, make: Callable[[], None], name: str) -> None:
        """Do the same and wait. After two seconds a terminal shows the model's `name` and the time."""
        thread, began = self.start(make), time.monotonic()
        thread.join(SILENT_S)
        while thread.is_alive():
            if sys.stderr is not None and sys.stderr.isatty():
                line = f"xruntime: compiling {name}: {time.monotonic() - began:.0f} s"
                self._shown = True  # first: another thread clears the line that it sees
                print(CLEAR_LINE + line, end="", file=sys.stderr, flush=True)
            thread.join(1.0)
        self.clear_line()

    def clear_line(self) -> None:
        """Remove the line that shows a wait, so that another one can be printed."""
        if self._shown:
            self._shown = False
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def child(self, process: int) -> Iterator[None]:
        """Within the block, this child process compiles; it becomes a process group and ends with the program."""
        with contextlib.suppress(OSError):
            os.setpgid(process, process)  # it does the same; whichever comes first
        self._children.add(process)
        try:
            if self._ending:
                _kill_group(process)
            yield
        finally:
            self._children.discard(process)

    def wait_for_lock(self, descriptor: int) -> None:
        """Lock a file when the process that has locked it releases it. Raises OSError, also if the program ends."""
        import fcntl

        while not self._ending:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOOK_EVERY_S)
            else:
                return
        raise InterruptedError("the program ends")

    def end(self) -> None:
        """End the compilers, whose unfinished libraries are of no use, and wait for the threads.

        Python ends daemon threads wherever they are, which in torch's code aborts the process.
        """
        self._ending = True
        for process in list(self._children):
            _kill_group(process)
        for thread in list(self._threads):
            if thread.is_alive():  # otherwise it could not be started
                thread.join()


def _kill_group(process: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process, signal.SIGKILL)


compile_queue: Final = _CompileQueue()
"""That of this process."""
