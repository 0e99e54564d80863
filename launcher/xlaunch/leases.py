# SPDX-License-Identifier: Apache-2.0
"""Records of running launches, so that launches on one host see which cores the others have taken.

A record is advisory: it makes a plan prefer cores that are free, and `--exclusive` refuse the others.
Each user's records are in a directory of their own, ``/dev/shm/xlaunch-launches-UID``, which everybody
may read and nobody else may write. Everybody may read which process has which cores; a second file,
only for its user, says what the launch runs. `claims` writes both.

A record counts while its process runs: /proc has a process of that PID and start time, or the process
holds the fcntl lock of the file, which its children do not inherit and which is kept by exec. Only the
lock can be seen from another PID namespace. A record that has none counts there until the next boot.

What other users write costs a limited time: few files are read of each user, none is large, and they
may name only CPUs that this machine has.

Containers do not see each other's records: each has its own /dev/shm. The variable
XLAUNCH_RECORDS_DIR names another directory than /dev/shm.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.files import MEMORY, names_in
from xlaunch.machine.processes import (
    TICKS_PER_SECOND,
    pid_namespace,
    process_name,
    read_process,
    start_ticks,
)
from xlaunch.machine.topology import CPUs
from xlaunch.machine.tree import read_file
from xlaunch.ownership import user_name
from xlaunch.text import INSTANCE_PREFIX, format_cpu_list, parse_cpu_list, printable

DIRECTORY = "xlaunch-launches-{uid}"
DETAILS = ".details"
"""The end of the name of the file that only its user reads."""
RECORD_NAME = re.compile(r"[1-9]\d{0,6}-\d{1,20}-\d{1,20}", re.ASCII)
"""PID, start time, number of the PID namespace. No PID has more than seven digits."""

MAX_BYTES = 1 << 14
"""Of a file that only its user reads."""
MAX_RECORD_BYTES, MAX_BYTES_OF_CPU = 1 << 11, 4
"""Of a record, and as much more for each CPU of the machine, all of which it may list."""
MAX_NAMES = 1 << 11
"""Names that are looked at in a directory."""
MAX_DIRECTORIES_OF_USER = 4
MAX_OWN_RECORDS = 256
"""Records of this user beside one for each CPU of the machine."""
MAX_RECORDS_OF_USER = 64
"""The same of one other user, so that none crowds out the others."""
MAX_RECORDS = 2048
"""Records of all other users together."""
MAX_CPUS = 1 << 13
"""CPUs of a machine that does not say how many it may have."""

_DIRECTORY_NAME = re.compile(DIRECTORY.format(uid=r"\d{1,10}(-[0-9a-f]{8})?"), re.ASCII)
_POSSIBLE_CPUS = "/sys/devices/system/cpu/possible"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


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
    """The program's name, without its arguments. **Ex.:** ``train.py``. Of another user's launch it is
    the name of the process, if that can be read, else empty."""
    instances: int = 1
    """0 if it is not known: of another user's launch."""
    exclusive: bool = False
    job: int = 0
    """The process that started the ranks of its job; 0 if it is none. Ranks do not see each other."""
    log_dir: str = ""
    socket: str = ""
    """The socket that answers for the run, if it is supervised; see `report.run_client`."""
    metric: str = ""
    """The last values of its metrics. **Ex.:** ``"120 images/s"``."""
    gpus: tuple[str, ...] = ()
    """The identities of its instances' own GPUs: PCI addresses, or names where these are unknown."""
    claimed_ns: int = 0
    """When it asked for the CPUs, in nanoseconds since the epoch; 0 once it has them."""
    path: str = ""
    """The file of its record."""
    is_local: bool = True
    """False if it runs in another PID namespace, where `pid` and `job` mean other processes."""

    @property
    def uptime_s(self) -> float:
        """Seconds since the launch began."""
        return max(
            0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / TICKS_PER_SECOND
        )

    def precedes(self, other: Lease) -> bool:
        """Whether it keeps CPUs that both claim. The two launches agree on which one does."""
        own, others = os.path.basename(self.path), os.path.basename(other.path)
        return (self.claimed_ns, own) < (other.claimed_ns, others)

    def takes_as(self, other: Lease) -> bool:
        """Whether it is the same launch, with the same CPUs and GPUs."""
        return (self.path, self.cpus, self.gpus) == (other.path, other.cpus, other.gpus)

    def __str__(self) -> str:
        owner = "" if self.uid == os.geteuid() else f" of {user_name(self.uid)}"
        elsewhere = "" if self.is_local else " in another PID namespace"
        cpus = f" on CPUs {format_cpu_list(self.cpus)}" if self.cpus else ""
        gpus = f", GPUs {', '.join(self.gpus)}" if self.gpus else ""
        record = "" if self.is_local else f"; its record is {self.path}"
        where = f"PID {self.pid}{owner}{elsewhere}{cpus}{gpus}{record}"
        return f"{self.program or 'a launch'} ({where})"


