# SPDX-License-Identifier: Apache-2.0
"""Bundles: caches in one file, to start warm on another machine of the same kind.

A bundle is a tar, plain or compressed by gzip, whose first member lists all the others:

    manifest.json                       schema_version, created, caches
    manifest.json.sig                   its signature, if it was signed
    inductor/torch2.13.0-.../24/c24.so  the files, in the order of the manifest

Programs run the files of a bundle as code after it is imported; a signature says who made it.
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
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from subprocess import CompletedProcess
from typing import Any, NamedTuple

from xlaunch.cache import formats
from xlaunch.cache.contents import LOCAL_KINDS, entries_of
from xlaunch.cache.staging import HeldSignals
from xlaunch.cache.store import CacheDirectory, hold, why_unusable
from xlaunch.cache.table import BY_NAME, Format
from xlaunch.errors import UsageError
from xlaunch.files import (
    OutputKind,
    check_output,
    is_special_file,
    open_input,
    remove_dead,
    replace,
    temporary_directory,
    write_whole,
)
from xlaunch.ownership import inspect_ownership
from xlaunch.text import printable

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
WHOLE = "bundle"
MAX_PATH_BYTES = 1024
MAX_MANIFEST_BYTES = 32 << 20
"""Enough for a hundred thousand files. Parsing other JSON may need twenty times as much memory."""

NAMESPACE = "xlaunch-cache"
"""Signatures for another namespace are refused."""

TIMEOUT_S = 60
"""For one call of ssh-keygen; a hardware key may wait for a touch."""

_PROMPTS = ("SSH_ASKPASS", "DISPLAY", "WAYLAND_DISPLAY")

_READ_ATTEMPTS = 3
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that end a line or move a terminal's cursor."""


class File(NamedTuple):
    path: str
    """Relative to the directory of its cache."""
    size_bytes: int
    sha256: str
    executable: bool
    modified_ns: int


class BundledCache(NamedTuple):
    """The files of one cache, as the manifest lists them."""

    cache: str
    key: str
    parts: Mapping[str, str]
    files: tuple[File, ...]

    @property
    def size_bytes(self) -> int:
        return sum([file.size_bytes for file in self.files])

    @property
    def names(self) -> list[str]:
        """The names of the files in the tar."""
        return [f"{self.cache}/{self.key}/{file.path}" for file in self.files]


class ExportResult(NamedTuple):
    path: str
    files: int
    size_bytes: int
    """Before compression."""
    weights_bytes: int
    """Of the caches that contain weights of models."""
    left_out: tuple[str, ...]
    """Files that are damaged, changed at each attempt to read them, or have control characters in their
    names. Locks and unfinished files are not listed."""


def _is_bundle(head: bytes) -> bool:
    """Whether an archive begins as ours do, with the manifest."""
    try:
        start = zlib.decompressobj(wbits=31).decompress(head, 2 * tarfile.BLOCKSIZE)
    except zlib.error:
        start = head[: 2 * tarfile.BLOCKSIZE]
    try:
        member = tarfile.TarInfo.frombuf(start[: tarfile.BLOCKSIZE], "utf-8", "strict")
    except (tarfile.TarError, ValueError):
        return False
    return member.name == MANIFEST and b'"schema_version"' in start[tarfile.BLOCKSIZE :]


BUNDLE = OutputKind("a bundle of caches", _is_bundle)


def export(
    base: str,
    directories: Sequence[CacheDirectory],
    path: str,
    *,
    sign: str | None = None,
    force: bool = False,
) -> ExportResult:
    """Write caches below `base`, at most one directory of each, to the file `path`, whole or not at all.

    Its name ends in ``.tar``, or if it is to be compressed in ``.tar.gz`` or ``.tgz``. `sign`: path of a
    private SSH key to sign it with. `force`: it may replace any file but that key. Raises `UsageError`.
    """
    if len({directory.cache for directory in directories}) < len(directories):
        raise UsageError("a bundle holds one directory of each cache; export the others separately")
    if is_special_file(path):
        raise UsageError(f"{path} is not a regular file; name a file to write or to replace")
    if not path.endswith((".tar", ".tar.gz", ".tgz")):
        raise UsageError(
            f"{path!r}: the name of a bundle ends in .tar, .tar.gz or .tgz; write caches.tar.gz"
        )
    above = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(above):
        raise UsageError(f"{path}: the directory {above} does not exist")
    inputs = () if sign is None else (sign,)
    check_output(path, BUNDLE, option="", force=force, inputs=inputs)
    left_out: list[str] = []
    try:
        refusal = why_unusable(base, directories)
        if refusal is not None:
            raise UsageError(refusal)
        with contextlib.ExitStack() as stack:
            for directory in directories:
                descriptor = hold(directory)
                if descriptor is not None:
                    stack.callback(os.close, descriptor)
            signals = stack.enter_context(HeldSignals())
            remove_dead(above)
            copies = stack.enter_context(temporary_directory(".xlaunch-export", above))
            with signals.interruptible():
                caches = [_copy_cache(directory, copies, left_out) for directory in directories]
                _write(path, caches, copies, sign)
                check_output(path, BUNDLE, option="", force=force, inputs=inputs)
                replace(os.path.join(copies, WHOLE), os.path.realpath(path))
    except OSError as error:
        of_cache = str(error.filename).startswith(os.path.join(base, ""))
        problem = f"{error.filename} cannot be read" if of_cache else f"{path} cannot be written"
        raise UsageError(f"{problem}: {error.strerror}") from None
    files = sum([len(cache.files) for cache in caches])
    weights_bytes = sum([cache.size_bytes for cache in caches if BY_NAME[cache.cache].weights])
    size_bytes = sum([cache.size_bytes for cache in caches])
    return ExportResult(path, files, size_bytes, weights_bytes, tuple(left_out))


