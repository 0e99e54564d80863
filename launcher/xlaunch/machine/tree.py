# SPDX-License-Identifier: Apache-2.0
"""Reading sysfs and procfs under any root, their two formats for a set of CPUs, and the table of mounts.

Without pathlib, which takes longer to import than a small machine takes to read.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from xlaunch.files import MEMORY, names_in, temporary_directory
from xlaunch.machine.topology import CPUs

READ_BYTES = 1 << 16
"""Size of one read; no attribute of sysfs is larger."""
PAGE_BYTES = 1 << 12
"""No smaller on any machine."""
MAX_NUMBER = (1 << 14) - 1
"""The largest number of a CPU or node that is believed; kernels are built for at most 8192 CPUs."""
MAX_MASK_CHARACTERS = 1 << 13


def read_file(
    path: str, *, is_attribute: bool = False, max_bytes: int | None = None
) -> bytes | None:
    """The content of a file, also of procfs or sysfs; None when it cannot be read.

    A read returns whole records, often less than a page: only an empty one is the end. A short attribute of
    sysfs (`is_attribute`) comes with one read, and there are thousands of them. `max_bytes`: read once.
    `os.open` and `os.read` cost half of what `open` does.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        content = os.read(descriptor, max_bytes or READ_BYTES)
        is_whole = is_attribute and len(content) < PAGE_BYTES and content.endswith(b"\n")
        while not is_whole and max_bytes is None and (more := os.read(descriptor, READ_BYTES)):
            content += more
        return content
    except OSError:
        return None
    finally:
        os.close(descriptor)


class Tree:
    """The files under one root directory. An absent or unreadable one is None or empty, not an error."""

    def __init__(self, root: str) -> None:
        self._prefix = root.rstrip("/")

    def has_directory(self, path: str) -> bool:
        """Whether `path`, which begins with a slash, is a directory."""
        return os.path.isdir(self._prefix + path)

    def read(self, path: str) -> str | None:
        """The text of a file without surrounding white space; None when there is none to read."""
        content = read_file(self._prefix + path, is_attribute=not path.startswith("/proc/"))
        return None if content is None else content.decode("utf-8", "replace").strip()

    def read_start(self, path: str) -> str:
        """The first page of a long file; ``/proc/cpuinfo`` of a large machine takes milliseconds."""
        content = read_file(self._prefix + path, max_bytes=PAGE_BYTES)
        return (content or b"").decode("utf-8", "replace")

    def read_int(self, path: str) -> int | None:
        """The number that a file holds, decimal or with 0x; None for anything else."""
        return number(self.read(path))

    def target(self, path: str) -> str | None:
        """Where a symbolic link leads, as it says; None when there is none to read."""
        try:
            return os.readlink(self._prefix + path)
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """The names in a directory, in no order."""
        return names_in(self._prefix + path)

    def numbered(self, path: str, prefix: str) -> list[int]:
        """The numbers N of the entries `prefix` N of a directory, ascending."""
        start = len(prefix)
        return sorted(
            [
                int(name[start:])
                for name in self.names(path)
                if name.startswith(prefix) and name[start:].isdecimal()
            ]
        )


def is_live(root: str) -> bool:
    """Whether `root` is that of this machine, where system calls apply as well."""
    return os.path.realpath(root) == "/"


def number(text: str | None) -> int | None:
    """The whole number in `text`, decimal or with 0x; None for anything else."""
    try:
        return int(text, 0) if text else None
    except ValueError:
        try:  # leading zeros, as in 0000000f, are no Python literal
            return int(text or "", 10)
        except ValueError:
            return None


def parse_fields(text: str) -> dict[str, str]:
    """The lines ``name: value`` of a file such as ``/proc/cpuinfo``; of equal names the first counts.

    **Ex.:** ``{"processor": "0", "vendor_id": "AuthenticAMD", "cpu family": "25", ...}``.
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def parse_list(text: str) -> CPUs:
    """The numbers of a kernel list such as ``0-3,8,16-30:2``; the kernel's stride has a width too.

    Unlike a user's list, a kernel's is never refused: unreadable parts are left out, and so are
    numbers that no kernel has, as in a damaged capture.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        interval, _, stride = part.partition(":")
        first, dash, last = interval.partition("-")
        low = _kernel_number(first)
        high = _kernel_number(last) if dash else low
        if low is None or high is None:
            continue
        if stride:
            width, _, step = stride.partition("/")  # "0-30:1/2" takes 1 of every 2
            taken, of_every = _kernel_number(width), _kernel_number(step)
            if taken is not None and of_every:
                for start in range(low, high + 1, of_every):
                    numbers.update(range(start, min(start + taken, high + 1)))
                continue
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def _kernel_number(digits: str) -> int | None:
    """The number of a CPU or node; None for anything else, and beyond `MAX_NUMBER`."""
    if not digits.isdecimal() or len(digits) > len(str(MAX_NUMBER)):
        return None
    number = int(digits)
    return number if number <= MAX_NUMBER else None


def parse_mask(text: str) -> CPUs:
    """The bits of a kernel mask: hexadecimal words of 32 bits, the highest first, of any width.

    **Ex.:** ``"1,0000000f"`` is ``(0, 1, 2, 3, 32)``.
    """
    value = 0
    if len(text) > MAX_MASK_CHARACTERS:
        return ()
    try:
        for word in text.split(","):
            value = value << 32 | int(word, 16)
    except ValueError:
        return ()
    return tuple(bit for bit, digit in enumerate(reversed(f"{value:b}")) if digit == "1")


def file_system_of(tree: Tree, path: str) -> str:
    """The type of the file system of an existing or future path; empty if unknown.

    From the table of mounts, see proc_pid_mountinfo(5).
    """
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in (tree.read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        words = left.split()
        point = words[4].replace("\\040", " ") if len(words) > 4 else ""
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # Later mounts hide earlier ones.
        if point and inside and len(point) >= len(best):
            best, kind = point, right.partition(" ")[0]
    return kind


ENOUGH_BYTES = 1 << 28
"""Minimum free space; containers often have 64 MiB, which a large machine's files can fill."""


@contextlib.contextmanager
def scratch_directory() -> Iterator[str]:
    """A new directory for thousands of small files, in memory if there is room, which is several times as fast as a disk.

    TMPDIR takes precedence. It is removed after the block, and signals that end a process wait until
    then: the block should be short, and print nothing, which could wait for its reader.
    """
    import tempfile

    place = tempfile.gettempdir()
    if not os.environ.get("TMPDIR") and os.access(MEMORY, os.W_OK | os.X_OK):
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize >= ENOUGH_BYTES:
            place = MEMORY
    with _signals_wait(), temporary_directory("xlaunch-machine", place) as made:
        yield made


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Block SIGINT, SIGTERM and SIGHUP in this thread during the block."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
