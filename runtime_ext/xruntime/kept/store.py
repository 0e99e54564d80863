# SPDX-License-Identifier: Apache-2.0
"""The cache directory of compiled code: one directory for each model, form of call and pattern of sizes.

An entry is a directory ``<fingerprint><pattern>/`` with ``model.so`` and ``description.json``. It is made under
another name and renamed, so it is whole or absent. Where code cannot be compiled, the entry has only the
description, with the reason. ``<name>.lock`` is locked by the process that compiles.
Entries of ``weights-`` are those of `kept_weights`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from xlaunch.cache.store import PARTIAL
from xlaunch.cache.table import KEEP_NOTHING
from xlaunch.cache.use import check_directory, own_directory
from xlaunch.errors import UsageError
from xlaunch.files import locked, make_temporary, names_in, remove_dead, temporary_path

if TYPE_CHECKING:
    from xruntime.kept.calls import Pattern

VARIABLE: Final = "XRUNTIME_CACHE_DIR"
"""The variable that names the directory; with 0, nothing is kept."""

CACHE: Final = "optimized"
"""The cache's name in ``xlaunch cache ls``."""

ROOM_BYTES: Final = 64 << 20
"""Free disk space that keeping code needs, in addition to twice the size of the weights."""


class CodeStore:
    """Kept code below `path`; `temporary` says that nothing is kept, and why."""

    def __init__(self, path: str, temporary: str | None = None) -> None:
        self.path = path
        self.temporary = temporary

    def name_of(self, fingerprint: str, pattern: Pattern) -> str:
        """Return the name of an entry."""
        return fingerprint + hashlib.sha256(repr(pattern.dims).encode()).hexdigest()[:16]

    def names(self, fingerprint: str) -> list[str]:
        """Return the names of the model's entries, the latest first."""
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            dated = [
                (entry.stat(follow_symlinks=False).st_mtime, entry.name)
                for entry in entries
                if entry.name.startswith(fingerprint) and entry.is_dir(follow_symlinks=False)
            ]
            return [name for _, name in sorted(dated, reverse=True)]
        return []

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry of any model."""
        return all(name.startswith(".") for name in names_in(self.path))

    def remove(self, name: str) -> None:
        """Remove an entry, ignoring files that cannot be removed."""
        shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)

    @contextlib.contextmanager
    def locked(self, name: str, waiting: Callable[[int], None]) -> Iterator[None]:
        """Hold the entry's lock during the block; other processes that would compile it wait.

        `waiting`: locks the open file in a process that waits. Raises OSError.
        """
        path = os.path.join(self.path, f"{name}.lock")
        with locked(path, waiting=waiting), _unfinished(path):
            yield

    @contextlib.contextmanager
    def partial(self) -> Iterator[str]:
        """Make a private directory for unfinished work, and remove what is left there. Raises OSError."""
        path = tempfile.mkdtemp(prefix=f"{PARTIAL}{os.getpid()}-", dir=self.path)
        with _unfinished(path):
            yield path

    def add(self, partial: str, name: str) -> None:
        """Give finished work its name. Raises OSError."""
        with contextlib.suppress(OSError):
            os.rename(partial, os.path.join(self.path, name))
            return
        self.remove(name)  # one that could not be used
        os.rename(partial, os.path.join(self.path, name))


_paths: Final[set[str]] = set()
"""What the end of the program removes: unfinished work, and temporary stores."""


@contextlib.contextmanager
def _unfinished(path: str) -> Iterator[None]:
    """Remove a file or a directory after the block, or at the program's end if that comes first."""
    _paths.add(path)
    try:
        yield
    finally:
        _remove(path)
        _paths.discard(path)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _remove_unfinished() -> None:
    for path in list(_paths):
        _remove(path)


# Runs after the exit handler of `compile_queue`, which is registered later and ends the processes that write there.
atexit.register(_remove_unfinished)
os.register_at_fork(after_in_child=_paths.clear)


def open_store(temporary: str | None = None) -> CodeStore:
    """Return the store of this process: in the cache directory, or temporary for the reason that is given."""
    if temporary is not None:
        return _temporary(temporary)
    return _opened(os.environ.get(VARIABLE, ""))


@functools.cache
def _opened(given: str) -> CodeStore:
    if given == KEEP_NOTHING:
        return _temporary(f"{VARIABLE}=0")
    try:
        if given:
            check_directory(given)
            os.makedirs(given, mode=0o700, exist_ok=True)
            path = given
        else:
            path = own_directory(CACHE, os.environ, _versions()).path
        with tempfile.TemporaryFile(dir=path):
            pass  # it can be written
    except OSError as error:
        return _temporary(f"{error.filename or given}: {error.strerror}")
    except UsageError as error:
        return _temporary(str(error))
    return CodeStore(path)


@functools.cache
def _temporary(reason: str) -> CodeStore:
    base = tempfile.gettempdir()
    remove_dead(base)
    path = temporary_path("xruntime-optimize", base)
    make_temporary(path)  # the lock is held until this process and its forks have ended
    _paths.add(path)
    return CodeStore(path, temporary=reason)


def store_for(model: nn.Module) -> CodeStore:
    """Return the store that has room for this model."""
    store = open_store()
    if store.temporary is None:
        free = shutil.disk_usage(store.path).free
        if free < 2 * weight_bytes(model) + ROOM_BYTES:
            return open_store(temporary=f"{store.path} has only {free >> 20} MiB left")
    return store


def weight_bytes(model: nn.Module) -> int:
    """Return the memory of parameters and buffers; memory that several share counts once."""
    storages = {}
    tensors: list[Any] = [*model.parameters(), *model.buffers()]
    while tensors:
        tensor = tensors.pop()
        if is_traceable_wrapper_subclass(tensor):  # quantized weights: several tensors hold them
            tensors += [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        elif tensor.device.type == "cpu" and tensor.layout.__str__() == "torch.strided":
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _versions() -> dict[str, str]:
    versions = {}
    for name in ("torch", "xlaunch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
