# SPDX-License-Identifier: Apache-2.0
"""Records of running launches, so that launches on one host see which cores the others have taken.

A record is advisory: it makes a plan prefer cores that are free, and `--exclusive` refuse the others.
Each user's records are in ``/dev/shm/xlaunch-launches-UID``, which everybody may read and nobody else
may write. A record counts while its process runs: /proc has a process of that PID and start time. The
lock of the table is held from reading the records to writing one, never while a program runs.

Containers do not see each other's records: each has its own /dev/shm and PID namespace. The variable
XLAUNCH_RECORDS_DIR names another directory than /dev/shm.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.files import MEMORY, try_lock, write_whole
from xlaunch.machine.cpu_list import format_cpu_list, parse_cpu_list
from xlaunch.machine.processes import (
    TICKS_PER_SECOND,
    pid_namespace,
    read_process,
    start_ticks,
)
from xlaunch.machine.topology import CPUs
from xlaunch.text import printable

DIRECTORY = "xlaunch-launches-{uid}"
LOCK = "xlaunch-launches.lock"
MAX_BYTES = 1 << 16
MAX_LOCK_WAIT_S = 2.0


class Lease(NamedTuple):
    """What a running launch has taken."""

    pid: int
    """The process that ends last: the keeper, or the program that replaced the launcher."""
    start_ticks: int
    """When it started, in clock ticks since boot: with its PID it is one process and no other."""
    uid: int
    cpus: CPUs
    """The CPUs of its instances; empty if they are not bound."""
    program: str
    """The program's name, without its arguments. **Ex.:** ``train.py``."""
    instances: int = 1
    exclusive: bool = False
    job: int = 0
    """The process that started the ranks of its job; 0 if it is none. Ranks do not see each other."""
    log_dir: str = ""
    metric: str = ""
    """The last values of its metrics. **Ex.:** ``"120 images/s"``."""
    gpus: tuple[str, ...] = ()
    """The identities of its instances' own GPUs: PCI addresses, or names where these are unknown."""

    @property
    def uptime_s(self) -> float:
        """Seconds since the launch began."""
        return max(
            0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / TICKS_PER_SECOND
        )

    def __str__(self) -> str:
        cpus = f" on CPUs {format_cpu_list(self.cpus)}" if self.cpus else ""
        gpus = f", GPUs {', '.join(self.gpus)}" if self.gpus else ""
        return f"{self.program} (PID {self.pid}{cpus}{gpus})"


def records_directory() -> str:
    """Where the records of all users are."""
    return os.environ.get("XLAUNCH_RECORDS_DIR") or MEMORY


def read_leases(directory: str | None = None) -> list[Lease]:
    """The records of launches that run on this host now, of all users, the oldest first."""
    found: list[Lease] = []
    directory = directory or records_directory()
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            user = re.fullmatch(DIRECTORY.format(uid=r"(\d+)"), name)
            if user is not None:
                found += _read_directory(os.path.join(directory, name), int(user[1]))
    return sorted(found, key=lambda lease: lease.start_ticks)


def of_others(leases: Iterable[Lease], *, job: int = 0) -> list[Lease]:
    """The leases without this process's own, its ancestors' (a nested launch), and its job's."""
    own = {os.getpid()}
    pid = os.getppid()
    while pid and pid not in own and (status := read_process(pid)) is not None:
        own.add(pid)
        pid = status.parent
    return [it for it in leases if it.pid not in own and not (job and it.job == job)]


def taken_cpus(leases: Iterable[Lease]) -> CPUs:
    """The CPUs of all leases."""
    return tuple(sorted({cpu for lease in leases for cpu in lease.cpus}))


def taken_gpus(leases: Iterable[Lease]) -> frozenset[str]:
    """The identities of the GPUs of all leases."""
    return frozenset([gpu for lease in leases for gpu in lease.gpus])


def sharing(
    leases: Iterable[Lease], cpus: Collection[int], gpus: Collection[str] = ()
) -> list[Lease]:
    """The leases that have some of `cpus` or of `gpus`."""
    members, devices = set(cpus), set(gpus)
    return [
        lease
        for lease in leases
        if not (members.isdisjoint(lease.cpus) and devices.isdisjoint(lease.gpus))
    ]


