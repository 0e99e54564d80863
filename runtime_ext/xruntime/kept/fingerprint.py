# SPDX-License-Identifier: Apache-2.0
"""Names a model by its code, its attributes and its weights: equal for equal models in any process.

Code that is installed counts by its package's version, any other by the bytecode of the functions that the
model's classes have and call. What cannot be followed, such as a function that is looked up by a computed
name, is not part of it; so kept code is compared with the model at its first call in each process, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import torch

from xruntime.kept.held_values import inner_values, is_installed
from xruntime.kept.watched_state import WatchedState

CHUNK_BYTES: Final = 16 << 20
"""Weights are hashed in pieces of this size, by as many threads as torch has."""

MAX_DEPTH: Final = 12
"""Maximum depth of plain objects whose attributes are read."""

MAX_HELD: Final = 256
"""Maximum number of values that are compared of each global variable, because it is done in each call."""

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_OWN: Final = frozenset(vars(torch.nn.Module())) - {"training"}
"""Torch's own attributes of a module."""


class Fingerprint(NamedTuple):
    """A model's name, and what its code reads outside of it."""

    digits: str
    """32 hexadecimal digits."""

    read: tuple[_Variable, ...]
    """Global variables, and variables of the program's classes."""

    def changed(self) -> str | None:
        """Return the name of a variable that has another value now; None if none has."""
        for space, name, value, watched in self.read:
            now = space.get(name)
            plain = isinstance(value, _PLAIN) and type(now) is type(value)
            if now is not value and not (plain and now == value):
                return name
            if watched is not None and watched.change() is not None:
                return name
        return None


class _Variable(NamedTuple):
    """A variable outside of the model that its code reads."""

    space: Mapping[str, Any]
    name: str
    value: Any
    watched: WatchedState | None
    """What it holds; None where its identity tells all."""

    @staticmethod
    def of(space: Mapping[str, Any], name: str, value: Any) -> _Variable:
        plain = isinstance(value, (*_PLAIN, type, types.ModuleType, types.BuiltinFunctionType))
        watched = None if plain else WatchedState(value, max_values=MAX_HELD)
        return _Variable(space, name, value, watched)


def fingerprint(model: torch.nn.Module, forward: Any, *others: str) -> Fingerprint:
    """Return the fingerprint of a model that is called by `forward`, and of other facts."""
    digest = hashlib.sha256()
    facts = _Facts()
    facts.add_model(model)
    facts.follow(forward)
    for line in (*others, *facts.lines()):
        digest.update(line.encode(errors="surrogatepass"))
        digest.update(b"\0")
    digest.update(weights_digest([*model.parameters(), *model.buffers()]))
    return Fingerprint(digest.hexdigest()[:32], tuple(facts.read))


def weights_digest(tensors: Iterable[torch.Tensor]) -> bytes:
    """Return a hash of what the tensors hold. Equal memory is hashed once."""
    pieces: dict[tuple[int, int], None] = {}
    kept = []  # copies whose memory must live until it has been hashed
    for given in tensors:
        tensor = given
        if given.layout is not torch.strided or not _is_dense(given):
            tensor = given.to_dense().contiguous()
            kept.append(tensor)
        size = tensor.numel() * tensor.element_size()
        start = tensor.data_ptr()
        for offset in range(0, size, CHUNK_BYTES):
            pieces[start + offset, min(CHUNK_BYTES, size - offset)] = None

    def digest(piece: tuple[int, int]) -> bytes:
        start, size = piece
        # hashlib releases the GIL.
        return hashlib.sha256((ctypes.c_char * size).from_address(start)).digest()

    whole = hashlib.sha256()
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for piece_digest in pool.map(digest, pieces):
            whole.update(piece_digest)
    return whole.digest()


