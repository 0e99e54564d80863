# SPDX-License-Identifier: Apache-2.0
"""mimalloc 2 and 3, through its C interface.

The numbers of mimalloc's options differ between versions, and it has no names for them in its
interface, so options can be set only by variables at the start (MIMALLOC_PURGE_DELAY=0).

Sources: mimalloc.h of 2.0.7, 2.0.9, 2.1.2, 2.1.7, 2.2.5, 3.0.1 and 3.6.0; src/stats.c of 2.0.9.
"""

from __future__ import annotations

import ctypes
import json
from typing import NoReturn

from xruntime.allocator.controller import Allocator
from xruntime.allocator.memory import Stats, stats_of
from xruntime.allocator.settings import Setting, Value, start_environment
from xruntime.errors import ReadOnlySettingError, UnknownSettingError

_VERSION = ctypes.CFUNCTYPE(ctypes.c_int)
_COLLECT = ctypes.CFUNCTYPE(None, ctypes.c_bool)
_INFO = ctypes.CFUNCTYPE(None, *(ctypes.POINTER(ctypes.c_size_t),) * 8)
_MERGE = ctypes.CFUNCTYPE(None)
_JSON = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Mimalloc(Allocator):
    name = "mimalloc"

    @property
    def version(self) -> str | None:
        return ".".join(map(str, version_of(self._function("mi_version", _VERSION)())))

    def stats(self) -> Stats:
        """mi_process_info's commit, now and at its peak; `allocated` where it is counted (3.6).

        What mi_process_info calls resident is that same number, and left out.
        """
        merge = self._file.function("mi_stats_merge", _MERGE)
        if merge is not None:
            # Where it exists, the calling thread's numbers are not in the sums before.
            merge()
        info = [ctypes.c_size_t() for _ in range(8)]
        self._function("mi_process_info", _INFO)(*map(ctypes.byref, info))
        mapped, peak_mapped = info[5].value, info[6].value
        return stats_of(allocated=self._allocated(), mapped=mapped, peak_mapped=peak_mapped)

    def _allocated(self) -> int | None:
        get_json = self._file.function("mi_stats_get_json", _JSON)
        text = get_json(0, None) if get_json is not None else None
        if not text:
            return None
        try:
            numbers = json.loads(ctypes.string_at(text))
        finally:
            self._function("mi_free", _FREE)(text)
        # Only builds that count it have the field.
        allocated = numbers.get("allocated", {}).get("current")
        return allocated if isinstance(allocated, int) and allocated > 0 else None

    def _release(self) -> None:
        # The calling thread's heap, and those of threads that ended.
        self._function("mi_collect", _COLLECT)(True)

    def settings(self) -> tuple[Setting, ...]:
        """Return the MIMALLOC_ variables that the process started with."""
        return tuple(
            Setting(name, value, None, False, "requested at the start")
            for name, value in start_environment().items()
            if name.startswith("MIMALLOC_")
        )

    def read(self, name: str) -> Value:
        """Return the value of a MIMALLOC_ variable of the start."""
        for setting in self.settings():
            if setting.name == name:
                return setting.value
        raise UnknownSettingError(
            f"{name!r}: only MIMALLOC_ variables that the process started with can be read"
        )

    def write(self, name: str, value: Value) -> NoReturn:
        raise ReadOnlySettingError(
            f"{name}: options of mimalloc are set when the program starts: MIMALLOC_<OPTION>={value}"
        )


def version_of(number: int) -> tuple[int, int, int]:
    """Split mi_version's number: one digit for each part up to 3.2, two digits since.

    **Ex.:** ``version_of(209)`` is ``(2, 0, 9)``, ``version_of(30600)`` is ``(3, 6, 0)``
    """
    base = 100 if number >= 10_000 else 10
    return number // base**2, number // base % base, number % base
