# SPDX-License-Identifier: Apache-2.0
"""Names a model by its code, its attributes and its weights: equal for equal models in any process.

Code that is installed counts by its package's version, any other by the bytecode of the functions that the
model's classes have and call. What cannot be followed, such as a function that is looked up by a computed
name, is not part of it; so kept code is compared with the model at its first call in each process, too.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import enum
import hashlib
import importlib.metadata
import operator
import os
import re
import sys
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import torch

from xruntime.kept.held_values import VALUES, buffer_content, is_installed, is_same, parts_of
from xruntime.kept.watched_state import HOOKS, WatchedState
from xruntime.kept.weights_digest import weights_digest
from xruntime.pytrees import CONSTANT_TYPES

MAX_DEPTH: Final = 12
"""Maximum depth of plain objects whose attributes are read."""

MAX_HELD: Final = 256
"""Maximum number of values that are compared of each global variable, because it is done in each call."""

_PLAIN: Final = tuple(CONSTANT_TYPES)
_OWN: Final = frozenset(vars(torch.nn.Module())) - {"training"}
"""Torch's own attributes of a module."""


class Fingerprint(NamedTuple):
    """A model's name, and what its code reads outside of it."""

    digits: str
    """32 hexadecimal digits."""

    read: tuple[Variable, ...]
    """Global variables, and variables of the program's classes."""

    unfollowed: str | None
    """What of it can change without being noticed, for a message; None if everything is followed."""


class Variable(NamedTuple):
    """Something outside of the model that its code reads."""

    name: str
    get: Callable[[], Any]
    value: Any
    watched: WatchedState | None
    """What it holds; None where its identity tells all."""

    @staticmethod
    def of(name: str, get: Callable[[], Any]) -> Variable:
        value = get()
        plain = isinstance(value, (*_PLAIN, *_FUNCTIONS, type, types.ModuleType))
        watched = None if plain else WatchedState(value, max_values=MAX_HELD)
        return Variable(name, get, value, watched)

    @staticmethod
    def of_function(function: types.FunctionType) -> Variable:
        """Its code, and what it keeps between calls."""
        get = partial(_OF_FUNCTION, function)
        return Variable(function.__name__, get, get(), WatchedState(function, max_values=MAX_HELD))


def changed_variable(variables: Iterable[Variable]) -> str | None:
    """Return the name of one that has another value now; None if none has."""
    for variable in variables:
        now = variable.get()
        if not is_same(now, variable.value):
            return variable.name
        if variable.watched is not None and variable.watched.change() is not None:
            return variable.name
    return None


def variables_of(
    model: torch.nn.Module, forward: Any, hooks: Iterable[Any] = ()
) -> tuple[Variable, ...]:
    """Return what a model that is called by `forward` reads beside it, and these of its own hooks."""
    return tuple(_facts_of(model, forward, *hooks)[0].read)


def _facts_of(model: torch.nn.Module, *functions: Any) -> tuple[_Facts, list[str]]:
    facts = _Facts()
    facts.add_model(model)
    hooks = [hook for part in model.modules() if part is not model for hook in hooks_of(part)]
    for function in (*functions, *hooks):
        facts.follow(function)
        facts.follow(type(function))
    return facts, facts.lines()


def fingerprint(model: torch.nn.Module, forward: Any, *others: str) -> Fingerprint:
    """Return the fingerprint of a model that is called by `forward`, and of other facts."""
    digest = hashlib.sha256()
    facts, lines = _facts_of(model, forward)
    for line in (*others, *lines):
        digest.update(line.encode(errors="surrogatepass"))
        digest.update(b"\0")
    digest.update(weights_digest([*model.parameters(), *model.buffers()]))
    names = [it.name for it in facts.read if it.watched and it.watched.unfollowed]
    name = facts.ambient or next(iter(names), None)
    unfollowed = None if name is None else f"it reads {name}, whose changes are not followed"
    return Fingerprint(digest.hexdigest()[:32], tuple(facts.read), unfollowed)


def hooks_of(part: torch.nn.Module) -> list[Any]:
    """Return what a call of a module runs besides its forward."""
    return [hook for kind in HOOKS for hook in vars(part)[kind].values()]


def stored_tensor(variables: Iterable[Variable]) -> str | None:
    """Return the name of one that has another floating-point tensor now, or holds one that it did not hold."""
    for it in variables:
        now = it.get()
        is_tensor = isinstance(now, torch.Tensor) and now.is_floating_point()
        if (is_tensor and now is not it.value) or (it.watched and it.watched.new_tensor(now)):
            return it.name
    return None


