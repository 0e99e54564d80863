# SPDX-License-Identifier: Apache-2.0
"""Running processes in /proc: descendants, state, CPU, usage.

Processes can end at any moment: each reader returns None for one that has ended, or leaves it out.
Without a /proc of this PID namespace no process is found: see `proc_is_ours`.
"""

import functools
import os
from typing import NamedTuple

from xlaunch.files import names_in
from xlaunch.machine.tree import read_file
from xlaunch.text import printable

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class TaskStatus(NamedTuple):
    """A thread, or a process seen as its main thread."""

    state: str
    """**Ex.:** ``R`` runs, ``S`` sleeps, ``T`` is stopped, ``Z`` is a zombie."""
    parent: int
    """0 for a parent outside the PID namespace."""
    group: int
    session: int
    cpu_ticks: int
    """User and system time so far, in `TICKS_PER_SECOND`."""
    children_ticks: int
    """The same for children that it has waited for; 0 for a thread."""
    start_ticks: int
    """When it started, in `TICKS_PER_SECOND` since the machine did."""
    rss_bytes: int
    last_cpu: int
    """The CPU where it runs or last ran."""


def read_status(path: str) -> TaskStatus | None:
    """The `stat` file in a directory such as ``/proc/42`` or ``/proc/42/task/43`` (see proc(5))."""
    text = read_file(f"{path}/stat")
    if text is None:
        return None
    # The name, in parentheses, may contain anything, including parentheses and spaces.
    fields = text[text.rfind(b")") + 2 :].split()
    return TaskStatus(
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        children_ticks=int(fields[13]) + int(fields[14]),
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        last_cpu=int(fields[36]),
    )


@functools.cache
def proc_is_ours() -> bool:
    """Whether /proc shows this process under its own PID.

    It may be missing, or that of another PID namespace, as after ``unshare --pid`` without
    ``--mount-proc``: then /proc/42 is not the process with PID 42.
    """
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def read_process(pid: int) -> TaskStatus | None:
    """The status of a process; None if it has ended, or is not visible."""
    return read_status(f"/proc/{pid}") if proc_is_ours() else None


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks; None if it does not exist or is a zombie."""
    status = read_process(pid)
    return None if status is None or status.state == "Z" else status.start_ticks


def threads(pid: int) -> list[int]:
    """Kernel thread ids of a process; empty when it has ended."""
    return [int(name) for name in names_in(f"/proc/{pid}/task")] if proc_is_ours() else []


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`, zombies included."""
    pids: list[int] = []
    for thread in threads(pid):
        text = read_file(f"/proc/{pid}/task/{thread}/children")
        if text is None:
            if not os.path.exists("/proc/thread-self/children"):
                return _children_by_scan(pid)
            continue
        pids.extend(int(word) for word in text.split())
    return pids


def descendants(pid: int) -> list[int]:
    """Children of `pid`, their children, and so on; parents before their children."""
    pids = children(pid)
    for process in pids:
        pids.extend(children(process))
    return pids


def initial_environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it cannot be read."""
    if not proc_is_ours():
        return {}
    entries = (read_file(f"/proc/{pid}/environ") or b"").split(b"\0")
    pairs = [os.fsdecode(entry).partition("=") for entry in entries]
    return {name: value for name, _, value in pairs if name}


def ancestor_without(variable: str) -> int | None:
    """The nearest ancestor that was started without a variable which this process has.

    **Ex.:** ``LOCAL_RANK``: torchrun, though a shell may be between. Another user's process counts as
    such a one: slurmstepd, which starts the ranks of srun, is root's. None: it cannot be found.
    """
    pid = os.getppid()
    while pid and (status := read_process(pid)) is not None:
        variables = initial_environment(pid)
        if not variables:
            try:
                return pid if os.stat(f"/proc/{pid}").st_uid != os.geteuid() else None
            except OSError:
                return None
        if variable not in variables:
            return pid
        pid = status.parent
    return None


def has_job_control(pid: int) -> bool:
    """Whether a shell would notice that the job of a process is stopped, and could continue it.

    Otherwise its process group is *orphaned* (see setpgid(2)), as for PID 1 of a container or a
    command of `ssh -t`, and the kernel ignores Ctrl-Z for it.
    """
    process = read_process(pid)
    while process is not None and process.parent:
        parent = read_process(process.parent)
        if parent is None:
            return True  # /proc hides it: it is another user's
        if parent.session != process.session:
            return False
        if parent.group != process.group:
            return True
        process = parent
    return False


def migrations(pid: int, thread: int) -> int | None:
    """How often the kernel moved a thread to another CPU; None if the kernel does not count it."""
    text = read_file(f"/proc/{pid}/task/{thread}/sched")
    _, name, count = (text or b"").partition(b"nr_migrations")
    return int(count.split(b"\n", 1)[0].strip(b" :")) if name else None


def _children_by_scan(pid: int) -> list[int]:
    """The children by a scan of all processes, for kernels without CONFIG_PROC_CHILDREN."""
    pids: list[int] = []
    for name in os.listdir("/proc"):
        status = read_status(f"/proc/{name}") if name.isdigit() else None
        if status is not None and status.parent == pid:
            pids.append(int(name))
    return pids


def process_name(pid: int, root: str = "/proc") -> str:
    """The name that a process has given itself, fit for a terminal; empty if it has ended."""
    return printable((read_file(f"{root}/{pid}/comm") or b"").strip().decode(errors="replace"))


def pid_namespace() -> str:
    """The PID namespace of this process. **Ex.:** ``pid:[4026531836]``; empty if it cannot be read."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
