# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libxkernels.so, once, when it is first needed.

The library is built with the package if there is GCC. XRUNTIME_KERNELS=PATH names another build, for
example one with sanitizers. XKERNELS_ISA=NAME names the instruction set that its operators run on, in
place of the best one that the CPU supports.

Its functions are called in three ways. `library()` releases the GIL around each call, for functions that
run a parallel region. `quick_library()` keeps the GIL, for functions that return at once, where
releasing it would cost more than the call. `mailbox_functions` avoids ctypes, which takes longer than a
mailbox operation. A post also keeps the GIL so that the worker which it wakes does not stop the submitter
before its wait.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from xruntime.errors import KernelsUnavailableError

ABI_VERSION = 5
"""The XK_ABI_VERSION of xkernels.h that this package uses."""

LIBRARY_NAME = "libxkernels.so"
LIBRARY_VARIABLE = "XRUNTIME_KERNELS"
ISA_VARIABLE = "XKERNELS_ISA"

_HOW_TO_GET_IT = (
    "Install GCC (Debian and Ubuntu: apt-get install g++), then xlaunch again,"
    " from its sources: pip install --force-reinstall --no-deps ."
)


INVALID_ARGUMENT = -1
"""XK_INVALID_ARGUMENT: an argument violates the contract; nothing was done."""
REFUSED = -2
"""XK_REFUSED: the system refused; `ctypes.get_errno()` has the reason."""
CLOSED = -3
"""XK_CLOSED: the mailbox is closed and empty."""
INTERRUPTED = -4
"""XK_INTERRUPTED: a signal was handled meanwhile; call again."""
TIMED_OUT = -5
"""XK_TIMED_OUT: the timeout has passed."""
NO_ISA = -6
"""XK_NO_ISA: the operators have no instruction set to run on; `isa_name` raises the reason."""


class ArgumentProblem(enum.IntEnum):
    """What operators return for a wrong argument; nothing was done. XK_... of xkernels/library.h."""

    INVALID_TYPE = -10
    INVALID_SIZE = -11
    INVALID_POINTER = -12
    INVALID_MODE = -13
    INVALID_INDEX = -14
    INVALID_FIRST_OFFSET = -15
    DECREASING_OFFSET = -16
    LARGE_OFFSET = -17
    INVALID_LAST_OFFSET = -18
    INVALID_IMAGE = -19
    NO_PIXELS = -20
    INVALID_GROUPS = -21
    INVALID_ORDER = -22
    INVALID_PROBABILITY = -23


def check(result: int, refusal: Callable[[ArgumentProblem], Exception]) -> None:
    """Raise what an operator's function has returned, if it is not 0.

    `refusal`: returns the error of a wrong argument, with the values that the code does not have.

    Raises KernelsUnavailableError, MemoryError.
    """
    if result == 0:
        return
    if result == NO_ISA:
        isa_name()  # raises
    if result == REFUSED:
        raise MemoryError("no memory for a native operator")
    raise refusal(ArgumentProblem(result))


FLOAT32 = 0
BFLOAT16 = 1
FLOAT16 = 2
PACKED8 = 16
PACKED4 = 17


_INT32, _INT64 = ctypes.c_int32, ctypes.c_int64
_ADDRESS = ctypes.c_void_p


def fields(*groups: tuple[Any, str]) -> tuple[tuple[str, Any], ...]:
    """The fields of a structure, from types with names, in their order."""
    return tuple((name, kind) for kind, names in groups for name in names.split())


class CTeamMember(ctypes.Structure):
    """xk_team_member of xkernels.h."""

    _fields_ = fields((_INT32, "openmp_id thread_id cpu"))


_PYTHON_FUNCTIONS = (
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyLong_FromLongLong",
    "PyLong_AsLongLong",
    "PyLong_AsVoidPtr",
    "PyErr_Occurred",
)


class CPython(ctypes.Structure):
    """xk_python of xkernels.h: the addresses of these functions."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in _PYTHON_FUNCTIONS)


class CWeights(ctypes.Structure):
    """xk_weights of xkernels.h."""

    _fields_ = fields((_ADDRESS, "values scales"), (_INT32, "type stride"))


class CTensorView(ctypes.Structure):
    """xk_tensor_view of xkernels.h."""

    _fields_ = fields(
        (_ADDRESS, "data"),
        (_INT32, "device_type device dims"),
        (ctypes.c_uint32, "dtype"),
        (ctypes.POINTER(_INT64), "sizes strides"),
        (ctypes.c_uint64, "offset"),
    )


_OBJECT_FUNCTIONS = (
    "PyDict_Next",
    "PyObject_Type",
    "PyObject_GetAttr",
    "PyObject_RichCompareBool",
    "Py_DecRef",
)


class CObjectFunctions(ctypes.Structure):
    """xk_object_functions of xkernels.h: the addresses of these functions."""

    _fields_ = fields((_ADDRESS, "next class_of attribute compare release read"))


class CWord(ctypes.Structure):
    """xk_word of xkernels.h."""

    _fields_ = fields((_ADDRESS, "address"), (ctypes.c_uint64, "size value"))


class CObjects(ctypes.Structure):
    """xk_objects of xkernels.h."""

    _fields_ = fields(
        (_INT64, "instance_count dict_count tensor_count owner_count word_count"),
        (ctypes.POINTER(_ADDRESS), "instances classes dicts entries tensors"),
        (ctypes.POINTER(_INT64), "forms"),
        (ctypes.POINTER(_ADDRESS), "owners"),
        (ctypes.py_object, "name"),
        (ctypes.POINTER(_ADDRESS), "values"),
        (ctypes.POINTER(CWord), "words"),
    )


class CMethod(ctypes.Structure):
    """PyMethodDef of Python's stable ABI."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


