# SPDX-License-Identifier: Apache-2.0
"""Import bundles: check a whole bundle in a staging directory, then move its files into place.

Existing files are never replaced, links never followed, and no more is read than the manifest
announces, however far a compressed file might expand.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, cast

from xlaunch.cache import bundle, contents, store
from xlaunch.cache.contents import ImportedFile
from xlaunch.cache.formats import relocate
from xlaunch.cache.staging import staging_directory
from xlaunch.cache.store import CacheDirectory, Hardware, Key, Packages, differences, key_of
from xlaunch.cache.table import BY_NAME, Format, Part
from xlaunch.errors import UsageError
from xlaunch.files import make_private, open_input
from xlaunch.text import printable

MAX_SIGNATURE_BYTES = 1 << 16

_ORDER = (Format.ELF, Format.ANY, Format.LOCK, Format.JSON, Format.PICKLE)
"""Code comes before files that name it. Nearly all programs compile again if the code is absent, but
versions of Triton before 3.9 fail if a kernel's description is there without its code."""

_DAMAGE = (ValueError, EOFError, RecursionError, tarfile.TarError, zlib.error, gzip.BadGzipFile)


class ImportResult(NamedTuple):
    added: int
    kept: int
    """Files of the bundle that were not added, because others are in their place."""
    size_bytes: int
    """Total size of the added files."""
    caches: tuple[CacheDirectory, ...]
    signer: str | None
    """The signer's identity; None if no signature was required."""


def import_bundle(
    base: str,
    path: str,
    hardware: Hardware,
    packages: Packages,
    *,
    allowed_signers: str | None = None,
    force: bool = False,
    max_bytes: int | None = None,
) -> ImportResult:
    """Add the files of a bundle to the caches below `base`; existing files are kept.

    Nothing is added unless the whole bundle is intact, nor if a signal ends the process. A SIGKILL leaves only
    whole files, and a second import adds the others. `allowed_signers`: a file as in ssh-keygen(1), one of
    whose keys must have signed. `force`: import what was made for another machine, environment or C library, too.
    `max_bytes`: the size limit of the caches, which a bundle may not exceed. Raises `UsageError`.
    """
    base = os.path.abspath(base)
    try:
        _require_usable(base)
        with open_input(path) as file:
            with _damage_as_error(path):
                reader = _Reader(file)
                caches, signer = _read_manifest(reader, allowed_signers)
            keys = {
                cache.cache: key_of(BY_NAME[cache.cache], hardware, packages) for cache in caches
            }
            if not force:
                _check_keys(caches, keys, path)
            directories = [store.directory_of(base, keys[cache.cache]) for cache in caches]
            make_private(base)
            with staging_directory(base) as (staging, signals):
                _require_usable(base, directories)
                _check_room(base, sum([cache.size_bytes for cache in caches]), path, max_bytes)
                with signals.interruptible(), _damage_as_error(path):
                    staged = [
                        _stage(reader, cache, staging, directory)
                        for cache, directory in zip(caches, directories, strict=True)
                    ]
                    reader.end()
                sizes = []
                for cache, files in zip(caches, staged, strict=True):
                    directory = store.begin_use(base, keys[cache.cache])
                    sizes += _place(directory, files, f"{staging}/{cache.cache}")
    except OSError as error:
        name = path if error.filename is None else error.filename
        raise UsageError(f"{name!r} cannot be read or written: {error.strerror}") from None
    kept = sum([len(cache.files) for cache in caches]) - len(sizes)
    return ImportResult(len(sizes), kept, sum(sizes), tuple(directories), signer)


def _require_usable(base: str, directories: Sequence[CacheDirectory] = ()) -> None:
    """Raise `UsageError` for directories that others can write, and for links in them."""
    refusal = store.why_unusable(base, directories)
    if refusal is not None:
        raise UsageError(refusal)
    for directory in directories:
        list(bundle.files_below(directory.path))


