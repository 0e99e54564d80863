# SPDX-License-Identifier: Apache-2.0
"""Check what is kept: whose it is, who could change it, and whether it is intact.

Nothing is loaded. Imported files are compared with their SHA-256, others are checked by their format.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from xlaunch.cache import formats
from xlaunch.cache.directories import (
    OTHERS_WRITE,
    RECORD,
    CacheDirectory,
    not_in_use,
    open_below,
    why_shared,
)
from xlaunch.cache.imported import IMPORTED, ImportedFile, read_imported
from xlaunch.cache.key import is_key_name
from xlaunch.cache.staging import is_work, leftovers
from xlaunch.cache.table import BY_NAME, Format
from xlaunch.cache.usage import UNFINISHED, entries_of

MIN_LOCK_AGE_S = 600
"""A younger lock may belong to a compiler that a launch without `hold` has started."""

RECENT_S = 10
"""A file that changed within this time, in a directory in use, may still be being written."""


class Check(enum.Enum):
    """What was checked."""

    OWNER = "owner"
    MODE = "mode"
    LINK = "link"
    """A link, or a special file such as a pipe."""
    CHECKSUM = "SHA-256"
    FORMAT = "format"
    LOCK = "lock"
    LEFTOVER = "leftover"
    """What a killed launch or import has left."""


class Problem(NamedTuple):
    """Something that is not as it should be."""

    path: str
    check: Check
    what: str
    """**Ex.:** ``"it ends after 8192 of at least 17744 bytes"``."""
    fixed: bool


def verify(base: str, *, fix: bool = False) -> list[Problem]:
    """Check the caches below `base`. Without it there are no problems.

    `fix`: within caches remove damaged files, links, what belongs to another user, stale locks and
    leftovers, and take the right to write from others. `base` itself, and what is not named by a key
    of xlaunch, are left as they are. What vanishes meanwhile is no problem, nor is what is being
    written.
    """
    return _Verification(os.path.abspath(base), fix).run()


class _Verification:
    def __init__(self, base: str, fix: bool) -> None:
        self._base = base
        self._fix = fix
        self._problems: list[Problem] = []
        self._now_s = time.time()
        self._imported = functools.cache(read_imported)

    def run(self) -> list[Problem]:
        above = os.path.dirname(self._base)
        shared = why_shared(above) if os.path.lexists(above) else None
        if shared is not None:
            self._report(above, Check.OWNER, shared, fix=False)
        if not os.path.lexists(self._base):
            return self._problems
        status = os.lstat(self._base)
        if stat.S_ISREG(status.st_mode):
            self._report(self._base, Check.LINK, "it is no directory", fix=False)
        elif self._is_ours(self._base, status, fix=False):
            for path in leftovers(self._base):
                self._report(path, Check.LEFTOVER, "a killed command has left it")
            for cache in BY_NAME:
                self._cache(cache, os.path.join(self._base, cache))
        return self._problems

    def _cache(self, cache: str, place: str) -> None:
        """Check the directories of a cache, and the files beside them that are named by their keys."""
        if not os.path.lexists(place) or not self._is_ours(place, os.lstat(place), fix=False):
            return
        with contextlib.suppress(OSError):  # its mode was reported
            for name in os.listdir(place):
                self._beside(CacheDirectory(cache, name, os.path.join(place, name)))

    def _beside(self, found: CacheDirectory) -> None:
        """Check a file or directory of a cache; what is not named by a key is somebody's own."""
        suffix = next((it for it in (RECORD, IMPORTED) if found.key.endswith(it)), "")
        ours = is_key_name(found.key.removesuffix(suffix))
        if is_work(found.key):
            return
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(found.path)
            if stat.S_ISREG(status.st_mode):
                if ours and self._is_ours(found.path, status):
                    self._record(found, status)
            elif not stat.S_ISDIR(status.st_mode):
                self._is_ours(found.path, status, fix=False)
            elif not ours:
                what = "it is not named by a key of xlaunch"
                self._report(found.path, Check.OWNER, what, fix=False)
            elif self._is_ours(found.path, status):
                for path, inside in self._files(found.path):
                    self._entry(found, path, inside)

    def _record(self, file: CacheDirectory, status: os.stat_result) -> None:
        """Check a file beside the directories of a cache, named by its key and a suffix."""
        if file.path.endswith(IMPORTED):
            self._content(file.path, status, Format.JSON)
        elif file.path.endswith(RECORD):
            directory = file._replace(path=file.path.removesuffix(RECORD))
            if directory.parts() is None:
                with not_in_use(directory) as free:  # the lock of its users is on this file
                    self._damaged(
                        file.path, status, Check.FORMAT, "it is no record of a key", fix=free
                    )

    def _entry(self, directory: CacheDirectory, path: str, status: os.stat_result) -> None:
        """Check a file of a cache."""
        relative = os.path.relpath(path, directory.path)
        entries = entries_of(directory.cache, relative)
        if entries.format is Format.LOCK:
            with not_in_use(directory) as free:
                if free and self._now_s - status.st_mtime > MIN_LOCK_AGE_S:
                    what = "the program that held it has ended, and others wait for it"
                    self._report(path, Check.LOCK, what)
        elif entries is not UNFINISHED:
            imported = self._imported(directory).get(relative)
            self._content(path, status, entries.format, imported, directory)

    def _content(
        self,
        path: str,
        status: os.stat_result,
        form: Format,
        imported: ImportedFile | None = None,
        directory: CacheDirectory | None = None,
    ) -> None:
        check = Check.FORMAT
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as stream:
                if imported is None or imported.modified_ns != status.st_mtime_ns:
                    what = formats.damage(stream, form)
                else:
                    same = hashlib.file_digest(stream, "sha256").hexdigest() == imported.sha256
                    what = None if same else "its content is not what was imported"
                    check = Check.CHECKSUM
        except FileNotFoundError:
            return
        except OSError as error:
            check, what = Check.MODE, f"it cannot be read ({error.strerror})"
        if what is not None and directory is not None and time.time() - status.st_mtime < RECENT_S:
            with not_in_use(directory) as free:
                if not free:  # it is being written
                    return
        if what is not None:
            self._damaged(path, status, check, what)

    def _damaged(
        self, path: str, status: os.stat_result, check: Check, what: str, *, fix: bool = True
    ) -> None:
        """Report a file, unless it was replaced since it was found."""
        with contextlib.suppress(FileNotFoundError):
            now = os.lstat(path)
            if (now.st_ino, now.st_mtime_ns) == (status.st_ino, status.st_mtime_ns):
                self._report(path, check, what, fix=fix)

    def _files(self, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """The regular files below a directory that are ours; what is not is reported."""
        names = []
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._report(path, Check.MODE, f"it cannot be read ({error.strerror})", fix=False)
        for entry in [os.path.join(path, name) for name in names]:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(entry)
                if not self._is_ours(entry, status):
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield entry, status
                else:
                    yield from self._files(entry)

    def _is_ours(self, path: str, status: os.stat_result, *, fix: bool = True) -> bool:
        """Check owner, mode and kind of a file; whether its content is to be checked.

        `fix`: it was made by a program within its cache, or by xlaunch, and may be removed.
        """
        mode = status.st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            what = "it is a link or a special file, which programs would follow"
            self._report(path, Check.LINK, what, fix=fix)
            return False
        if status.st_uid != os.geteuid():
            what = f"it belongs to another user ({status.st_uid})"
            self._report(path, Check.OWNER, what, fix=fix)
            return False
        needed = stat.S_IRWXU if stat.S_ISDIR(mode) else stat.S_IRUSR
        wanted = stat.S_IMODE((mode | needed) & ~OTHERS_WRITE)
        if wanted != stat.S_IMODE(mode):
            if self._fix and fix:
                with contextlib.suppress(OSError):
                    os.chmod(path, wanted)
            fixed = stat.S_IMODE(os.lstat(path).st_mode) == wanted
            others = mode & OTHERS_WRITE
            what = "others than its owner may write it" if others else "its owner may not use it"
            what = f"{what} ({stat.S_IMODE(mode):o})"
            self._problems.append(Problem(path, Check.MODE, what, fixed))
        return True

    def _report(self, path: str, check: Check, what: str, *, fix: bool = True) -> None:
        """Note a problem; `fix`: removing the file is what `--fix` does about it."""
        self._problems.append(Problem(path, check, what, fix and self._fix and self._remove(path)))

    def _remove(self, path: str) -> bool:
        """Remove a file, or a directory with all that is in it; whether it is gone."""
        *parents, name = os.path.relpath(path, self._base).split(os.sep)
        with contextlib.suppress(OSError), open_below(self._base, *parents) as above:
            if stat.S_ISDIR(os.lstat(name, dir_fd=above).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=above)
            else:
                os.unlink(name, dir_fd=above)
        return not os.path.lexists(path)
