# SPDX-License-Identifier: Apache-2.0
"""Whole files, private directories, and locks that the kernel releases when their holder ends."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from xlaunch.errors import UsageError, XLaunchError

if TYPE_CHECKING:
    from io import BufferedReader

MEMORY = "/dev/shm"  # noqa: S108 - the directory made there is private, which is checked
MAX_RECORD_BYTES = 1 << 20
LOCK_INTERVAL_S = 0.01
MAX_HEAD_BYTES = 1 << 16
"""How much of an existing file is read to see what it is."""
MIN_DESCRIPTOR = 100
"""See `move_above_shells`."""
PRIVATE = 0o600
"""Mode of new files that may hold a command line or a variable's value, which may be secret."""


def write_whole(path: str, data: bytes, *, mode: int = 0o666) -> None:
    """Write or replace a regular file, whole or not at all. Raises OSError, and then leaves nothing behind.

    Devices, pipes and directories are not replaced: that is an OSError, too. A link is followed. The umask
    applies to the `mode` of a new file; a file that is replaced keeps its mode, and its owner if possible.
    """
    place = os.path.realpath(path)
    directory, name = os.path.split(place)
    temporary = os.path.join(directory, f".{name[:200]}.{os.urandom(4).hex()}")
    if os.path.isdir(place):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if is_special_file(path):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    if os.path.exists(place):
        mode = 0o600  # until it takes the mode of the other
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
        replace(temporary, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def replace(new: str, place: str) -> None:
    """Move file `new` to `place`, with mode and owner of the file there, if possible. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(place)
        if hasattr(os, "chown"):
            with contextlib.suppress(OSError):
                os.chown(new, status.st_uid, status.st_gid)
        os.chmod(new, stat.S_IMODE(status.st_mode) & 0o777)
    os.replace(new, place)


BINARY = getattr(os, "O_BINARY", 0)
"""Windows alone has a text mode."""


class OutputKind(NamedTuple):
    """A kind of file that options name to be written."""

    name: str
    """**Ex.:** ``"a report of xlaunch"``."""
    is_ours: Callable[[bytes], bool]
    """Whether a file that begins with these bytes is an earlier one of this kind.

    It may raise `UsageError` with the reason why it is not."""


def check_output(
    path: str, kind: OutputKind, *, option: str, force: bool = False, inputs: Iterable[str] = ()
) -> None:
    """Raise `UsageError` unless writing to `path` loses nothing that somebody else has written.

    It may be absent, empty, or an earlier file of `kind`; a pipe, a character device or the name of an
    open descriptor; with `force` any other file. Never one of `inputs`: files that the same command runs,
    reads or writes otherwise, also by another name (links).
    """
    named_path = f"{option} {path!r}".strip()
    if os.path.isdir(path):
        raise UsageError(f"{named_path} is a directory; name a file")
    if is_special_file(path):
        if stat.S_ISBLK(os.stat(path).st_mode) and not _is_descriptor(path):
            raise UsageError(
                f"{named_path} is a block device, whose content would be lost; name a file"
            )
        return
    for other in inputs:
        same = False
        with contextlib.suppress(OSError, ValueError):  # they need not exist
            same = os.path.realpath(path) == os.path.realpath(other) or os.path.samefile(
                path, other
            )
        if same:
            named = "" if other == path else f" ({other!r})"
            raise UsageError(
                f"{named_path} is a file{named} that this command itself uses; choose another name"
            )
    instead = "choose another name, or replace it with --force"
    try:
        with open(path, "rb") as stream:
            head = stream.read(MAX_HEAD_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return
    except ValueError:  # a null character
        raise UsageError(f"{named_path} is not a file name") from None
    except OSError as error:
        if force:
            return
        raise UsageError(
            f"{named_path} cannot be read to see what it is: {error.strerror}; {instead}"
        ) from None
    if not head or force:
        return
    why = ""
    try:
        ours = kind.is_ours(head)
    except UsageError as error:
        ours, why = False, f" ({error})"
    if not ours:
        raise UsageError(f"{named_path} exists and is not {kind.name}{why}; {instead}")


def write_output(
    path: str,
    text: str,
    *,
    option: str = "",
    kind: OutputKind | None = None,
    force: bool = False,
    inputs: Iterable[str] = (),
) -> None:
    """Write a text file that an option names, whole, for this user only if it is new.

    Raises `UsageError`, which names `option`, also for what `check_output` refuses, to which `kind`,
    `force` and `inputs` go. A device or pipe is written to, as is a name such as /dev/stdout.
    """
    named_path = f"{option} {path!r}".strip()
    if kind is not None:
        check_output(path, kind, option=option, force=force, inputs=inputs)
    try:
        data = text.encode()
        if is_special_file(path):
            with open(path, "ab") as stream:
                stream.write(data)
        else:
            write_whole(path, data, mode=PRIVATE)
    except UnicodeEncodeError:
        raise UsageError(f"{named_path} cannot be written: a value in it is not UTF-8") from None
    except OSError as error:
        raise UsageError(f"{named_path} cannot be written: {error.strerror}") from None


def open_input(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file that the user names, to read it.

    Raises OSError, also for a named pipe, which may wait for ever, and for a device but the null one.
    Descriptors that are open already, such as /dev/stdin and a shell's ``<(...)``, may be anything.
    """
    mode = os.stat(path).st_mode
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    kind = kinds.get(stat.S_IFMT(mode))
    name = os.fspath(path)
    if kind is not None and not _is_descriptor(name) and os.path.realpath(name) != os.devnull:
        raise OSError(errno.ENOTSUP, f"it is {kind}, not a regular file", name)
    return open(path, "rb")


def is_special_file(path: str) -> bool:
    """Whether `path` is a pipe, a terminal, or a name such as /dev/stdout: nothing to be replaced."""
    return (os.path.exists(path) and not os.path.isfile(path)) or _is_descriptor(path)


def _is_descriptor(path: str) -> bool:
    """Whether `path` names an open descriptor. **Ex.:** ``/dev/stdout``, ``/dev/fd/63``."""
    directory, name = os.path.split(path)
    try:
        place = os.path.join(os.path.realpath(directory), name)
    except OSError:  # relative to a working directory that was removed
        return False
    return re.fullmatch("/dev/std(in|out|err)|/proc/[0-9]+/fd/[0-9]+", place) is not None


def names_in(directory: str) -> list[str]:
    """The names in a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def make_private(directory: str) -> None:
    """Create a directory and its missing parents, each for this user only. Raises OSError."""
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    if parent != directory:
        make_private(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    if not os.path.isdir(directory):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)


TEMPORARY = re.compile(r"\.?(xlaunch|xruntime)-[a-z0-9]+-[0-9a-f]{16}")
"""Names of temporary directories: what for, and a random number."""
LOCK = ".lock"
"""The file in a temporary directory that its process holds locked."""
MAX_LISTED = 20_000
"""Maximum number of entries that are read of a directory that others may fill."""
MAX_LOOKED_AT = 100
"""Maximum number of temporary directories that are looked at in one place."""


def temporary_path(purpose: str, base: str) -> str:
    """A new path for `make_temporary`. **Ex.:** ``/tmp/xlaunch-fifos-0123456789abcdef``."""
    return os.path.join(base, f"{purpose}-{os.urandom(8).hex()}")


def make_temporary(path: str) -> int:
    """Make a private directory, and return the descriptor that holds its lock. Raises OSError.

    The lock is held until all copies of the descriptor are closed, at the latest by the end of this
    process and of what it has forked; programs that these execute do not inherit it.
    """
    os.mkdir(path, 0o700)
    new = os.path.join(path, f"{LOCK}.new")
    descriptor = os.open(
        new, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600
    )
    try_lock(descriptor)
    os.rename(new, os.path.join(path, LOCK))  # so it is never seen unlocked
    return descriptor


@contextlib.contextmanager
def temporary_directory(purpose: str, base: str) -> Iterator[str]:
    """Make a private, empty directory for the block. Raises OSError.

    Where this process is killed, it is left to `remove_dead`. **Ex.:** ``temporary_directory("xlaunch-machine", "/tmp")``.
    """
    path = temporary_path(purpose, base)
    descriptor = make_temporary(path)
    try:
        content = os.path.join(path, "content")
        os.mkdir(content, 0o700)
        yield content
    finally:
        os.close(descriptor)  # Windows removes no open file
        remove_temporary(path)


def remove_temporary(path: str) -> None:
    """Remove a directory of `make_temporary`, its lock at last, so that what is left can be removed later."""
    import shutil

    for name in names_in(path):
        inside = os.path.join(path, name)
        if name == LOCK:
            continue
        if os.path.isdir(inside) and not os.path.islink(inside):
            shutil.rmtree(inside, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(inside)
    if names_in(path) in ([LOCK], []):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, LOCK))
        with contextlib.suppress(OSError):
            os.rmdir(path)


def remove_dead(*bases: str) -> None:
    """Remove the temporary directories in `bases` whose processes were killed.

    Only what is this user's and private, and has an unheld lock inside. Links are not followed, and the
    cost is bounded, whatever others put there.
    """
    if not hasattr(os, "geteuid"):
        return
    for base in dict.fromkeys(bases):
        names: list[str] = []
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            listed = [entry.name for entry, _ in zip(entries, range(MAX_LISTED), strict=False)]
            names = [name for name in listed if TEMPORARY.fullmatch(name)]
        for name in names[:MAX_LOOKED_AT]:
            with contextlib.suppress(OSError):
                _remove_if_dead(os.path.join(base, name))


def temporary_places(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where launches and their programs make temporary directories."""
    places = (environment.get("XDG_RUNTIME_DIR"), environment.get("TMPDIR") or "/tmp", MEMORY)  # noqa: S108
    return tuple([place for place in places if place and os.path.isabs(place)])


def _remove_if_dead(path: str) -> None:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | flags)
        opened.callback(os.close, directory)
        if not _is_private(directory, stat.S_ISDIR):
            return
        lock = os.open(LOCK, os.O_RDWR | flags, dir_fd=directory)
        opened.callback(os.close, lock)
        if _is_private(lock, stat.S_ISREG) and try_lock(lock):
            remove_temporary(path)