def records_directory() -> str:
    """Where the records of all users are."""
    return os.environ.get("XLAUNCH_RECORDS_DIR") or MEMORY


def read_leases(directory: str | None = None, *, cpu_count: int | None = None) -> list[Lease]:
    """The records of launches that run on this host now, the oldest first.

    Of all users, but not that of this process. Records with CPUs from `cpu_count` upwards are left
    out; None: the number that this machine may have.
    """
    running = LeaseReader(cpu_count).read(directory or records_directory())
    return sorted(running, key=lambda lease: lease.start_ticks)


def of_others(
    leases: Iterable[Lease], *, job: int = 0, environment: Mapping[str, str] | None = None
) -> list[Lease]:
    """The leases without this process's own, its ancestors' (a nested launch), and its job's.

    `environment`: a launch of another PID namespace with the CPUs in XLAUNCH_INSTANCE_CPUS is an ancestor.
    """
    leases = list(leases)
    if not leases:
        return []
    own = {os.getpid()}
    pid = os.getppid()
    while pid and pid not in own and (status := read_process(pid)) is not None:
        own.add(pid)
        pid = status.parent
    inherited: set[int] = set()
    with contextlib.suppress(UsageError):
        cpus = (environment or {}).get(f"{INSTANCE_PREFIX}CPUS", "")
        inherited.update(parse_cpu_list(cpus, below=MAX_CPUS))

    def is_own(lease: Lease) -> bool:
        if not lease.is_local:
            return bool(inherited) and inherited.issubset(lease.cpus)
        return lease.pid in own or bool(job and lease.job == job)

    return [lease for lease in leases if not is_own(lease)]


def taken_cpus(leases: Iterable[Lease]) -> CPUs:
    return tuple(sorted({cpu for lease in leases for cpu in lease.cpus}))


def taken_gpus(leases: Iterable[Lease]) -> frozenset[str]:
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


def described(lease: Lease) -> Lease:
    """The lease with the program, log directory and metrics from its file of details.

    Of another user's launch the program is the process's name. What others wrote is made printable.
    """
    lease = lease._replace(gpus=tuple(map(printable, lease.gpus)))
    if lease.uid != os.geteuid() and os.geteuid() != 0:
        return lease._replace(program=process_name(lease.pid) if lease.is_local else "")
    try:
        with _opened(lease.path + DETAILS, lease.uid) as descriptor:
            fields = _read_fields(descriptor, MAX_BYTES)
        return lease._replace(
            program=printable(fields["program"]),
            instances=int(fields["instances"]),
            log_dir=printable(fields["log_dir"]),
            metric=printable(fields["metric"]),
            socket=fields.get("socket", ""),
        )
    except (OSError, KeyError, ValueError):
        return lease


def record_name(pid: int, ticks: int, namespace: str) -> str:
    """The name of a record. `namespace` as `pid_namespace` returns it."""
    return f"{pid}-{ticks}-{namespace.strip('pid:[]') or 0}"


def is_of_one_user(status: os.stat_result) -> bool:
    """Whether it is a directory that only its owner may write."""
    return stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022


def boot_id() -> str:
    """What differs after each boot of the machine; empty if it cannot be read."""
    return (read_file(_BOOT_ID) or b"").decode().strip()


class LeaseReader:
    """Reads records in a limited time."""

    def __init__(self, cpu_count: int | None = None) -> None:
        self._cpu_count = cpu_count or _possible_cpus()
        self._namespace = pid_namespace()
        self._boot = boot_id()
        self.own_name = record_name(os.getpid(), start_ticks(os.getpid()) or 0, self._namespace)
        """This process's record is not opened: to close it would release its lock."""

    def read(self, parent: str) -> Iterator[Lease]:
        """The records of running launches in all directories for them in `parent`."""
        directories: Counter[int] = Counter()
        records: Counter[int] = Counter()
        for name in names_of_directories(parent):
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                uid = status.st_uid
                directories[uid] += 1
                if not is_of_one_user(status) or directories[uid] > MAX_DIRECTORIES_OF_USER:
                    continue
                room = MAX_OWN_RECORDS
                if uid != os.geteuid():
                    room = min(MAX_RECORDS_OF_USER, MAX_RECORDS - records.total())
                room += self._cpu_count - records[uid]
                with _opened(path, uid, flags=os.O_DIRECTORY) as place:
                    names = _record_names(place)[: max(0, room)]
                    records[uid] += len(names) if uid != os.geteuid() else 0
                    for record in names:
                        if lease := self._read_running(record, place, path, uid):
                            yield lease

    def has_ended(self, path: str) -> bool:
        """Whether a launch of this user has surely ended, by its record or, without one, by its name."""
        name = os.path.basename(path)
        with (
            contextlib.suppress(OSError, ValueError, KeyError),
            _opened(path, os.geteuid()) as descriptor,
        ):
            fields = _read_fields(descriptor, MAX_BYTES)
            return not (self._runs(fields, descriptor) or _is_locked(descriptor))
        pid, ticks, _ = name.split("-")
        is_local = name == record_name(int(pid), int(ticks), self._namespace)
        return is_local and start_ticks(int(pid)) != int(ticks)

    def _read_running(self, name: str, place: int, directory: str, uid: int) -> Lease | None:
        """The launch of a record if it runs; None for any other file."""
        if name == self.own_name:
            return None
        try:
            with _opened(name, uid, place=place) as descriptor:
                path = os.path.join(directory, name)
                lease, fields = _parse(descriptor, path, uid, self._cpu_count)
                is_running = self._runs(fields, descriptor)
        except (OSError, ValueError, KeyError, UsageError):
            return None
        is_local = fields["pid_namespace"] == self._namespace
        return lease._replace(is_local=is_local) if is_running else None

    def _runs(self, fields: Mapping[str, str], descriptor: int) -> bool:
        # A container's /proc may hide the boot ID.
        if fields["boot"] and self._boot and fields["boot"] != self._boot:
            return False
        has_lock = fields["locked"] == "1"
        if has_lock and _is_locked(descriptor):
            return True
        if fields["pid_namespace"] != self._namespace:
            return not has_lock
        return start_ticks(int(fields["pid"])) == int(fields["start_ticks"])