class MailboxFunctions(NamedTuple):
    """The operations of a mailbox, as built-in functions of the interpreter."""

    post: Callable[[], int]
    next: Callable[[int], int]
    await_: Callable[[int, int], int]


def library_path() -> Path:
    """Return the library's path. Raises KernelsUnavailableError, with a remedy, without a library."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise KernelsUnavailableError(f"{LIBRARY_VARIABLE}={named}: no such file")
        return Path(named)
    return installed_path(LIBRARY_NAME)


def installed_path(name: str) -> Path:
    """Return the path of a file or directory that the build installs; errors as of `library_path`."""
    # An editable install has two directories: the sources, and where the build went.
    for directory in sys.modules["xruntime"].__path__:
        path = Path(directory, name)
        if path.exists():
            return path
    raise KernelsUnavailableError(
        f"this install of xlaunch has no {name}: it was built without GCC, or with XKERNELS=OFF."
        f" {_HOW_TO_GET_IT}"
    )


_CPUS = ctypes.POINTER(_INT32)
_Loaded = TypeVar("_Loaded", bound=ctypes.CDLL)

_Signature = tuple[type | None, tuple[type, ...]]


# Functions that run a parallel region or prepare the OpenMP runtime for one; `declare` adds the operators.
_WAITING: dict[str, _Signature] = {
    "xk_openmp_team": (_INT32, (ctypes.POINTER(CTeamMember), _INT32)),
    "xk_team_keep_workers": (_INT32, ()),
    "xk_team_confine": (_INT32, (_CPUS, _INT32)),
    "xk_team_pin": (_INT32, (_CPUS, _INT32)),
    "xk_thread_cpus": (_INT32, (_INT32, _CPUS, _INT32)),
}
_QUICK: dict[str, _Signature] = {
    "xk_abi_version": (_INT32, ()),
    "xk_isa_name": (ctypes.c_char_p, ()),
    "xk_isa_supported": (ctypes.c_char_p, ()),
    "xk_objects_hold": (_INT32, (_ADDRESS, _ADDRESS)),
    "xk_team_size": (_INT32, ()),
    "xk_team_resize": (_INT32, (_INT32,)),
    "xk_mailbox_create": (_ADDRESS, (_INT32, _INT32)),
    "xk_mailbox_destroy": (None, (_ADDRESS,)),
    "xk_mailbox_close": (None, (_ADDRESS,)),
    "xk_mailbox_ready": (_INT32, (_ADDRESS, _INT64)),
    "xk_mailbox_python_methods": (_ADDRESS, (ctypes.POINTER(CPython),)),
}


def declare(*names: str, arguments: tuple[Any, ...]) -> None:
    """Declare operators of the library for the module that calls them. They return 0 or a code."""
    signatures: dict[str, _Signature] = dict.fromkeys(names, (_INT32, arguments))
    _WAITING.update(signatures)
    if library.cache_info().currsize:  # it was loaded before
        _declare(library(), signatures)


def _declare(loaded: ctypes.CDLL, signatures: dict[str, _Signature]) -> None:
    for name, signature in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = signature


def _loaded(kind: type[_Loaded], signatures: dict[str, _Signature]) -> _Loaded:
    """Load the library and declare these functions. Raises KernelsUnavailableError."""
    path = library_path()
    try:
        loaded = kind(str(path), use_errno=kind is ctypes.CDLL)
        version = loaded.xk_abi_version()
        if version == ABI_VERSION:
            _declare(loaded, signatures)
    except (OSError, AttributeError) as error:
        raise KernelsUnavailableError(f"{path} cannot be loaded: {error}") from error
    if version != ABI_VERSION:
        raise KernelsUnavailableError(
            f"{path} has interface version {version}, and this xruntime needs {ABI_VERSION}: they are from"
            f" different releases. {_HOW_TO_GET_IT}"
        )
    return loaded


@functools.cache
def library() -> ctypes.CDLL:
    """Load the library, with the functions declared that wait or run a parallel region.

    It uses the OpenMP runtime that torch uses: libgomp.so.1 under its plain name, or one that is
    preloaded over it. Loading it asks LLVM's and Intel's runtimes to keep workers with their team, which
    they do if asked before the process's first parallel region; `library().xk_team_keep_workers()`
    returns whether they do. `ctypes.get_errno()` has the errno of functions that set it. Raises
    KernelsUnavailableError.
    """
    loaded = _loaded(ctypes.CDLL, _WAITING)
    loaded.xk_team_keep_workers()
    return loaded


@functools.cache
def quick_library() -> ctypes.PyDLL:
    """Load the library's quick functions, which keep the GIL. Raises KernelsUnavailableError."""
    library()  # it prepares the OpenMP runtime
    return _loaded(ctypes.PyDLL, _QUICK)


