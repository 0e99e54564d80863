# SPDX-License-Identifier: Apache-2.0
"""Import bundles: check all of one in a staging directory, then put its files in place one by one.

Files that are there are never replaced, links never followed, and never more is read than the manifest
announces, however far a compressed file might expand.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple, cast

from xlaunch.cache import bundle, bundle_signature
from xlaunch.cache.directories import (
    CacheDirectory,
    begin_use,
    check_base,
    check_below,
    directory_of,
    hold,
)
from xlaunch.cache.imported import ImportedFile, read_imported, write_imported
from xlaunch.cache.key import Hardware, Key, Packages, differences, key_of
from xlaunch.cache.relocation import relocate
from xlaunch.cache.staging import staging_directory
from xlaunch.cache.table import BY_NAME, Format, Part
from xlaunch.cache.usage import entries_of, unit_of
from xlaunch.errors import UsageError
from xlaunch.machine.c_library import glibc_version
from xlaunch.ownership import make_private

MAX_SIGNATURE_BYTES = 1 << 16

_ORDER = (Format.ELF, Format.ANY, Format.LOCK, Format.JSON, Format.PICKLE)
"""Code before what names it. Nearly all programs compile again what is named and absent, but versions of
Triton before 3.9 fail where the description of a kernel is there and its code is not."""

_DAMAGE = (
    ValueError,
    EOFError,
    RecursionError,
    tarfile.TarError,
    zlib.error,
    gzip.BadGzipFile,
)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Imported(NamedTuple):
    """What `import_bundle` has done."""

    added: int
    kept: int
    """Files of the bundle that were not added because something is in their place."""
    size_bytes: int
    """Of the files that were added."""
    caches: tuple[CacheDirectory, ...]
    signer: str | None
    """Who has signed, if that was to be checked."""


def import_bundle(
    base: str,
    path: str,
    hardware: Hardware,
    packages: Packages,
    *,
    allowed_signers: str | None = None,
    force: bool = False,
    max_bytes: int | None = None,
) -> Imported:
    """Add the files of a bundle to the caches below `base`; what is there stays.

    Nothing is added unless all of the bundle is intact. A kill at any moment leaves only whole files,
    and a second import adds the others. `allowed_signers`: a file as in ssh-keygen(1), one of whose keys
    must have signed. `force`: import what was made for another machine, environment or C library, too.
    `max_bytes`: the size that the caches are kept within, which a bundle may not exceed. Raises
    `UsageError`.
    """
    base = os.path.abspath(base)
    try:
        refusal = check_base(base)
        if refusal is not None:
            raise UsageError(refusal)
        with open(path, "rb") as file:
            with _damage_as_error(path):
                reader = _Reader(file)
                manifest, signer = _read_manifest(reader, allowed_signers)
            keys = _keys(manifest, path, hardware, packages, force=force)
            directories = {name: directory_of(base, key) for name, key in keys.items()}
            make_private(base)
            with staging_directory(base) as staging:
                _check_target(base, directories, manifest, path, max_bytes)
                staged = {}
                with _damage_as_error(path):
                    for it in manifest.caches:
                        staged[it.cache] = _stage(reader, it, staging, directories[it.cache])
                    reader.end()
                sizes = []
                for name, files in staged.items():
                    sizes += _place(begin_use(base, keys[name]), files, f"{staging}/{name}")
    except OSError as error:
        what = error.filename or path
        raise UsageError(f"{what} cannot be read or written: {error.strerror}") from None
    kept = len(manifest.members) - len(sizes)
    return Imported(len(sizes), kept, sum(sizes), tuple(directories.values()), signer)


class _Header(tarfile.TarInfo):
    """Lets nothing through but regular files and their names: tarfile reads others into memory whole.

    Every Python's tarfile calls this method for each header. It is private, but some, such as 3.12.3 of
    Ubuntu 24.04, no longer call the public `frombuf`.
    """

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        name = self.type == tarfile.GNUTYPE_LONGNAME and self.size <= bundle.MAX_PATH_BYTES + 1
        if self.size < 0 or not (name or self.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
            raise ValueError(f"it contains {self.name!r:.300}, which is no regular file")
        return super()._proc_member(tar)  # type: ignore[misc]


@contextlib.contextmanager
def _damage_as_error(path: str) -> Iterator[None]:
    """Raise `UsageError` for what is found wrong in the block with the bundle at `path`."""
    try:
        yield
    except _DAMAGE as error:
        what = _printable(str(error))
        raise UsageError(
            f"{path} is no bundle of xlaunch, or is damaged: {what}; nothing was imported"
        ) from None


def _printable(text: str) -> str:
    return "".join([c if c.isprintable() else "?" for c in text])


class _Reader:
    """The members of a bundle, one after the other. Its methods raise what is in `_DAMAGE`."""

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
        """Check that nothing but padding follows, and the checksum of what is compressed."""
        rest = self._stream.read(2 * tarfile.RECORDSIZE)
        if self.name is not None or any(rest) or len(rest) == 2 * tarfile.RECORDSIZE:
            raise ValueError(f"it goes on after the last file in its {bundle.MANIFEST}")


def _read_manifest(
    reader: _Reader, allowed_signers: str | None
) -> tuple[bundle.Manifest, str | None]:
    """The manifest, and its signer if that is to be checked."""
    content, signature, signer = io.BytesIO(), io.BytesIO(), None
    reader.copy(bundle.MANIFEST, content, bundle.MAX_MANIFEST_BYTES)
    if reader.name == bundle.SIGNATURE:
        reader.copy(bundle.SIGNATURE, signature, MAX_SIGNATURE_BYTES)
    if allowed_signers is not None:
        signer = bundle_signature.verify(content.getvalue(), signature.getvalue(), allowed_signers)
    return bundle.decode(content.getvalue()), signer


def _keys(
    manifest: bundle.Manifest, path: str, hardware: Hardware, packages: Packages, *, force: bool
) -> Mapping[str, Key]:
    """The key that each cache in the bundle has on this machine."""
    keys = {it.cache: key_of(BY_NAME[it.cache], hardware, packages) for it in manifest.caches}
    reasons = []
    for it in manifest.caches:
        own_parts = dict(keys[it.cache].parts)
        # An older C library will do, see below; bundles of version 0.1 do not name theirs here.
        own_parts.pop(Part.C_LIBRARY.value, None)
        parts = {name: text for name, text in it.parts.items() if name != Part.C_LIBRARY.value}
        lines = differences(own_parts, parts)
        if lines:
            reasons.append(f"{it.cache}: {'; '.join(lines)}")
    own, theirs = glibc_version(), None
    if manifest.glibc is not None:
        theirs = tuple([int(number) for number in manifest.glibc.split(".")])[:2]
    if (own is None) != (theirs is None) or (own and theirs and theirs > own):
        shown = ["not glibc" if it is None else ".".join(map(str, it)) for it in (own, theirs)]
        reasons.append(f"C library: {'; '.join(shown)}")
    if reasons and not force:
        raise UsageError(
            f"{path} was made for something else (first this machine, then the bundle): "
            f"{_printable(' | '.join(reasons))}; export it on a machine like this one, or import it "
            "nevertheless with --force"
        )
    return keys


def _check_target(
    base: str,
    directories: Mapping[str, CacheDirectory],
    manifest: bundle.Manifest,
    path: str,
    max_bytes: int | None,
) -> None:
    """Raise `UsageError` where files must not be put, or there is no room for them."""
    for place in [it.path for it in directories.values()]:
        refusal = check_below(base, place)
        if refusal is not None:
            raise UsageError(refusal)
        list(bundle.files_below(place))
    needed, space = manifest.size_bytes, os.statvfs(base)
    if max_bytes is not None and needed > max_bytes:
        raise UsageError(
            f"{path} contains {needed} bytes, and caches are kept within {max_bytes}; "
            "XLAUNCH_CACHE_MAX_SIZE allows more"
        )
    free = space.f_bavail * space.f_frsize
    if needed > free:
        raise UsageError(
            f"{path} contains {needed} bytes, and {base} has room for {free}; free some with "
            "xlaunch cache prune, or use another --cache-dir"
        )


def _stage(
    reader: _Reader, bundled: bundle.BundledCache, staging: str, directory: CacheDirectory
) -> dict[str, ImportedFile]:
    """Copy the files of a cache to `staging`, as they are going to be in `directory`; by their paths."""
    found = {}
    for file in bundled.files:
        name = f"{bundled.cache}/{bundled.key}/{file.path}"
        path = os.path.join(staging, bundled.cache, file.path)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(path, "xb") as copy:
            os.fchmod(copy.fileno(), 0o700 if file.executable else 0o600)
            reader.copy(name, copy, file.size_bytes)
        if _sha256(path) != file.sha256:
            raise ValueError(f"{name!r:.300} is not what its {bundle.MANIFEST} says (SHA-256)")
        relocate(path, os.path.join(directory.path, file.path))
        # A time to come would keep ninja, and the pruner, from ever seeing a change.
        now_ns = time.time_ns()
        os.utime(path, ns=(now_ns, min(max(file.modified_ns, 0), now_ns)))
        found[file.path] = ImportedFile(_sha256(path), os.stat(path).st_mtime_ns)
    return found


def _sha256(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _place(directory: CacheDirectory, files: Mapping[str, ImportedFile], staging: str) -> list[int]:
    """Move what is staged to its place, unless something is there; the sizes of what was moved."""
    descriptor = hold(directory)
    try:
        new = _choose(directory, files)
        # The record comes first, so that a kill leaves no file without its SHA-256.
        write_imported(directory, read_imported(directory) | {path: files[path] for path in new})
        sizes = {path: os.path.getsize(os.path.join(staging, path)) for path in new}
        return [sizes[it] for it in new if _put(os.path.join(staging, it), directory.path, it)]
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
    different = {unit_of(directory.cache, path) for path in existing - same}
    new = [
        it for it in files if it not in existing and unit_of(directory.cache, it) not in different
    ]
    return sorted(new, key=lambda it: (_ORDER.index(entries_of(directory.cache, it).format), it))


def _put(staged: str, directory: str, path: str) -> bool:
    """Move a file to `path` in `directory`; False where something has that name."""
    parent, name = os.path.split(path)
    descriptor = _open_below(directory, parent)
    try:
        os.link(staged, name, dst_dir_fd=descriptor, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        # Between these two a program may write the same entry, which is then replaced by ours.
        if name in os.listdir(descriptor):
            return False
        os.rename(staged, name, dst_dir_fd=descriptor)
    finally:
        os.close(descriptor)
    return True


def _open_below(directory: str, path: str) -> int:
    """Open the directory `path` in `directory`; make what is absent, and follow no links."""
    here = os.open(directory, _DIRECTORY)
    for part in path.split("/") if path else ():
        above = here
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=above)
            here = os.open(part, _DIRECTORY, dir_fd=above)
        except OSError as error:
            raise UsageError(
                f"{directory}/{path} cannot be used: {part!r} in it is no directory, or a link "
                f"({error.strerror}); xlaunch cache verify --fix removes links"
            ) from None
        finally:
            os.close(above)
    return here