def _is_private(descriptor: int, kind: Callable[[int], bool]) -> bool:
    """Whether an open file is of that kind, this user's, and closed to others."""
    status = os.fstat(descriptor)
    own = kind(status.st_mode) and status.st_uid == os.geteuid()
    return own and not status.st_mode & 0o077


def runtime_directory(name: str, environment: Mapping[str, str], memory: str = MEMORY) -> str:
    """Make this user's private directory for locks and records of this host, never on a shared file system.

    It is ``$XDG_RUNTIME_DIR/name``, else ``/dev/shm/name-UID``. Raises `XLaunchError` if it cannot be
    made, is a link, or others may enter it.
    """
    base = environment.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base) and os.access(base, os.W_OK | os.X_OK):
        directory = os.path.join(base, name)
    else:
        directory = os.path.join(memory, f"{name}-{os.geteuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        status = os.lstat(directory)
    except OSError as error:
        raise XLaunchError(
            f"no directory for locks: {directory}: {error.strerror}; set XDG_RUNTIME_DIR to a private"
            " directory of this host"
        ) from error
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not private or status.st_mode & 0o077:
        raise XLaunchError(
            f"{directory} is not a private directory of yours; remove it, or set XDG_RUNTIME_DIR"
        )
    return directory


def move_above_shells(descriptor: int) -> int:
    """Move a descriptor above those of shell scripts, as in ``exec 3>file``, which would close it.

    It is `MIN_DESCRIPTOR` or a higher one, unless RLIMIT_NOFILE is lower, and not inherited.
    """
    import fcntl

    for number in (MIN_DESCRIPTOR, 10):
        with contextlib.suppress(OSError):
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, number)
            os.close(descriptor)
            return high
    return descriptor