def _is_dense(tensor: torch.Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense(tensor) or not tensor.numel()


class _Facts:
    """Lines about a model's modules and the functions that they may call."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._code: dict[str, None] = {}
        self._numbers: dict[int, tuple[int, Any]] = {}
        """The objects that were visited, by their ids."""

        self._followed: set[int] = set()
        self._waiting: list[Any] = []
        self.read: list[_Variable] = []

    def lines(self) -> list[str]:
        """Return all lines: those of the modules in order, and those of code sorted."""
        while self._waiting:
            followed = self._waiting.pop()
            if id(followed) not in self._followed:
                self._followed.add(id(followed))
                (self._add_class if isinstance(followed, type) else self._add_function)(followed)
        return [*self._lines, *sorted(self._code)]

    def add_model(self, model: torch.nn.Module) -> None:
        """Add the attributes of each module, and the properties of each tensor without its
        values.
        """
        for part in model.modules():
            self._is_new(part)
        described: set[int] = set()
        for name, part in model.named_modules(remove_duplicate=False):
            self.follow(type(part))
            number, _ = self._numbers[id(part)]
            self._lines.append(f"{name}: {type(part).__qualname__} {number} {part.training}")
            if number not in described:
                described.add(number)
                for kind in ("_parameters", "_buffers"):
                    for key, tensor in vars(part)[kind].items():
                        self._lines.append(f"{name}.{key}: {_tensor_facts(tensor)}")
                for key, value in vars(part).items():
                    if key not in _OWN and not key.startswith("_xruntime"):
                        self._add_value(f"{name}.{key}", value, 0)

    def follow(self, value: Any) -> None:
        """Add the code of a function or a class."""
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            value = value.__func__
        if isinstance(value, property):
            self._waiting += [
                function for function in (value.fget, value.fset) if function is not None
            ]
        elif isinstance(value, (type, types.FunctionType)):
            self._waiting.append(value)

    def _is_new(self, value: Any) -> bool:
        count = len(self._numbers)
        return self._numbers.setdefault(id(value), (count, value))[0] == count

    def _add_value(self, name: str, value: Any, depth: int) -> None:
        """Add the value of an attribute. An opaque object counts by its class."""
        if isinstance(value, _PLAIN):
            self._lines.append(f"{name}={_text(value)}")
            return
        if isinstance(value, torch.Tensor):
            content = weights_digest([value]).hex()
            self._lines.append(f"{name}={_tensor_facts(value)} {content}")
            return
        self.follow(value)
        # Methods of C classes have a name, and no module.
        is_named = all(hasattr(value, it) for it in ("__qualname__", "__module__"))
        kind = value if callable(value) and is_named else type(value)
        self._lines.append(f"{name}: {kind.__module__}.{kind.__qualname__}")
        if depth == MAX_DEPTH or not self._is_new(value):
            return
        if isinstance(value, (set, frozenset)):
            inner = [(str(at), it) for at, it in enumerate(sorted(map(repr, value)))]
        else:
            inner = inner_values(value) or []
        for key, item in inner:
            if not key.startswith("_xruntime"):
                self._add_value(f"{name}.{key}", item, depth + 1)

    def _add_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if not self._is_installed(base.__module__):
                for name, value in vars(base).items():
                    self._add_global(f"{base.__qualname__}.{name}", value)
                    if not (name.startswith("__") or isinstance(value, _FUNCTIONS)):
                        self.read.append(_Variable.of(vars(base), name, value))

    def _add_function(self, function: types.FunctionType) -> None:
        if self._is_installed(function.__module__ or ""):
            return
        name = function.__qualname__
        self._code[f"{name}: {_code_text(function.__code__)}"] = None
        given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for at, value in enumerate(given):
            self._add_global(f"{name} default {at}", value)
        for at, cell in enumerate(function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # it is empty
                self._add_global(f"{name} closure {at}", cell.cell_contents)
        words = dict.fromkeys(_names(function.__code__))
        for word in words:
            if word not in function.__globals__:
                continue
            value = function.__globals__[word]
            self.read.append(_Variable.of(function.__globals__, word, value))
            self._add_global(word, value)
            if isinstance(value, types.ModuleType) and not self._is_installed(value.__name__):
                for attribute in words:
                    self._add_global(f"{word}.{attribute}", vars(value).get(attribute))

    def _add_global(self, name: str, value: Any) -> None:
        """Add what a function may use besides its arguments."""
        self.follow(value)
        if isinstance(value, _PLAIN) and not name.endswith(_UNRELATED):
            self._code[f"{name}={_text(value)}"] = None
            return
        if isinstance(value, torch.Tensor):
            self._code[f"{name}: {_tensor_facts(value)} {weights_digest([value]).hex()}"] = None
            return
        if name.rpartition(".")[2].startswith("__") or isinstance(value, types.ModuleType):
            return
        count = len(self._lines)
        self._add_value(name, value, 0)
        self._code.update(dict.fromkeys(self._lines[count:]))
        del self._lines[count:]

    def _is_installed(self, module: str) -> bool:
        """Whether a module belongs to an installed package; its version is recorded."""
        if not is_installed(module):
            return False
        top = module.partition(".")[0]
        if top not in sys.stdlib_module_names:
            self._code[f"package {top} {_version(top)}"] = None
        return True


_FUNCTIONS: Final = (types.FunctionType, staticmethod, classmethod, property)
_UNRELATED: Final = ("__doc__", "__module__", "__qualname__", "__firstlineno__", "__file__")


def _text(value: Any) -> str:
    # Where a model was loaded from differs between machines.
    return "a path" if isinstance(value, str) and os.path.isabs(value) else repr(value)


def _tensor_facts(tensor: torch.Tensor | None) -> str:
    return "none" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"


def _code_text(code: types.CodeType | None) -> str:
    """A description of a function's code, without its place in the file."""
    if code is None:
        return ""
    constants = [
        _code_text(constant) if isinstance(constant, types.CodeType) else repr(constant)
        for constant in code.co_consts
        if not isinstance(constant, frozenset)
    ]
    sets = [
        sorted(map(repr, constant))
        for constant in code.co_consts
        if isinstance(constant, frozenset)
    ]
    return f"{code.co_code.hex()} {constants} {sets} {code.co_names} {code.co_varnames}"


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _version(top: str) -> str:
    version = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
