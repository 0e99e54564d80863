# SPDX-License-Identifier: Apache-2.0
"""Bundles: caches in one file, to start warm on another machine of the same kind.

A bundle is a tar, plain or compressed by gzip, whose first member lists all the others:

    manifest.json                       schema_version, created, glibc, caches
    manifest.json.sig                   if it was signed
    inductor/torch2.13.0-.../24/c24.so  the files, in the order of the manifest

What is in a bundle is run as code where it is imported. `bundle_signature` says who made it.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from xlaunch.cache import bundle_signature, formats
from xlaunch.cache.directories import CacheDirectory, check_base, check_below, hold
from xlaunch.cache.table import BY_NAME, Format
from xlaunch.cache.usage import LOCAL_KINDS, entries_of
from xlaunch.errors import UsageError
from xlaunch.files import is_special_file, write_whole
from xlaunch.machine.c_library import glibc_version

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
MAX_PATH_BYTES = 1024
MAX_MANIFEST_BYTES = 32 << 20
"""Enough for a hundred thousand files. Parsing what is no manifest takes twenty times as much memory."""

_MODES: dict[str, Any] = {".gz": "w:gz", ".tgz": "w:gz"}
_READ_ATTEMPTS = 3
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that end a line or move a terminal's cursor."""


class File(NamedTuple):
    """A file of a bundle."""

    path: str
    """From the directory of its cache."""
    size_bytes: int
    sha256: str
    executable: bool
    modified_ns: int


class BundledCache(NamedTuple):
    """The files of one cache."""

    cache: str
    key: str
    parts: Mapping[str, str]
    files: tuple[File, ...]


class Manifest(NamedTuple):
    """What a bundle contains."""

    created: str
    """ISO 8601, UTC."""
    glibc: str | None
    """Version of the C library that the libraries were linked with. **Ex.:** ``"2.36"``."""
    caches: tuple[BundledCache, ...]

    @property
    def members(self) -> list[tuple[str, File]]:
        """The name in the tar and the description of every file, in the order of the tar."""
        return [
            (f"{it.cache}/{it.key}/{file.path}", file) for it in self.caches for file in it.files
        ]

    @property
    def size_bytes(self) -> int:
        return sum([file.size_bytes for _, file in self.members])


class Exported(NamedTuple):
    """What `export` has written."""

    path: str
    files: int
    size_bytes: int
    """Before compression."""
    weights_bytes: int
    """Of the caches that contain weights of models."""
    left_out: tuple[str, ...]
    """Files that are damaged, were written all the time, or have control characters in their name. Locks and temporary files do not count."""


def export(
    base: str, directories: Sequence[CacheDirectory], path: str, *, sign: str | None = None
) -> Exported:
    """Write caches below `base`, at most one directory of each, to the file `path`, whole or not at all.

    It is compressed if its name ends in ``.gz`` or ``.tgz``. `sign`: the file of a
    private SSH key. Raises `UsageError`.
    """
    if len({it.cache for it in directories}) < len(directories):
        raise UsageError("a bundle holds one directory of each cache; export the others separately")
    if is_special_file(path):
        raise UsageError(f"{path} is no regular file; name a file to write or to replace")
    refusal = check_base(base)
    for directory in directories:
        refusal = refusal or check_below(base, directory.path)
    if refusal is not None:
        raise UsageError(refusal)
    place = os.path.realpath(path)
    left_out: list[str] = []
    try:
        with contextlib.ExitStack() as stack:
            for directory in directories:
                descriptor = hold(directory)
                if descriptor is not None:
                    stack.callback(os.close, descriptor)
            copies = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=".xlaunch-", dir=os.path.dirname(place))
            )
            caches = tuple([_copy_cache(it, copies, left_out) for it in directories])
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            glibc = ".".join(map(str, glibc_version() or ())) or None
            manifest = Manifest(now, glibc, caches)
            _write(place, manifest, copies, sign)
    except OSError as error:
        what = error.filename or path
        raise UsageError(f"{what} cannot be read or written: {error.strerror}") from None
    weights = manifest._replace(caches=tuple([it for it in caches if BY_NAME[it.cache].weights]))
    files, size_bytes = len(manifest.members), manifest.size_bytes
    return Exported(path, files, size_bytes, weights.size_bytes, tuple(left_out))


def decode(data: bytes) -> Manifest:
    """Read ``manifest.json``. Raises ValueError for all that is not as it should be."""
    try:
        content = json.loads(data)
        if content["schema_version"] != SCHEMA_VERSION:
            version = content["schema_version"]
            raise ValueError(
                f"schema version {version!r:.80} is not {SCHEMA_VERSION}, as it was "
                "exported by another version of xlaunch"
            )
        caches = []
        for it in content["caches"]:
            files = tuple([File(**file) for file in it["files"]])
            caches.append(BundledCache(it["cache"], it["key"], it["parts"], files))
        manifest = Manifest(content["created"], content["glibc"], tuple(caches))
        _check(manifest)
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its {MANIFEST} is not valid: {type(error).__name__} {error}") from None
    return manifest


