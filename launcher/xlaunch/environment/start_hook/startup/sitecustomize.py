# SPDX-License-Identifier: Apache-2.0
"""What xlaunch does inside a Python program before the program itself.

**Thread counts that child processes do not inherit.** The program's libraries read OMP_NUM_THREADS when they
are loaded or first used, by C's getenv. joblib, scikit-learn, Dask, Ray, Lightning and torchrun's function look
into os.environ, and give each of their workers a share only if it has no such variable. So the variable stays
in C's environment and leaves os.environ, and it is taken out of C's, too, while a child process is started.
The same keeps an allocator out of Dask's workers: what it holds back would count against their memory limit.

**The end of a rank.** A thread of gloo's drops a collective only after the program has its result, and needs
the GIL for that if a backward pass started the collective: it holds a Python object. Python before 3.14 ends a
thread that waits for the GIL of an interpreter at its end, which in torch's code aborts the process. So gloo's
threads finish before Python does.

Python's module `site` imports this, because xlaunch put this directory first on PYTHONPATH. It removes
that entry and imports the sitecustomize that this one hides.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing would be imported by every program
    from collections.abc import Callable
    from typing import Any

PATH = "PYTHONPATH"
NOT_INHERITED = "XLAUNCH_NOT_INHERITED"
NOT_FOR_DASK = "XLAUNCH_NOT_FOR_DASK"
DASK = "distributed"
"""The module of Dask that starts workers."""
HIDDEN: dict[str, str] = {}
"""Variables in C's environment that os.environ does not have, unless the program has set them since."""
REPLACED: dict[str, tuple[str, str]] = {}
"""Variables whose value Dask's workers do not get, with the user's own; empty: none."""
TASKS = "/proc/self/task"
THREAD = b"pt_gloo_runloop\n"
"""The name of the threads that run gloo's collectives."""
INTERVAL_S = 0.001
MAX_WAIT_S = 1.0
"""A collective that takes longer is one that the program did not wait for."""


def hide(names: list[str], not_for_dask: list[str]) -> None:
    """Take variables out of os.environ and of what child processes inherit, and others out of Dask's workers.

    `not_for_dask`: ``NAME=VALUE`` with the user's own value.
    """
    for name in names:
        value = os.environ.pop(name, None)
        if value is not None:
            os.putenv(name, value)
            HIDDEN[name] = value
    for entry in not_for_dask:
        name, _, own = entry.partition("=")
        if name in os.environ:
            REPLACED[name] = (os.environ[name], own)
    if not HIDDEN and not REPLACED:
        return
    # Only these pass C's environment on. A fork shares it, which does no harm: its os.environ lacks them.
    os.execv = _with_childrens_environment(os.execv)
    os.system = _with_childrens_environment(os.system)
    # Without an environment, which subprocess leaves out since Python 3.13, they take C's.
    os.posix_spawn = _with_childrens_environment(os.posix_spawn)
    os.posix_spawnp = _with_childrens_environment(os.posix_spawnp)
    os.register_at_fork(after_in_child=_starting.renew)
    try:
        import _posixsubprocess
    except ImportError:
        return
    fork_exec = _with_childrens_environment(_posixsubprocess.fork_exec)
    _posixsubprocess.fork_exec = fork_exec
    if "subprocess" in sys.modules:  # a .pth file may have imported it
        vars(sys.modules["subprocess"])["_fork_exec"] = fork_exec


class _Starting:
    """The threads that are starting a process."""

    def __init__(self) -> None:
        self.count = 0
        self.renew()

    def renew(self) -> None:
        """In a forked child, whose lock another thread may have held."""
        self.lock = _thread.RLock()  # a signal handler may start a process, too


_starting = _Starting()


def _with_childrens_environment(start: Callable[..., Any]) -> Callable[..., Any]:
    """The function, under which C's environment is that of child processes."""

    def start_process(*arguments: Any, **named: Any) -> Any:
        with _starting.lock:
            _starting.count += 1
            _change_environment(to_childrens=True)
        try:
            return start(*arguments, **named)
        finally:
            with _starting.lock:
                _starting.count -= 1
                if _starting.count == 0:
                    _change_environment(to_childrens=False)

    return start_process


def _change_environment(*, to_childrens: bool) -> None:
    """Change C's environment, but for what the program has set itself."""
    changes = {name: (value, "") for name, value in HIDDEN.items() if name not in os.environ}
    if DASK in sys.modules:
        changes.update({n: it for n, it in REPLACED.items() if os.environ.get(n) == it[0]})
    for name, (value, own) in changes.items():
        wanted = own if to_childrens else value
        if wanted:
            os.putenv(name, wanted)
        else:
            os.unsetenv(name)


def wait_for_gloo() -> None:
    """Wait without the GIL until gloo's threads sleep, and have not run since the last look."""
    if "torch" not in sys.modules:
        return
    threads = [task for task in _names(TASKS) if _read(f"{TASKS}/{task}/comm") == THREAD]
    before = None
    deadline = time.monotonic() + MAX_WAIT_S
    while threads and time.monotonic() < deadline:
        time.sleep(INTERVAL_S)
        now = [_activity(task) for task in threads]
        if now == before and all(b"State:\tS" in activity for activity in now if activity):
            return
        before = now


def _activity(task: str) -> bytes:
    """State and numbers of context switches of a thread, as the kernel shows them; nothing if it has ended."""
    lines = _read(f"{TASKS}/{task}/status").splitlines()
    return b" ".join(
        [line for line in lines if line.startswith(b"State:") or b"ctxt_switches:" in line]
    )


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _read(path: str) -> bytes:
    """The content of a file; nothing if the thread has ended."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _remove_traces() -> None:
    """A program that starts ranks has the entry with a slash at its end, and passes it on to them."""
    here = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry.rstrip("/") != here]
    sys.path_importer_cache.pop(here, None)
    first, _, others = os.environ.get(PATH, "").partition(os.pathsep)
    passed_on = first.endswith("/") and "LOCAL_RANK" not in os.environ
    if first.rstrip("/") == here and not passed_on:
        os.environ[PATH] = others
        if not others:
            del os.environ[PATH]


if __name__ == "sitecustomize":
    _remove_traces()
    hide(os.environ.pop(NOT_INHERITED, "").split(), os.environ.pop(NOT_FOR_DASK, "").split(";"))
    if sys.version_info < (3, 14):
        # Registered first, it is called last: after the program's own functions.
        atexit.register(wait_for_gloo)
    # The one that Python would have found. If there is none, the error says so to `site`, which expects it.
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")