def supported_isas() -> list[str]:
    """Return the instruction sets of the library that this CPU supports, worst first.

    Raises KernelsUnavailableError without the native library.
    """
    names: bytes = quick_library().xk_isa_supported()
    return [name for name in names.decode().split(",") if name]


@functools.cache
def isa_name() -> str:
    """Return the name of the instruction set that operators run on: the best one, or XKERNELS_ISA.

    Raises KernelsUnavailableError if XKERNELS_ISA names none of `supported_isas()`, if there are none,
    and without the native library.
    """
    name: bytes | None = quick_library().xk_isa_name()
    if name is not None:
        return name.decode()
    supported = supported_isas()
    if not supported:
        raise KernelsUnavailableError(
            f"{library_path()} needs a newer CPU for its operators: on x86-64 one with SSE4.2 (x86-64-v2)"
        )
    raise KernelsUnavailableError(
        f"{ISA_VARIABLE}={os.environ.get(ISA_VARIABLE)}: this CPU supports {', '.join(supported)};"
        f" unset the variable for {supported[-1]}"
    )


def _addresses(names: Sequence[str]) -> list[int | None]:
    """The addresses of functions of Python's stable ABI."""
    return [ctypes.cast(getattr(ctypes.pythonapi, name), _ADDRESS).value for name in names]


@functools.cache
def _mailbox_methods() -> tuple[int, ...]:
    """The addresses of the PyMethodDefs of xk_mailbox_python_methods."""
    python = CPython(*_addresses(_PYTHON_FUNCTIONS))
    first = quick_library().xk_mailbox_python_methods(ctypes.byref(python))
    count, size = len(MailboxFunctions._fields), ctypes.sizeof(CMethod)
    return tuple(first + at * size for at in range(count))


_new_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))


def mailbox_functions(mailbox: int) -> MailboxFunctions:
    """Return the functions of the mailbox at that address; they are valid while it exists."""
    return MailboxFunctions(
        *(_new_function(method, mailbox, None) for method in _mailbox_methods())
    )


pointer_in: Any = ctypes.pythonapi.PyCapsule_GetPointer
pointer_in.argtypes, pointer_in.restype = (ctypes.py_object, ctypes.c_char_p), _ADDRESS

_DLPACK_MAJOR = 1


@functools.cache
def _tensor_reader(kind: Any) -> Any:
    """Return the function of DLPack's exchange API that fills a CTensorView; None without one, as in torch before 2.10."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    # DLPackExchangeAPI: its version, an older one, and five functions.
    words = (ctypes.c_uint64 * 7).from_address(pointer_in(capsule, b"dlpack_exchange_api"))
    if words[0] & 0xFFFFFFFF != _DLPACK_MAJOR or not words[5]:
        return None
    return ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, _ADDRESS)(words[5])


def read_tensor(tensor: Any) -> list[int] | None:
    """Return what `forms` of xk_objects has of a tensor; None of one that cannot be read, such as a quantized one."""
    kind: Any = type(tensor)
    read, view = _tensor_reader(kind), CTensorView()
    try:
        if read is None or read(tensor, ctypes.byref(view)) != 0:
            return None
    except Exception:  # noqa: BLE001 - whatever its library raises
        return None
    numbers = [*view.sizes[: view.dims], *view.strides[: view.dims]]
    return [(view.data or 0) + view.offset, view.dims, view.dtype, *numbers]


@functools.cache
def object_functions(kind: Any) -> Any:
    """Return what xk_objects_hold takes first, to compare tensors of this class and its subclasses."""
    read = _tensor_reader(kind)
    address = None if read is None else ctypes.cast(read, _ADDRESS).value
    return ctypes.byref(CObjectFunctions(*_addresses(_OBJECT_FUNCTIONS), address))


NULL = object()


def pointers(objects: Sequence[Any]) -> Any:
    """Return a C array of the addresses of objects, and NULL in the place of `NULL`."""
    addresses = [None if each is NULL else id(each) for each in objects]
    return (_ADDRESS * len(addresses))(*addresses)