class _Header(tarfile.TarInfo):
    """Accepts headers of regular files and of long names only: tarfile reads others' data into memory.

    tarfile of every Python version calls this private method for each header. Some, such as 3.12.3 of
    Ubuntu 24.04, no longer call the public `frombuf`.
    """

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        name = self.type == tarfile.GNUTYPE_LONGNAME and self.size <= bundle.MAX_PATH_BYTES + 1
        if self.size < 0 or not (name or self.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
            raise ValueError(f"it contains {self.name!r:.300}, which is not a regular file")
        return super()._proc_member(tar)  # type: ignore[misc]


@contextlib.contextmanager
def _damage_as_error(path: str) -> Iterator[None]:
    """Raise `UsageError` if the block finds damage in the bundle at `path`."""
    try:
        yield
    except _DAMAGE as error:
        reason = printable(str(error))
        raise UsageError(
            f"{path} is not a bundle of xlaunch, or is damaged: {reason}; nothing was imported"
        ) from None


class _Reader:
    """Reads the members of a bundle in their order. Its methods raise the errors in `_DAMAGE`."""

    def __init__(self, file: io.BufferedReader) -> None:
        start = file.peek(2)
        self._stream: IO[bytes] = file
        if start.startswith(b"\x1f\x8b"):
            self._stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file))
        options: dict[str, Any] = {"tarinfo": _Header, "encoding": "utf-8"}
        self._tar = tarfile.open(fileobj=self._stream, mode="r|", **options)  # noqa: SIM115
        self._member = self._tar.next()

    @property
    def name(self) -> str | None:
        """The name of the next member; None at the end."""
        return None if self._member is None else self._member.name

    def copy(self, name: str, target: IO[bytes], max_bytes: int) -> None:
        """Copy the content of the next member, which must have this name."""
        content = None if self._member is None else self._tar.extractfile(self._member)
        if self._member is None or content is None or self.name != name:
            raise ValueError(f"it contains {self.name!r:.300} where {name!r:.300} should be")
        if self._member.size > max_bytes:
            raise ValueError(f"it has {self._member.size} bytes of {name!r:.300}, not {max_bytes}")
        shutil.copyfileobj(content, target)
        self._member = self._tar.next()

    def end(self) -> None:
        """Check that only padding follows, and the checksum of compressed data."""
        padding = self._stream.read(2 * tarfile.RECORDSIZE)
        if self.name is not None or any(padding) or len(padding) == 2 * tarfile.RECORDSIZE:
            raise ValueError(f"it goes on after the last file in its {bundle.MANIFEST}")


def _read_manifest(
    reader: _Reader, allowed_signers: str | None
) -> tuple[tuple[bundle.BundledCache, ...], str | None]:
    """Read the manifest; return its caches, and the signer if one is required."""
    content, signature, signer = io.BytesIO(), io.BytesIO(), None
    reader.copy(bundle.MANIFEST, content, bundle.MAX_MANIFEST_BYTES)
    if reader.name == bundle.SIGNATURE:
        reader.copy(bundle.SIGNATURE, signature, MAX_SIGNATURE_BYTES)
    if allowed_signers is not None:
        signer = bundle.verify_manifest(content.getvalue(), signature.getvalue(), allowed_signers)
    return bundle.decode(content.getvalue()), signer


def _check_keys(caches: Sequence[bundle.BundledCache], keys: Mapping[str, Key], path: str) -> None:
    """Raise `UsageError` unless the caches of a bundle are valid for the `keys` of this machine."""
    reasons = []
    for cache in caches:
        own, theirs = dict(keys[cache.cache].parts), dict(cache.parts)
        # Libraries linked against glibc 2.31 run with 2.36, not the other way round.
        names = [parts.get(Part.C_LIBRARY, "") for parts in (theirs, own)]
        matches = [re.fullmatch(r"glibc ([0-9]{1,9})\.([0-9]{1,9})", name) for name in names]
        versions = [(int(match[1]), int(match[2])) for match in matches if match is not None]
        if len(versions) == 2 and versions == sorted(versions):
            theirs[Part.C_LIBRARY] = own[Part.C_LIBRARY]
        lines = differences(own, theirs)
        if lines:
            reasons.append(f"{cache.cache}: {'; '.join(lines)}")
    if reasons:
        raise UsageError(
            f"{path} was made for something else (first this machine, then the bundle): "
            f"{printable(' | '.join(reasons))}; export it on a machine like this one, or import it "
            "nevertheless with --force"
        )