def _check(manifest: Manifest) -> None:
    """Raise ValueError unless everything is such as `export` writes; another type may raise TypeError."""
    glibc, names = manifest.glibc, [name for name, _ in manifest.members]
    if glibc is not None and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){1,3}", glibc):
        raise ValueError(f"{glibc!r:.80} is no version of glibc")
    for it in manifest.caches:
        if it.cache not in BY_NAME or not re.fullmatch(r"[\w+-][\w+.-]{0,199}", it.key, re.ASCII):
            raise ValueError(f"{f'{it.cache}/{it.key}'!r:.300} is no cache that this xlaunch knows")
        if {type(text) for text in it.parts.values()} - {str}:
            raise ValueError(f"a part of the key {it.key} is no text")
        for file in it.files:
            if (
                [type(value) for value in file] != [str, int, str, bool, int]
                or file.size_bytes < 0
                or not re.fullmatch("[0-9a-f]{64}", file.sha256)
                or entries_of(it.cache, file.path).kind in LOCAL_KINDS
            ):
                raise ValueError(
                    f"{file.path!r:.300} is a lock or unfinished, or is not described as a file"
                )
    for name in names:
        encoded = os.fsencode(name)
        odd = [it for it in encoded.split(b"/") if it in (b"", b".", b"..") or len(it) > 255]
        if odd or _CONTROL.search(name) or len(encoded) > MAX_PATH_BYTES:
            raise ValueError(f"{name!r:.300} is no path that a bundle may have")
    above = {name[: slash.start()] for name in names for slash in re.finditer("/", name)}
    twice = len(set(names)) < len(names) or not above.isdisjoint(names)
    if twice or len({it.cache for it in manifest.caches}) < len(manifest.caches):
        raise ValueError("it describes a cache or a file twice, or a file as a directory")


def files_below(root: str, below: str = "") -> Iterator[str]:
    """The paths of the regular files below a directory, from there.

    Raises `UsageError` for links and for what belongs to another user.
    """
    path = os.path.join(root, below)
    try:
        status = os.lstat(path)
        names = sorted(os.listdir(path)) if stat.S_ISDIR(status.st_mode) else []
    except FileNotFoundError:
        return
    link = stat.S_ISLNK(status.st_mode)
    if link or status.st_uid != os.geteuid():
        what = "is a link" if link else "belongs to another user"
        raise UsageError(f"{path} {what}; xlaunch cache verify --fix removes it")
    if stat.S_ISREG(status.st_mode):
        yield below
    for name in names:
        yield from files_below(root, os.path.join(below, name))


def _copy_cache(directory: CacheDirectory, copies: str, left_out: list[str]) -> BundledCache:
    """Copy the files of a cache, without locks and what is not complete yet."""
    parts = directory.parts()
    if parts is None:
        raise UsageError(
            f"{directory.record} is missing or damaged, so it is unknown what {directory.path} is "
            "valid for; launch a program that uses it, which writes the record again"
        )
    files = []
    for relative in files_below(directory.path):
        entries = entries_of(directory.cache, relative)
        if entries.kind in LOCAL_KINDS:
            continue
        if _CONTROL.search(relative):
            left_out.append(os.path.join(directory.path, relative))
            continue
        with contextlib.suppress(FileNotFoundError):
            file = _copy(directory.path, relative, copies, entries.format)
            if file is None:
                left_out.append(os.path.join(directory.path, relative))
            else:
                files.append(file)
    return BundledCache(directory.cache, directory.key, parts, tuple(files))


def _copy(root: str, relative: str, copies: str, form: Format) -> File | None:
    """Copy a file into the directory `copies`, named by its SHA-256. None: it is damaged or changes."""
    new = os.path.join(copies, "copy")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    for _ in range(_READ_ATTEMPTS):
        descriptor = os.open(os.path.join(root, relative), flags)
        with open(descriptor, "rb") as stream, open(new, "w+b") as copy:
            before = os.fstat(descriptor)
            shutil.copyfileobj(stream, copy)
            size, modified_ns = copy.tell(), os.fstat(descriptor).st_mtime_ns
            copy.seek(0)
            digest = hashlib.file_digest(copy, "sha256").hexdigest()
            copy.seek(0)
            damaged = formats.damage(copy, form) is not None
        if not damaged and (size, modified_ns) == (before.st_size, before.st_mtime_ns):
            os.rename(new, os.path.join(copies, digest))
            executable = bool(before.st_mode & stat.S_IXUSR)
            return File(relative, size, digest, executable, modified_ns)
    return None


def _write(place: str, manifest: Manifest, copies: str, sign: str | None) -> None:
    """Write a bundle from the files that `_copy` has made, and move it to `place`."""
    caches = [
        it._asdict() | {"files": [file._asdict() for file in it.files]} for it in manifest.caches
    ]
    # Version 0.1 requires "warm".
    own = manifest._asdict() | {"caches": caches, "warm": {}}
    data = json.dumps({"schema_version": SCHEMA_VERSION, **own}, indent=1).encode()
    if len(data) > MAX_MANIFEST_BYTES:
        raise UsageError(f"{len(manifest.members)} files are too many for a bundle; see --only")
    first = {MANIFEST: data}
    if sign is not None:
        first[SIGNATURE] = bundle_signature.sign(data, sign)
    for name, data in first.items():
        write_whole(os.path.join(copies, name), data)
    members = [(name, name) for name in first]
    members += [(name, file.sha256) for name, file in manifest.members]
    mode = _MODES.get(os.path.splitext(place)[1], "w")
    whole = os.path.join(copies, "bundle")
    with tarfile.open(whole, mode, format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        for name, copied in members:
            with open(os.path.join(copies, copied), "rb") as stream:
                header = tarfile.TarInfo(name)
                header.size = os.fstat(stream.fileno()).st_size
                tar.addfile(header, stream)
    os.replace(whole, place)