def _parse(descriptor: int, path: str, uid: int, cpu_count: int) -> tuple[Lease, dict[str, str]]:
    """The lease of a record, and its fields. Raises OSError, ValueError, KeyError or `UsageError`."""
    fields = _read_fields(descriptor, MAX_RECORD_BYTES + MAX_BYTES_OF_CPU * cpu_count)
    if fields["cpus"].count(",") >= cpu_count:
        raise ValueError("more parts than CPUs")
    lease = Lease(
        pid=int(fields["pid"]),
        start_ticks=int(fields["start_ticks"]),
        uid=uid,
        cpus=parse_cpu_list(fields["cpus"], below=cpu_count),
        program="",
        instances=0,
        exclusive=fields["exclusive"] == "1",
        job=int(fields["job"]),
        gpus=tuple(fields["gpus"].split()),
        claimed_ns=0 if fields["settled"] == "1" else int(fields["claimed_ns"]),
        path=path,
    )
    name = record_name(lease.pid, lease.start_ticks, fields["pid_namespace"])
    if os.path.basename(path) != name:
        raise ValueError(f"the record of {name} has another name")
    return lease, fields


def _read_fields(descriptor: int, max_bytes: int) -> dict[str, str]:
    """Raises OSError, and ValueError for a text that is too long or has other lines."""
    data = os.pread(descriptor, max_bytes + 1, 0)
    if len(data) > max_bytes:
        raise ValueError("too large")
    return dict([line.split(" ", 1) for line in data.decode().splitlines()])


@contextlib.contextmanager
def _opened(path: str, uid: int, *, place: int | None = None, flags: int = 0) -> Iterator[int]:
    """Open a regular file or directory of `uid`, never following a link nor waiting. Raises OSError."""
    descriptor = os.open(path, _OPEN | flags, dir_fd=place)
    try:
        status = os.fstat(descriptor)
        is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if not is_plain or status.st_uid != uid:
            raise OSError(errno.EINVAL, "is not a file or directory of its user", path)
        yield descriptor
    finally:
        os.close(descriptor)


def _record_names(place: int) -> list[str]:
    """The names of records in an open directory."""
    with os.scandir(place) as entries:
        return [
            entry.name
            for entry in itertools.islice(entries, MAX_NAMES)
            if RECORD_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        ]


def _is_locked(descriptor: int) -> bool:
    """Whether a process other than this one holds the fcntl lock of a file."""
    import fcntl

    query = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, query)
    except OSError:
        return False
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def names_of_directories(parent: str) -> list[str]:
    """The names in `parent` that directories of records may have."""
    names: list[str] = []
    is_whole = not os.path.exists(parent)
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        names = [entry.name for entry in itertools.islice(entries, MAX_NAMES)]
        is_whole = len(names) < MAX_NAMES
    directories = [name for name in names if _DIRECTORY_NAME.fullmatch(name)]
    if is_whole:
        return directories
    # It may not be listed, or somebody fills it: try those of the users whose processes can be seen.
    users = {os.geteuid()}
    for pid in names_in("/proc"):
        if pid.isdigit():
            with contextlib.suppress(OSError):
                users.add(os.stat(f"/proc/{pid}").st_uid)
    return list(dict.fromkeys([*[DIRECTORY.format(uid=uid) for uid in users], *directories]))


def _possible_cpus() -> int:
    """How many CPUs this machine may have: one more than the highest number."""
    text = (read_file(_POSSIBLE_CPUS) or b"").decode()
    highest = re.split("[-,]", text.strip())[-1]
    return min(int(highest) + 1, MAX_CPUS) if highest.isdigit() else MAX_CPUS