def lost_in_copy(model: torch.nn.Module, copy: torch.nn.Module) -> str | None:
    """Return what a class that says how its objects are copied has left out of a copy, or changed in it."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        return None  # these differ, and nothing of them is compiled
    own = _Facts(), _Facts()
    for facts, each in zip(own, (model, copy), strict=True):
        facts.add_model(each)
    pairs = zip_longest(*[facts.lines_of_model() for facts in own], fillvalue="")
    return next((line.strip(".") for line, other in pairs if line != other), None)


class _Facts:
    """Lines about a model's modules and the functions that they may call."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._code: dict[str, None] = {}
        self._numbers: dict[int, tuple[int, Any]] = {}
        """The objects that were visited, by their ids."""

        self._followed: set[int] = set()
        self._variables: set[tuple[int, str]] = set()
        """Those that were added, by the ids of their modules and their names."""

        self._texts: dict[str, None] = {}
        """Words that code has in quotes, and that may be names of variables of the environment."""

        self._words: set[str] = set()
        """Names in code."""

        self._modules: list[types.ModuleType] = []
        """Those of the program that an object or a variable refers to."""

        self.ambient: str | None = None
        """What code reads of the world around the program, such as a clock or a file."""

        self._tensors: list[torch.Tensor] = []
        self._waiting: list[Any] = []
        self.read: list[Variable] = []

    def lines(self) -> list[str]:
        """Return all lines: those of the modules in order, and those of code sorted."""
        while self._waiting or self._modules:
            if not self._waiting:
                self._add_variables(vars(self._modules.pop()), (), self._words)
                continue
            followed = self._waiting.pop()
            if id(followed) not in self._followed:
                self._followed.add(id(followed))
                (self._add_class if isinstance(followed, type) else self._add_function)(followed)
        names = self._texts if _ENVIRONMENT & self._words else ()
        read = {f"os.environ[{name!r}]": partial(os.environ.get, name) for name in names}
        if "argv" in self._words:
            read["sys.argv"] = partial(getattr, sys, "argv")
        for name, get in read.items():
            self.read.append(variable := Variable.of(name, get))
            self._code[f"{name}={variable.value!r}"] = None
        for name in OF_TENSORS.keys() & self._words:
            self.read.append(Variable.of(name, partial(_of_all, OF_TENSORS[name], self._tensors)))
        return self.lines_of_model() + [_ADDRESS.sub("", line) for line in sorted(self._code)]

    def lines_of_model(self) -> list[str]:
        """Return the lines about the model that was added, without the code that it may run."""
        return [_ADDRESS.sub("", line) for line in self._lines]

    def add_model(self, model: torch.nn.Module) -> None:
        """Add the attributes of each module, and the properties of each tensor without its values."""
        self._tensors += [*model.parameters(), *model.buffers()]
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
        elif isinstance(value, types.ModuleType) and self._is_new(value):
            self._modules += [] if self._is_installed(value.__name__) else [value]

    def _is_new(self, value: Any) -> bool:
        count = len(self._numbers)
        return self._numbers.setdefault(id(value), (count, value))[0] == count

    def _add_value(self, name: str, value: Any, depth: int) -> None:
        """Add the value of an attribute. An opaque object counts by its class."""
        if isinstance(value, VALUES):
            self._lines.append(f"{name}={_text(value)}")
            if not isinstance(value, enum.Enum):
                return
        if isinstance(value, torch.Tensor):
            content = weights_digest([value]).hex()
            self._lines.append(f"{name}={_tensor_facts(value)} {content}")
            return
        self.follow(value)
        self.follow(type(value))
        # Methods of C classes have a name, and no module.
        is_named = all(hasattr(value, attribute) for attribute in ("__qualname__", "__module__"))
        kind = value if callable(value) and is_named else type(value)
        self._lines.append(f"{name}: {kind.__module__}.{kind.__qualname__}")
        if depth == MAX_DEPTH or not self._is_new(value):
            return
        if isinstance(value, (set, frozenset)):
            inner = [(str(at), it) for at, it in enumerate(sorted(map(repr, value)))]
        else:
            held = parts_of(value)
            inner = [] if held is None else held.values
            array = buffer_content(value)
            if array is not None:
                self._lines.append(f"{name}: {hashlib.sha256(array).hexdigest()}")
        for key, item in inner:
            if not key.startswith("_xruntime"):
                self._add_value(f"{name}.{key}", item, depth + 1)

    def _add_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if not self._is_installed(base.__module__):
                for name, value in vars(base).items():
                    self._add_global(f"{base.__qualname__}.{name}", value)
                    if not name.startswith("__") or isinstance(value, types.FunctionType):
                        self.read.append(Variable.of(name, partial(vars(base).get, name)))

    def _add_function(self, function: types.FunctionType) -> None:
        if self._is_installed(function.__module__ or ""):
            return
        name = function.__qualname__
        self._code[f"{name}: {_code_text(function.__code__)}"] = None
        self.read.append(Variable.of_function(function))
        given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for at, value in enumerate(given):
            self._add_global(f"{name} default {at}", value)
        for at, cell in enumerate(function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # it is empty
                self._add_global(f"{name} closure {at}", cell.cell_contents)
        codes = list(_codes(function.__code__))
        words = dict.fromkeys(name for code in codes for name in code.co_names)
        names = dict.fromkeys(name for code in codes for name in _global_names(code))
        constants = [text for code in codes for text in code.co_consts if isinstance(text, str)]
        texts = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", " ".join(constants)))
        self._texts |= dict.fromkeys(filter(str.isupper, texts))
        space = function.__globals__
        if not (_LOOKUPS | _GLOBAL_LOOKUPS).isdisjoint(words):
            words |= texts
        self._words |= words.keys()
        if not is_installed(space.get("__name__", "")):  # that of a wrapper says so
            clock = space.get("time", time) in (time, time.time) and "time" in names
            self.ambient = "time" if clock else min(words.keys() & _AMBIENT, default=self.ambient)
        package = space.get("__package__") or ""
        imported = [sys.modules.get(name) for word in words for name in (word, f"{package}.{word}")]
        missing = [name for name in names if name not in space]
        imports_itself = any(vars(module) is space for module in imported if module is not None)
        if imports_itself or not _GLOBAL_LOOKUPS.isdisjoint(words):
            names |= words
        for name in missing:  # later ones, and what a program adds to Python's own
            get = partial(_global_value, space, name)
            if not isinstance(get(), (type, types.BuiltinFunctionType)):
                self.read.append(Variable.of(name, get))
                self._add_global(name, get())
        self._add_variables(space, imported, words, names)

    def _add_variables(
        self,
        space: dict[str, Any],
        imported: Iterable[Any],
        words: Collection[str],
        names: Collection[str] | None = None,
    ) -> None:
        """Add the variables with names among these words: global ones, and those of the program's other modules that
        are among them or that a function imports. `names`: of the global ones, if not all.
        """
        words = [*words, "__getattr__"]  # a module may have one
        waiting, entered = [("", space, words if names is None else names)], {id(space)}

        def enter(module: Any) -> None:
            if not isinstance(module, types.ModuleType) or id(vars(module)) in entered:
                return
            entered.add(id(vars(module)))
            if not self._is_installed(module.__name__):
                waiting.append((f"{module.__name__}.", vars(module), words))

        for module in imported:
            enter(module)
        while waiting:
            prefix, space, read = waiting.pop()
            for word in read:
                if word in space and (id(space), word) not in self._variables:
                    self._variables.add((id(space), word))
                    self.read.append(Variable.of(word, partial(space.get, word)))
                    self._add_global(f"{prefix}{word}", space[word])
                enter(space.get(word))

    def _add_global(self, name: str, value: Any) -> None:
        """Add what a function may use besides its arguments."""
        self.follow(value)
        of_python = name.rpartition(".")[2].startswith("__") and not isinstance(value, _PLAIN)
        if of_python or name.endswith(_UNRELATED) or isinstance(value, types.ModuleType):
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


_ADDRESS: Final = re.compile(" at 0x[0-9a-f]+")

_FUNCTIONS: Final = (
    *(types.FunctionType, types.BuiltinFunctionType),
    *(staticmethod, classmethod, property),
)
_OF_FUNCTION: Final = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")

_LOOKUPS: Final = frozenset(("getattr", "attrgetter", "methodcaller"))
"""Names in code that looks up attributes by text."""

_GLOBAL_LOOKUPS: Final = frozenset(
    ("globals", "vars", "eval", "__dict__", "import_module", "__import__", "modules")
)
"""Names in code that may look up global variables by text."""

_AMBIENT: Final = frozenset(
    (
        *("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time_ns"),
        *("process_time", "now", "utcnow", "today", "current_thread", "get_ident", "getpid"),
        *("getcwd", "open", "read_text", "read_bytes"),
    )
)
"""Names in code that reads a clock, a file, or what differs between threads and processes."""

_ENVIRONMENT: Final = frozenset(("environ", "getenv"))
OF_TENSORS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "requires_grad": operator.attrgetter("requires_grad"),
    "grad": operator.attrgetter("_grad"),  # the other one warns
}
"""What changes in a model's tensors without a change of their values, by the name that code reads it by."""

_UNRELATED: Final = ("__doc__", "__module__", "__qualname__", "__firstlineno__", "__file__")


def _text(value: Any) -> str:
    # Where a model was loaded from differs between machines.
    is_path = isinstance(value, (str, PurePath)) and os.path.isabs(value)
    return "a path" if is_path else repr(value)


def _tensor_facts(tensor: torch.Tensor | None) -> str:
    return "none" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"


def _code_text(code: types.CodeType) -> str:
    """A description of a function's code, without its place in the file."""

    def text(constant: Any) -> str:
        if isinstance(constant, types.CodeType):
            return _code_text(constant)
        is_set = isinstance(constant, frozenset)  # in another order in each process
        return f"{sorted(map(repr, constant))}" if is_set else repr(constant)

    constants = list(map(text, code.co_consts))
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _global_names(code: types.CodeType) -> Iterator[str]:
    """The names that code reads as global variables, or imports."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"):
            yield step.argval


def _global_value(space: dict[str, Any], name: str) -> Any:
    return space.get(name, vars(builtins).get(name))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _of_all(get: Callable[[Any], Any], tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    return tuple(map(get, tensors))


def _version(top: str) -> str:
    version = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
