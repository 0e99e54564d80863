# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libxkernels.so, once, when it is first needed.

The library is built with the package where GCC is at hand. XRUNTIME_KERNELS=PATH names another one,
for instance a build with sanitizers.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import xruntime
from xruntime.errors import KernelsUnavailableError

ABI_VERSION = 1
"""XK_ABI_VERSION of the xkernels.h that this package was written against."""

LIBRARY_NAME = "libxkernels.so"
LIBRARY_VARIABLE = "XRUNTIME_KERNELS"

_HOW_TO_GET_IT = (
    "Install GCC (Debian and Ubuntu: apt-get install g++), then xlaunch again,"
    " from its sources: pip install --force-reinstall --no-deps ."
)


class CTeamMember(ctypes.Structure):
    """xk_team_member of xkernels.h."""

    _fields_ = (
        ("openmp_id", ctypes.c_int32),
        ("thread_id", ctypes.c_int32),
        ("cpu", ctypes.c_int32),
    )


def library_path() -> Path:
    """Where the library is.

    Raises KernelsUnavailableError when it is nowhere, with how to get it.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise KernelsUnavailableError(f"{LIBRARY_VARIABLE}={named}: there is no such file")
        return Path(named)
    # An editable install has two folders: the sources, and where the build went.
    for folder in xruntime.__path__:
        path = Path(folder, LIBRARY_NAME)
        if path.is_file():
            return path
    raise KernelsUnavailableError(
        f"{LIBRARY_NAME} is not part of this install of xlaunch: there was no GCC to build it."
        f" {_HOW_TO_GET_IT}"
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library, its functions declared.

    It calls OpenMP in whichever runtime torch calls: libgomp.so.1 under its plain name, or one that
    is preloaded over it. Raises KernelsUnavailableError.
    """
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.xk_abi_version.argtypes = ()
        loaded.xk_abi_version.restype = ctypes.c_int32
        version = loaded.xk_abi_version()
    except (OSError, AttributeError) as error:
        raise KernelsUnavailableError(f"{path} cannot be loaded: {error}") from error
    if version != ABI_VERSION:
        raise KernelsUnavailableError(
            f"{path} has version {version} of its interface and this xruntime needs {ABI_VERSION}:"
            f" they come from different releases. {_HOW_TO_GET_IT}"
        )
    loaded.xk_openmp_team.argtypes = (ctypes.POINTER(CTeamMember), ctypes.c_int32)
    loaded.xk_openmp_team.restype = ctypes.c_int32
    return loaded
