# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libxkernels.so, once, when it is first needed.

The library is built with the package if there is GCC. XRUNTIME_KERNELS=PATH names another build, for
example one with sanitizers.

Its functions are called in three ways. `library()` releases the GIL around each call, for functions that
run a parallel region. `quick_library()` keeps the GIL, for functions that return at once, where
releasing it would cost more than the call. `mailbox_functions` avoids ctypes, which takes longer than a
mailbox operation. A post also keeps the GIL so that the worker which it wakes does not stop the submitter
before its wait.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from xruntime.errors import KernelsUnavailableError

ABI_VERSION = 2
"""The XK_ABI_VERSION of xkernels.h that this package uses."""

LIBRARY_NAME = "libxkernels.so"
LIBRARY_VARIABLE = "XRUNTIME_KERNELS"

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


class CTeamMember(ctypes.Structure):
    """xk_team_member of xkernels.h."""

    _fields_ = (
        ("openmp_id", ctypes.c_int32),
        ("thread_id", ctypes.c_int32),
        ("cpu", ctypes.c_int32),
    )


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
    # An editable install has two directories: the sources, and where the build went.
    for directory in sys.modules["xruntime"].__path__:
        path = Path(directory, LIBRARY_NAME)
        if path.is_file():
            return path
    raise KernelsUnavailableError(
        f"this install of xlaunch has no {LIBRARY_NAME}, because there was no GCC to build it."
        f" {_HOW_TO_GET_IT}"
    )


_CPUS = ctypes.POINTER(ctypes.c_int32)
_MAILBOX = ctypes.c_void_p

_Signature = tuple[type | None, tuple[type, ...]]

# Functions that run a parallel region or prepare the OpenMP runtime for one.
_WAITING: dict[str, _Signature] = {
    "xk_openmp_team": (ctypes.c_int32, (ctypes.POINTER(CTeamMember), ctypes.c_int32)),
    "xk_team_keep_workers": (ctypes.c_int32, ()),
    "xk_team_confine": (ctypes.c_int32, (_CPUS, ctypes.c_int32)),
    "xk_team_pin": (ctypes.c_int32, (_CPUS, ctypes.c_int32)),
    "xk_thread_cpus": (ctypes.c_int32, (ctypes.c_int32, _CPUS, ctypes.c_int32)),
}
_QUICK: dict[str, _Signature] = {
    "xk_abi_version": (ctypes.c_int32, ()),
    "xk_team_size": (ctypes.c_int32, ()),
    "xk_team_resize": (ctypes.c_int32, (ctypes.c_int32,)),
    "xk_mailbox_create": (_MAILBOX, (ctypes.c_int32, ctypes.c_int32)),
    "xk_mailbox_destroy": (None, (_MAILBOX,)),
    "xk_mailbox_close": (None, (_MAILBOX,)),
    "xk_mailbox_ready": (ctypes.c_int32, (_MAILBOX, ctypes.c_int64)),
    "xk_mailbox_python_methods": (ctypes.c_void_p, (ctypes.POINTER(CPython),)),
}


def _declare(loaded: ctypes.CDLL, signatures: dict[str, _Signature]) -> None:
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments


@functools.cache
def library() -> ctypes.CDLL:
    """Load the library, with the functions declared that wait or run a parallel region.

    It uses the OpenMP runtime that torch uses: libgomp.so.1 under its plain name, or one that is
    preloaded over it. Loading it asks LLVM's and Intel's runtimes to keep workers with their team, which
    they do if asked before the process's first parallel region; `library().xk_team_keep_workers()`
    returns whether they do. `ctypes.get_errno()` has the errno of functions that set it. Raises
    KernelsUnavailableError.
    """
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path), use_errno=True)
        loaded.xk_abi_version.argtypes = ()
        loaded.xk_abi_version.restype = ctypes.c_int32
        version = loaded.xk_abi_version()
        if version == ABI_VERSION:
            _declare(loaded, _WAITING)
    except (OSError, AttributeError) as error:
        raise KernelsUnavailableError(f"{path} cannot be loaded: {error}") from error
    if version != ABI_VERSION:
        raise KernelsUnavailableError(
            f"{path} has interface version {version}, and this xruntime needs {ABI_VERSION}: they are from"
            f" different releases. {_HOW_TO_GET_IT}"
        )
    loaded.xk_team_keep_workers()
    return loaded


@functools.cache
def quick_library() -> ctypes.PyDLL:
    """Load the library, with the functions declared that return at once, and keep the GIL in calls.

    Raises KernelsUnavailableError.
    """
    library()  # checks the version
    path = library_path()
    try:
        loaded = ctypes.PyDLL(str(path))
        _declare(loaded, _QUICK)
    except (OSError, AttributeError) as error:
        raise KernelsUnavailableError(f"{path} cannot be loaded: {error}") from error
    return loaded


@functools.cache
def _mailbox_methods() -> tuple[int, ...]:
    """The addresses of the PyMethodDefs of xk_mailbox_python_methods."""
    found = [getattr(ctypes.pythonapi, name) for name in _PYTHON_FUNCTIONS]
    python = CPython(*(ctypes.cast(function, ctypes.c_void_p).value for function in found))
    first = quick_library().xk_mailbox_python_methods(ctypes.byref(python))
    count, size = len(MailboxFunctions._fields), ctypes.sizeof(CMethod)
    return tuple(first + at * size for at in range(count))


_new_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))


def mailbox_functions(mailbox: int) -> MailboxFunctions:
    """Return the functions of the mailbox at that address; they are valid while it exists."""
    return MailboxFunctions(*(_new_function(one, mailbox, None) for one in _mailbox_methods()))