def _check_room(base: str, needed: int, path: str, max_bytes: int | None) -> None:
    """Raise `UsageError` if `needed` bytes exceed the size limit or the free disk space."""
    if max_bytes is not None and needed > max_bytes:
        raise UsageError(
            f"{path} contains {needed} bytes, and caches are kept within {max_bytes}; "
            "XLAUNCH_CACHE_MAX_SIZE allows more"
        )
    space = os.statvfs(base)
    free = space.f_bavail * space.f_frsize
    if needed > free:
        raise UsageError(
            f"{path} contains {needed} bytes, and {base} has room for {free}; free some with "
            "xlaunch cache prune, or use another --cache-dir"
        )


def _stage(
    reader: _Reader, bundled: bundle.BundledCache, staging: str, directory: CacheDirectory
) -> dict[str, ImportedFile]:
    """Copy the files of a cache to `staging`, with the content that they will have in `directory`."""
    staged = {}
    for name, file in zip(bundled.names, bundled.files, strict=True):
        path = os.path.join(staging, bundled.cache, file.path)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(path, "xb") as copy:
            os.fchmod(copy.fileno(), 0o700 if file.executable else 0o600)
            reader.copy(name, copy, file.size_bytes)
        if _sha256(path) != file.sha256:
            raise ValueError(f"{name!r:.300} is not what its {bundle.MANIFEST} says (SHA-256)")
        relocate(path, os.path.join(directory.path, file.path))
        # With a time in the future, ninja and the pruner would not see later changes.
        now_ns = time.time_ns()
        os.utime(path, ns=(now_ns, min(max(file.modified_ns, 0), now_ns)))
        staged[file.path] = ImportedFile(_sha256(path), os.stat(path).st_mtime_ns)
    return staged


def _sha256(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _place(directory: CacheDirectory, files: Mapping[str, ImportedFile], staging: str) -> list[int]:
    """Move staged files to places that are free; return the sizes of the moved files."""
    descriptor = store.hold(directory)
    try:
        new = _choose(directory, files)
        # The record comes first, so that a kill leaves no file without its SHA-256.
        contents.write_imported(
            directory, contents.read_imported(directory) | {path: files[path] for path in new}
        )
        sizes = {path: os.path.getsize(os.path.join(staging, path)) for path in new}
        return [sizes[p] for p in new if _put(os.path.join(staging, p), directory.path, p)]
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _choose(directory: CacheDirectory, files: Mapping[str, ImportedFile]) -> list[str]:
    """The paths of the files to add, in the order in which to move them."""
    existing = set(bundle.files_below(directory.path))
    same = set()
    for path in existing.intersection(files):
        with contextlib.suppress(FileNotFoundError):
            if _sha256(os.path.join(directory.path, path)) == files[path].sha256:
                same.add(path)
    different = {contents.unit_of(directory.cache, path) for path in existing - same}
    new = [
        file
        for file in files
        if file not in existing and contents.unit_of(directory.cache, file) not in different
    ]
    return sorted(
        new,
        key=lambda path: (_ORDER.index(contents.entries_of(directory.cache, path).format), path),
    )


def _put(staged: str, directory: str, path: str) -> bool:
    """Move a file to `path` in `directory`; False if something has that name."""
    *parents, name = path.split("/")
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(store.open_below(directory, *parents, make=True))
        except OSError as error:
            raise UsageError(
                f"{directory}/{path} cannot be used: {error.filename!r} in it is not a directory, or is a "
                f"link ({error.strerror}); xlaunch cache verify --fix removes links"
            ) from None
        try:
            os.link(staged, name, dst_dir_fd=descriptor, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            # If a program creates the same file between these two lines, it is replaced.
            if name in os.listdir(descriptor):
                return False
            os.rename(staged, name, dst_dir_fd=descriptor)
    return True