def decode(data: bytes) -> tuple[BundledCache, ...]:
    """Read ``manifest.json``. Raises ValueError if anything in it is not as `export` writes it."""
    try:
        content = json.loads(data)
        if content["schema_version"] != SCHEMA_VERSION:
            version = content["schema_version"]
            raise ValueError(
                f"schema version {version!r:.80} is not {SCHEMA_VERSION}: "
                "another version of xlaunch exported it"
            )
        caches = []
        for listed in content["caches"]:
            files = tuple([File(**file) for file in listed["files"]])
            caches.append(BundledCache(listed["cache"], listed["key"], listed["parts"], files))
        _check(caches)
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its {MANIFEST} is not valid: {type(error).__name__} {error}") from None
    return tuple(caches)


def _check(caches: Sequence[BundledCache]) -> None:
    """Raise ValueError unless `export` could have written this; TypeError for values of other types."""
    for cache in caches:
        if cache.cache not in BY_NAME or not re.fullmatch(
            r"[\w+-][\w+.-]{0,199}", cache.key, re.ASCII
        ):
            name = f"{cache.cache}/{cache.key}"
            raise ValueError(f"{name!r:.300} is not a cache that this xlaunch knows")
        if {type(text) for text in cache.parts.values()} - {str}:
            raise ValueError(f"a part of the key {cache.key} is not text")
        for file in cache.files:
            if (
                [type(value) for value in file] != [str, int, str, bool, int]
                or file.size_bytes < 0
                or not re.fullmatch("[0-9a-f]{64}", file.sha256)
                or entries_of(cache.cache, file.path).kind in LOCAL_KINDS
            ):
                raise ValueError(
                    f"{file.path!r:.300} is a lock or unfinished, or is not described as a file"
                )
    names = [name for cache in caches for name in cache.names]
    for name in names:
        encoded = os.fsencode(name)
        odd = [p for p in encoded.split(b"/") if p in (b"", b".", b"..") or len(p) > 255]
        if odd or _CONTROL.search(name) or len(encoded) > MAX_PATH_BYTES:
            raise ValueError(f"{name!r:.300} is not a path that a bundle may have")
    above = {name[: slash.start()] for name in names for slash in re.finditer("/", name)}
    twice = len(set(names)) < len(names) or not above.isdisjoint(names)
    if twice or len({cache.cache for cache in caches}) < len(caches):
        raise ValueError("it describes a cache or a file twice, or a file as a directory")


def files_below(root: str, below: str = "") -> Iterator[str]:
    """The paths of the regular files below a directory, relative to it.

    Raises `UsageError` for links and for files of another user.
    """
    path = os.path.join(root, below)
    try:
        status = os.lstat(path)
        names = sorted(os.listdir(path)) if stat.S_ISDIR(status.st_mode) else []
    except FileNotFoundError:
        return
    link = stat.S_ISLNK(status.st_mode)
    if link or status.st_uid != os.geteuid():
        reason = "is a link" if link else "belongs to another user"
        raise UsageError(f"{path} {reason}; xlaunch cache verify --fix removes it")
    if stat.S_ISREG(status.st_mode):
        yield below
    for name in names:
        yield from files_below(root, os.path.join(below, name))


def _copy_cache(directory: CacheDirectory, copies: str, left_out: list[str]) -> BundledCache:
    """Copy the files of a cache, without locks and unfinished files."""
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
        with contextlib.suppress(FileNotFoundError):
            file = None
            if not _CONTROL.search(relative):
                file = _copy(directory.path, relative, copies, entries.format)
            if file is None:
                left_out.append(os.path.join(directory.path, relative))
            else:
                files.append(file)
    return BundledCache(directory.cache, directory.key, parts, tuple(files))


