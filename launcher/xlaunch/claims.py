# SPDX-License-Identifier: Apache-2.0
"""Write the record of a launch: claim cores, look who else has, and settle or withdraw.

No lock orders the launches, because a lock that all users can open, any user can hold for ever. A
launch writes its record as a claim, and then reads all others. It withdraws where another launch has
settled on some of its cores, or claimed some of them first (`Lease.precedes`). Where another claim
comes later, that launch has either seen this claim, and withdraws, or has not, and settles: this one
waits until it has done either.

Each of two launches writes before it reads, so at least one sees the other, and they never both
settle on a core. The first of several claims is withdrawn only for a launch that has settled, so one
of them always gets the core.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Mapping

from xlaunch.files import move_above_shells, write_whole
from xlaunch.leases import (
    DETAILS,
    DIRECTORY,
    RECORD_NAME,
    Lease,
    LeaseReader,
    boot_id,
    is_of_one_user,
    names_of_directories,
    record_name,
    records_directory,
)
from xlaunch.machine.processes import pid_namespace, start_ticks
from xlaunch.machine.topology import CPUs
from xlaunch.text import format_cpu_list

MAX_CHECKED_FILES = 512
"""Files of this user for which a launch checks whether they can be removed."""

_CLAIMED, _SETTLED = "settled 0\n", "settled 1\n"
_OWN_FILE = re.compile(
    rf"\.?(?P<record>{RECORD_NAME.pattern})({re.escape(DETAILS)})?(\.[0-9a-f]+)?"
)

_records: dict[str, int] = {}
"""The records of this process, and descriptors that hold their locks.

A process loses its lock of a file when it closes any descriptor of that file.
"""


def own_lease(cpus: CPUs, program: str, **more: object) -> Lease | None:
    """A lease of this process; None without a /proc that shows it."""
    ticks = start_ticks(os.getpid())
    if ticks is None:
        return None
    return Lease(os.getpid(), ticks, os.geteuid(), cpus, program)._replace(**more)  # type: ignore[arg-type]


def record(lease: Lease, directory: str | None = None) -> Lease:
    """Write the record of a launch, whoever else has its cores. Return the lease with its `path`.

    Raises OSError. A record needs no removal: it counts while its process runs.
    """
    return Claim(lease, directory).settle()


def record_details(lease: Lease) -> None:
    """Write what `xlaunch ps` shows to the user of a launch, if it has a record."""
    if lease.path:
        names = ("program", "instances", "log_dir", "metric", "socket")
        fields = {name: getattr(lease, name) for name in names}
        with contextlib.suppress(OSError):
            write_whole(lease.path + DETAILS, _lines(fields), mode=0o600)


def keep_locks_through_exec() -> None:
    """Let the program that replaces this process hold the locks of its records."""
    for descriptor in _records.values():
        os.set_inheritable(descriptor, True)


class Claim:
    """A record of cores that a launch has asked for and does not have yet: see the module."""

    def __init__(self, lease: Lease, directory: str | None = None) -> None:
        """Write the record. `lease.claimed_ns`: when the launch began to look for cores. Raises OSError."""
        place = _own_directory(directory or records_directory(), lease.uid)
        namespace = pid_namespace()
        path = os.path.join(place, record_name(lease.pid, lease.start_ticks, namespace))
        self.lease = lease._replace(path=path)
        self._descriptor = _publish(self.lease, namespace)

    def settle(self) -> Lease:
        """Take the cores until the launch ends, and remove this user's old records. Raises OSError."""
        self.lease = self.lease._replace(claimed_ns=0)
        record_details(self.lease)
        os.pwrite(self._descriptor, _SETTLED.encode(), 0)
        if self.lease.path not in _records:
            os.close(self._descriptor)
        _remove_ended(os.path.dirname(self.lease.path))
        return self.lease

    def withdraw(self) -> None:
        """Give the cores up, and remove the record."""
        with contextlib.suppress(OSError):
            os.unlink(self.lease.path)
        _records.pop(self.lease.path, None)
        os.close(self._descriptor)


def _own_directory(parent: str, uid: int) -> str:
    """The directory for the records of `uid`, which is made if there is none. Raises OSError.

    Where another user, or root of another user namespace, has taken its name, it gets a random end.
    """
    plain = os.path.join(parent, DIRECTORY.format(uid=uid))
    with contextlib.suppress(FileExistsError):
        _make_public(plain)
    if _is_owned(plain, uid):
        return plain
    start = f"{os.path.basename(plain)}-"
    for name in names_of_directories(parent):
        path = os.path.join(parent, name)
        if name.startswith(start) and _is_owned(path, uid):
            return path
    path = f"{plain}-{os.urandom(4).hex()}"
    _make_public(path)
    return path


def _make_public(path: str) -> None:
    os.mkdir(path)
    os.chmod(path, 0o755)  # noqa: S103 - to be read by everybody, whatever the umask


def _is_owned(path: str, uid: int) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return is_of_one_user(status) and status.st_uid == uid


def _publish(lease: Lease, namespace: str) -> int:
    """Write a record, which others see only once it is whole and locked. Return its descriptor."""
    directory, name = os.path.split(lease.path)
    temporary = os.path.join(directory, f".{name}")
    is_own = lease.pid == os.getpid()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if is_own:
            descriptor = move_above_shells(descriptor)
        is_locked = is_own and _lock(descriptor)
        os.write(descriptor, _to_text(lease, namespace, is_locked=is_locked))
        os.fchmod(descriptor, 0o644)
        os.rename(temporary, lease.path)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if is_own:
        if lease.path in _records:
            os.close(_records[lease.path])
        _records[lease.path] = descriptor
    return descriptor


def _lock(descriptor: int) -> bool:
    """Take the fcntl lock of a file; False where the file system has none."""
    import fcntl

    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _to_text(lease: Lease, namespace: str, *, is_locked: bool) -> bytes:
    fields = {
        "pid": lease.pid,
        "start_ticks": lease.start_ticks,
        "pid_namespace": namespace,
        "boot": boot_id(),
        "cpus": format_cpu_list(lease.cpus),
        "gpus": " ".join(lease.gpus),
        "exclusive": int(lease.exclusive),
        "job": lease.job,
        "locked": int(is_locked),
        "claimed_ns": lease.claimed_ns,
    }
    return _CLAIMED.encode() + _lines(fields)


def _lines(fields: Mapping[str, object]) -> bytes:
    lines = [f"{name} {' '.join(str(value).split())}\n" for name, value in fields.items()]
    return "".join(lines).encode(errors="backslashreplace")


def _remove_ended(place: str) -> None:
    """Remove the records in `place` of launches that have surely ended."""
    reader = LeaseReader()
    with os.scandir(place) as entries:
        names = [entry.name for entry in itertools.islice(entries, MAX_CHECKED_FILES)]
    for name in names:
        own_file = _OWN_FILE.fullmatch(name)
        if own_file is None or own_file["record"] == reader.own_name:
            continue
        path = os.path.join(place, own_file["record"])
        if (name == own_file["record"] or not os.path.exists(path)) and reader.has_ended(path):
            for ended in (os.path.join(place, name), path + DETAILS):
                with contextlib.suppress(OSError):
                    os.unlink(ended)
