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
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from xlaunch.cache.store import PARTIAL
from xlaunch.cache.table import KEEP_NOTHING
from xlaunch.cache.use import check_directory, own_directory
from xlaunch.errors import UsageError
from xlaunch.files import locked, make_temporary, names_in, remove_dead, temporary_path
from xruntime.aoti.inputs import Inputs, InputSpec
from xruntime.aoti.package_file import check_machine, check_trusted
from xruntime.aoti.runners import CRunner
from xruntime.errors import PackageError
from xruntime.kept.calls import Nest, Pattern, ServedSizes, Sizes

VARIABLE: Final = "XRUNTIME_CACHE_DIR"
"""The variable that names the directory; with 0, nothing is kept."""

CACHE: Final = "optimized"
"""The cache's name in ``xlaunch cache ls``."""

MAX_SUITABLE: Final = 4096
"""Maximum number of remembered sizes of checked tensors."""

LIBRARY: Final = "model.so"
DESCRIPTION: Final = "description.json"


class NotCompiledError(Exception):
    """There is no library. `final`: another attempt would fail, too."""

    def __init__(self, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.final = final


class Library:
    """A loaded library. Called with the tensors of a call; returns the tensors of its outputs.

    `written`: what `write_description` wrote.
    """

    def __init__(self, directory: str, written: dict[str, Any], runners: int) -> None:
        self.name = os.path.basename(directory)
        """The name of its entry."""

        self.sizes = ServedSizes(written["dims"], written["ranges"], written["conditions"])
        self.seconds = written["seconds"]
        """How long compiling took."""

        self.kept = True
        """Whether an earlier process compiled it."""

        self.outputs: Nest | None = None
        """The nest of its outputs, once they were compared with the model's."""

        self.compared: set[Sizes] = set()
        """Sizes of calls on which it was compared with the model."""

        self.compared_contexts: set[tuple[Any, ...]] = set()
        """Contexts of calls on which it was compared, see `FlatCall`."""

        inputs = written["inputs"]
        specs = None if inputs is None else tuple([spec and _read(spec) for spec in inputs])
        self._runner = CRunner(os.path.join(directory, LIBRARY), runners, directory)
        self._inputs = Inputs(self._runner.input_form, specs)
        self._suitable: set[Sizes] = set()
        """Sizes for which tensors were checked before; they are not checked again."""

    def __call__(self, tensors: list[torch.Tensor], sizes: Sizes | None = None) -> Any:
        """Raises PackageInputError for tensors of another layout; PackageError if the code fails.

        `sizes`: those of a `flat_call` of the form that the code is for. They decide alone whether its tensors
        suit, so these are checked once.
        """
        if sizes not in self._suitable:
            given, tensors = tensors, self._inputs.of_call(tuple(tensors), {})
            unchanged = all(one is other for one, other in zip(given, tensors, strict=True))
            if sizes is not None and unchanged and len(self._suitable) < MAX_SUITABLE:
                self._suitable.add(sizes)
        return self._runner.run(tensors)

    @property
    def is_running(self) -> bool:
        """Whether some thread runs the code."""
        return self._runner.is_running


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

    def load(self, name: str, *, runners: int) -> Library:
        """Load an entry. Raises FileNotFoundError without one, NotCompiledError for one that says why there is no
        code, and PackageError, OSError, ValueError, KeyError or TypeError for one that cannot be used.
        """
        directory = os.path.join(self.path, name)
        os.lstat(directory)
        check_trusted(directory)
        path = os.path.join(directory, DESCRIPTION)
        check_trusted(path)
        with open(path, encoding="utf-8") as stream:
            written = json.load(stream)
        if "refused" in written:
            raise NotCompiledError(str(written["refused"]), final=True)
        check_machine(written["machine"], directory)
        library = os.path.join(directory, LIBRARY)
        check_trusted(library)
        if os.stat(library).st_size != written["bytes"]:  # loading half a library crashes
            raise PackageError(f"{library} is not whole")
        with contextlib.suppress(OSError):  # for the pruner: this entry was used now
            os.utime(path)
        return Library(directory, written, runners)

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


def write_description(
    directory: str, sizes: ServedSizes, specs: Any, machine: dict[str, str], seconds: float
) -> None:
    """Write what `CodeStore.load` reads. Raises OSError."""
    inputs = specs and [
        spec
        and [
            str(spec.dtype).removeprefix("torch."),
            spec.dims,
            *[sorted(numbers.items()) for numbers in spec[2:]],
        ]
        for spec in specs
    ]
    written = {
        "dims": sizes.dims,
        "ranges": sizes.ranges,
        "conditions": sizes.conditions,
        "inputs": inputs,
        "machine": machine,
        "bytes": os.stat(os.path.join(directory, LIBRARY)).st_size,
        "seconds": round(seconds, 1),
    }
    _write(directory, written)


def write_refusal(directory: str, reason: str) -> None:
    """Write why there is no code. Raises OSError."""
    _write(directory, {"refused": reason})


def _write(directory: str, written: dict[str, Any]) -> None:
    with open(os.path.join(directory, DESCRIPTION), "w", encoding="utf-8") as stream:
        json.dump(written, stream, indent=1)


def _read(spec: Any) -> InputSpec:
    dtype, dims, sizes, strides = spec
    return InputSpec(getattr(torch, dtype), dims, dict(sizes), dict(strides))


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


def _versions() -> dict[str, str]:
    versions = {}
    for name in ("torch", "xlaunch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