def _copy(root: str, relative: str, copies: str, form: Format) -> File | None:
    """Copy a file to `copies`, named by its SHA-256. None if it is damaged or keeps changing."""
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


def _write(path: str, caches: Iterable[BundledCache], copies: str, sign: str | None) -> None:
    """Write a bundle for `path` from the files that `_copy` has made, beside them."""
    listed = [
        cache._asdict() | {"files": [file._asdict() for file in cache.files]} for cache in caches
    ]
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    manifest = {"schema_version": SCHEMA_VERSION, "created": created, "caches": listed}
    data = json.dumps(manifest, indent=1).encode()
    if len(data) > MAX_MANIFEST_BYTES:
        raise UsageError("these are too many files for a bundle; see --only")
    first = {MANIFEST: data}
    if sign is not None:
        first[SIGNATURE] = _sign_manifest(data, sign)
    for name, data in first.items():
        write_whole(os.path.join(copies, name), data)
    members = [(name, name) for name in first]
    for cache in caches:
        members += zip(cache.names, [file.sha256 for file in cache.files], strict=True)
    whole = os.path.join(copies, WHOLE)
    mode: Any = "w" if path.endswith(".tar") else "w:gz"
    with tarfile.open(whole, mode, format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        for name, copied in members:
            with open(os.path.join(copies, copied), "rb") as stream:
                header = tarfile.TarInfo(name)
                header.size = os.fstat(stream.fileno()).st_size
                tar.addfile(header, stream)


def _sign_manifest(data: bytes, key: str) -> bytes:
    """Sign by ``ssh-keygen -Y`` with the key in the file `key`, or its copy in the agent. Raises `UsageError`."""
    done = _ssh_keygen("sign", "-f", os.path.abspath(key), "-n", NAMESPACE, data=data)
    if done.returncode != 0:
        raise UsageError(
            f"--sign {key!r}: ssh-keygen cannot sign with it: {_reason(done)}; name the file of a "
            "private key without a passphrase, or add the key to the SSH agent"
        )
    return done.stdout


def verify_manifest(data: bytes, signature: bytes, allowed_signers: str) -> str:
    """Return the identity in the file `allowed_signers` whose key has signed. Raises `UsageError`."""
    option = f"--allowed-signers {allowed_signers!r}"
    try:
        open_input(allowed_signers).close()
    except OSError as error:
        raise UsageError(f"{option} cannot be read: {error.strerror}") from None
    trusted = inspect_ownership(allowed_signers)
    shared = trusted.refusal or trusted.note
    if shared:
        raise UsageError(f"{option}: others could add a key to it: {shared}")
    if not signature:
        raise UsageError(f"{option}: the bundle is not signed")
    with tempfile.TemporaryFile() as file:
        file.write(signature)
        file.flush()
        descriptor = file.fileno()
        key = ("-f", os.path.abspath(allowed_signers), "-s", f"/proc/self/fd/{descriptor}")
        done = listing = _ssh_keygen("find-principals", *key, inherited=descriptor)
        words = listing.stdout.decode(errors="replace").replace(",", "\n").splitlines()
        for identity in [word for word in words if word and not word.startswith("!")]:
            done = _ssh_keygen(
                "verify", *key, "-I", identity, "-n", NAMESPACE, data=data, inherited=descriptor
            )
            if done.returncode == 0:
                return identity
    reason = _reason(done)
    if listing.returncode != 0 and "principal" in reason:
        reason = "its key is not in that file"
    raise UsageError(f"{option}: the bundle is not signed by one of them: {reason}")


def _ssh_keygen(
    action: str, *arguments: str, data: bytes = b"", inherited: int | None = None
) -> CompletedProcess[bytes]:
    # In a new session there is no terminal at which it could ask for a passphrase.
    # One without a name, as of `env =x`, cannot be passed on.
    environment = {n: value for n, value in os.environ.items() if n and n not in _PROMPTS}
    environment |= {"SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", action, *arguments],
            input=data,
            capture_output=True,
            env=environment,
            start_new_session=True,
            pass_fds=() if inherited is None else (inherited,),
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        problem = "ssh-keygen, which signs and checks bundles, is not installed"
        raise UsageError(f"{problem}; install OpenSSH's client (Debian: openssh-client)") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"ssh-keygen -Y {action} did not end within {TIMEOUT_S} s") from None


def _reason(done: CompletedProcess[bytes]) -> str:
    """The last line of its messages, with unprintable characters replaced."""
    text = (done.stderr or done.stdout).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip("@ \t\r")]
    # It prompts even where it cannot be answered.
    return printable(
        lines[-1].removeprefix("Enter passphrase: ") if lines else f"exit code {done.returncode}"
    )