@contextlib.contextmanager
def table(directory: str | None = None) -> Iterator[bool]:
    """Hold the lock of the records, so that no other launch reads them before this one has added
    its own.

    Yields False if the lock could not be had within `MAX_LOCK_WAIT_S`: then the block runs without.
    """
    try:
        descriptor = _open_lock(os.path.join(directory or records_directory(), LOCK))
    except OSError:
        yield False
        return
    try:
        yield try_lock(descriptor, timeout_s=MAX_LOCK_WAIT_S)
    finally:
        os.close(descriptor)


def record(lease: Lease, directory: str | None = None) -> str | None:
    """Write a record. Return its path, or None if there is no directory for it.

    Records of the user's ended launches are removed. A record needs no removal: see the module.
    """
    place = os.path.join(directory or records_directory(), DIRECTORY.format(uid=lease.uid))
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(place)
            os.chmod(place, 0o755)  # noqa: S103 - to be read by everybody, whatever the umask
        if not _is_owned(place, lease.uid):
            return None
        path = os.path.join(place, f"{lease.pid}-{lease.start_ticks}")
        write_whole(path, _to_text(lease).encode(errors="backslashreplace"), mode=0o600)
        os.chmod(path, 0o644)
        for name in os.listdir(place):
            other = os.path.join(place, name)
            if other != path and _read(other, lease.uid) is None and _is_ended(name):
                os.unlink(other)
    except OSError:
        return None
    return path


def own_lease(cpus: CPUs, program: str, **more: object) -> Lease | None:
    """A lease of this process; None without a /proc that shows it."""
    ticks = start_ticks(os.getpid())
    if ticks is None:
        return None
    return Lease(os.getpid(), ticks, os.geteuid(), cpus, program)._replace(**more)  # type: ignore[arg-type]


def _open_lock(path: str) -> int:
    """Open the lock that all users share: whoever comes first makes it, the others may only read it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644))
        return os.open(path, flags)


def _is_owned(path: str, uid: int) -> bool:
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022


def _read_directory(directory: str, uid: int) -> list[Lease]:
    try:
        if not _is_owned(directory, uid):
            return []
        names = os.listdir(directory)
    except OSError:
        return []
    found = [_read(os.path.join(directory, name), uid) for name in names]
    return [lease for lease in found if lease is not None]


def _read(path: str, uid: int) -> Lease | None:
    """A record whose process runs; None for any other file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            return None
        data = stream.read(MAX_BYTES)
    try:
        lease, namespace = _from_text(data.decode(), uid)
    except (KeyError, ValueError, UsageError):
        return None
    runs = namespace == pid_namespace() and start_ticks(lease.pid) == lease.start_ticks
    return lease if runs else None


def _is_ended(name: str) -> bool:
    """Whether a record's process has ended. Files that are not records are left alone."""
    found = re.fullmatch(r"(\d+)-(\d+)", name)
    return found is not None and start_ticks(int(found[1])) != int(found[2])


def _to_text(lease: Lease) -> str:
    fields = {
        **lease._asdict(),
        "cpus": format_cpu_list(lease.cpus),
        "exclusive": int(lease.exclusive),
        "gpus": " ".join(lease.gpus),
        "pid_namespace": pid_namespace(),
    }
    return "".join([f"{name} {' '.join(str(value).split())}\n" for name, value in fields.items()])


def _from_text(text: str, uid: int) -> tuple[Lease, str]:
    """Raises ValueError or KeyError for a text that is not a record.

    Another user wrote it, perhaps, and terminals must not obey it.
    """
    fields = dict([printable(line).split(" ", 1) for line in text.splitlines()])
    lease = Lease(
        pid=int(fields["pid"]),
        start_ticks=int(fields["start_ticks"]),
        uid=uid,
        cpus=parse_cpu_list(fields["cpus"]) if fields["cpus"] else (),
        program=fields["program"],
        instances=int(fields["instances"]),
        exclusive=fields["exclusive"] == "1",
        job=int(fields["job"]),
        log_dir=fields["log_dir"],
        metric=fields["metric"],
        gpus=tuple(fields["gpus"].split()),
    )
    return lease, fields["pid_namespace"]
