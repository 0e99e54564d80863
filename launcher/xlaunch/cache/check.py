# SPDX-License-Identifier: Apache-2.0
"""Check the files of the caches: their owner, who could change them, and whether they are intact.

Nothing is loaded. Imported files are compared with their SHA-256, others are checked by their format.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from xlaunch.cache import contents, formats, staging, store
from xlaunch.cache.contents import IMPORTED, UNFINISHED, ImportedFile
from xlaunch.cache.store import OTHERS_WRITE, RECORD, CacheDirectory, is_key_name
from xlaunch.cache.table import BY_NAME, Format

MIN_LOCK_AGE_S = 600
"""A lock is stale from this age on, if its directory is not in use. Before, a compiler whose launch could not
`hold` the directory may have it."""

RECENT_S = 10
"""In a directory in use, a younger file may be unfinished, so damage in it is not reported."""


class Aspect(enum.StrEnum):
    """What was checked."""

    OWNER = "owner"
    MODE = "mode"
    LINK = "link"
    """A link, or a special file such as a pipe."""
    CHECKSUM = "SHA-256"
    FORMAT = "format"
    LOCK = "lock"
    LEFTOVER = "leftover"
    """A directory that a killed launch or import has left."""


class Problem(NamedTuple):
    """A damaged file, or one that others could change."""

    path: str
    check: Aspect
    what: str
    """**Ex.:** ``"it ends after 8192 of at least 17744 bytes"``."""
    fixed: bool


def verify(base: str, *, fix: bool = False) -> list[Problem]:
    """Check the caches below `base`. An absent directory has no problems.

    `fix`: within caches remove damaged files, links, files of other users, stale locks and leftovers, and
    make files writable by their owner alone. `base` itself, and directories that are not named by a key
    of xlaunch, stay as they are. Files that vanish meanwhile, or are being written, are not reported.
    """
    return _Verification(os.path.abspath(base), fix).run()


class _Verification:
    def __init__(self, base: str, fix: bool) -> None:
        self._base = base
        self._fix = fix
        self._problems: list[Problem] = []
        self._now_s = time.time()
        self._imported = functools.cache(contents.read_imported)

    def run(self) -> list[Problem]:
        above = os.path.dirname(self._base)
        shared = store.why_shared(above) if os.path.lexists(above) else None
        if shared is not None:
            self._report(above, Aspect.OWNER, shared, fix=False)
        if not os.path.lexists(self._base):
            return self._problems
        status = os.lstat(self._base)
        if stat.S_ISREG(status.st_mode):
            self._report(self._base, Aspect.LINK, "it is not a directory", fix=False)
        elif self._is_ours(self._base, status, fix=False):
            for path in staging.leftovers(self._base):
                self._report(path, Aspect.LEFTOVER, "a killed command has left it")
            for cache in BY_NAME:
                self._cache(cache, os.path.join(self._base, cache))
        return self._problems

    def _cache(self, cache: str, place: str) -> None:
        """Check the directories of a cache, and their records."""
        if not os.path.lexists(place) or not self._is_ours(place, os.lstat(place), fix=False):
            return
        with contextlib.suppress(OSError):  # `_is_ours` has reported its mode
            for name in os.listdir(place):
                if not name.startswith(staging.OUTSIDE_CACHES):
                    with contextlib.suppress(FileNotFoundError):
                        self._entry(CacheDirectory(cache, name, os.path.join(place, name)))

    def _entry(self, entry: CacheDirectory) -> None:
        """Check a directory or a record of a cache, but nothing that is not named by a key."""
        status = os.lstat(entry.path)
        is_directory = stat.S_ISDIR(status.st_mode)
        suffix = next((ending for ending in (RECORD, IMPORTED) if entry.key.endswith(ending)), "")
        ours = is_key_name(entry.key.removesuffix(suffix))
        if not is_directory and not stat.S_ISREG(status.st_mode):
            self._is_ours(entry.path, status, fix=False)
        elif is_directory and not ours:
            self._report(entry.path, Aspect.OWNER, "it is not named by a key of xlaunch", fix=False)
        elif not ours or not self._is_ours(entry.path, status):
            pass
        elif is_directory:
            for path, inside in self._files(entry.path):
                self._file(entry, path, inside)
        elif suffix == IMPORTED:
            self._content(entry.path, status, Format.JSON)
        elif suffix == RECORD:
            directory = entry._replace(path=entry.path.removesuffix(RECORD))
            if directory.parts() is None:
                with store.not_in_use(directory) as free:  # the lock of its users is on this file
                    problem = "it is not the record of a key"
                    self._report(entry.path, Aspect.FORMAT, problem, fix=free, seen=status)

    def _file(self, directory: CacheDirectory, path: str, status: os.stat_result) -> None:
        relative = os.path.relpath(path, directory.path)
        entries = contents.entries_of(directory.cache, relative)
        if entries.format is Format.LOCK:
            with store.not_in_use(directory) as free:
                if free and self._now_s - status.st_mtime > MIN_LOCK_AGE_S:
                    problem = "the program that held it has ended, and others wait for it"
                    self._report(path, Aspect.LOCK, problem)
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
        aspect = Aspect.FORMAT
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as stream:
                if imported is None or imported.modified_ns != status.st_mtime_ns:
                    problem = formats.damage(stream, form)
                else:
                    same = hashlib.file_digest(stream, "sha256").hexdigest() == imported.sha256
                    problem = None if same else "its content is not what was imported"
                    aspect = Aspect.CHECKSUM
        except FileNotFoundError:
            return
        except OSError as error:
            aspect, problem = Aspect.MODE, f"it cannot be read ({error.strerror})"
        if problem is None:
            return
        if directory is not None and time.time() - status.st_mtime < RECENT_S:
            with store.not_in_use(directory) as free:
                if not free:  # it is being written
                    return
        self._report(path, aspect, problem, seen=status)

    def _files(self, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """The regular files below a directory that are this user's; report all others."""
        names = []
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._report(path, Aspect.MODE, f"it cannot be read ({error.strerror})", fix=False)
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
        """Check owner, mode and kind of a file; whether its content may be checked.

        `fix`: a program made it within its cache, or xlaunch did, so it may be removed.
        """
        mode = status.st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            problem = "it is a link or a special file, which programs would follow"
            self._report(path, Aspect.LINK, problem, fix=fix)
            return False
        if status.st_uid != os.geteuid():
            problem = f"it belongs to another user ({status.st_uid})"
            self._report(path, Aspect.OWNER, problem, fix=fix)
            return False
        needed = stat.S_IRWXU if stat.S_ISDIR(mode) else stat.S_IRUSR
        wanted = stat.S_IMODE((mode | needed) & ~OTHERS_WRITE)
        if wanted != stat.S_IMODE(mode):
            if self._fix and fix:
                with contextlib.suppress(OSError):
                    os.chmod(path, wanted)
            fixed = stat.S_IMODE(os.lstat(path).st_mode) == wanted
            others = mode & OTHERS_WRITE
            problem = "others than its owner may write it" if others else "its owner may not use it"
            problem = f"{problem} ({stat.S_IMODE(mode):o})"
            self._problems.append(Problem(path, Aspect.MODE, problem, fixed))
        return True

    def _report(
        self,
        path: str,
        aspect: Aspect,
        what: str,
        *,
        fix: bool = True,
        seen: os.stat_result | None = None,
    ) -> None:
        """Report a problem, unless the file was replaced since it was `seen`; `--fix` removes the file."""
        if seen is not None:
            try:
                now = os.lstat(path)
            except FileNotFoundError:
                return
            if (now.st_ino, now.st_mtime_ns) != (seen.st_ino, seen.st_mtime_ns):
                return
        fixed = fix and self._fix and store.remove_below(self._base, path)
        self._problems.append(Problem(path, aspect, what, fixed))