def try_lock(descriptor: int, *, shared: bool = False, timeout_s: float = 0.0) -> bool:
    """Lock an open file or directory (flock) until all copies of `descriptor` are closed.

    Child processes may inherit copies. Returns False if another process still holds the lock after
    `timeout_s`, or if the file system or the operating system has no such locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOCK_INTERVAL_S)
        except OSError:
            return False


@contextlib.contextmanager
def locked(
    path: str, *, mode: int = 0o600, waiting: Callable[[int], None] | None = None
) -> Iterator[int]:
    """Hold the exclusive lock of a file during the block, and yield its descriptor.

    The file is created with `mode` if it is absent, and a link is refused. `waiting`: called with the
    descriptor before waiting for another holder. Raises OSError.
    """
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        if not try_lock(descriptor):
            if waiting is not None:
                waiting(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def read_record(descriptor: int) -> bytes:
    """The content of a file that `locked` has opened. Raises OSError."""
    return os.pread(descriptor, MAX_RECORD_BYTES, 0)


def write_record(descriptor: int, data: bytes) -> None:
    """Replace the content of a file that `locked` has opened. Raises OSError.

    A reader without the lock finds the old content, the new, or a mixture, but never an empty file.
    """
    os.pwrite(descriptor, data, 0)
    os.truncate(descriptor, len(data))
