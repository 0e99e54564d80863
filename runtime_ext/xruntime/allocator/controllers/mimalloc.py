# SPDX-License-Identifier: Apache-2.0
"""mimalloc 2 and 3, through its C interface.

Sources: mimalloc.h of 2.0.7, 2.0.9, 2.1.2, 2.1.7, 2.2.5, 3.0.1 and 3.6.0; src/options.c and
src/stats.c of 2.0.9.
"""

from __future__ import annotations

import ctypes
import functools
import json
import re
from collections.abc import Mapping

from xruntime.allocator.controller import (
    Allocator,
    Setting,
    Value,
    stats_of,
    unknown_setting,
)
from xruntime.allocator.loader import Function, LoadedFile, Prototype
from xruntime.allocator.memory import Stats
from xruntime.errors import (
    AllocatorUnsupportedError,
    ReadOnlySettingError,
    SettingTypeError,
    SettingValueError,
)

# Options have numbers, and 2.1 gave many of them another meaning. Each table holds between the
# versions whose headers were compared; later ones are asked for their own list.

_OPTIONS_2_0 = {
    "show_errors": 0,
    "show_stats": 1,
    "verbose": 2,
    "eager_commit": 3,
    "large_os_pages": 6,
    "reserve_huge_os_pages": 7,
    "reserve_huge_os_pages_at": 8,
    "reserve_os_memory": 9,
    "page_reset": 11,
    "abandoned_page_decommit": 12,
    "eager_commit_delay": 14,
    "decommit_delay": 15,
    "use_numa_nodes": 16,
    "limit_os_alloc": 17,
    "max_errors": 19,
    "max_warnings": 20,
    "max_segment_reclaim": 21,
    "allow_decommit": 22,
    "segment_decommit_delay": 23,
    "decommit_extend_delay": 24,
}
_OPTIONS_SINCE_2_1 = {
    "show_errors": 0,
    "show_stats": 1,
    "verbose": 2,
    "arena_eager_commit": 4,
    "purge_decommits": 5,
    "allow_large_os_pages": 6,
    "reserve_huge_os_pages": 7,
    "reserve_huge_os_pages_at": 8,
    "reserve_os_memory": 9,
    "purge_delay": 15,
    "use_numa_nodes": 16,
    "disallow_os_alloc": 17,
    "max_errors": 19,
    "max_warnings": 20,
    "destroy_on_exit": 22,
    "arena_reserve": 23,
    "arena_purge_mult": 24,
}
_OPTIONS_2_1_AND_2_2 = _OPTIONS_SINCE_2_1 | {
    "eager_commit": 3,
    "abandoned_page_purge": 12,
    "eager_commit_delay": 14,
    "max_segment_reclaim": 21,
    "purge_extend_delay": 25,
}

TABLES: tuple[tuple[tuple[int, int, int], tuple[int, int, int], Mapping[str, int]], ...] = (
    ((2, 0, 7), (2, 0, 9), _OPTIONS_2_0),
    ((2, 1, 2), (2, 2, 5), _OPTIONS_2_1_AND_2_2),
    ((3, 0, 1), (3, 6, 0), _OPTIONS_SINCE_2_1),
)
"""First version, last version, numbers of the options by name."""

READ_AT_START = {
    "max_errors",
    "max_vabits",
    "max_warnings",
    "pagemap_commit",
    "reserve_huge_os_pages",
    "reserve_huge_os_pages_at",
    "reserve_os_memory",
    "use_numa_nodes",
}
"""What mimalloc looks at once, before anybody can call it: to write them would do nothing."""

UNITS = {
    "arena_max_object_size": "KiB",
    "arena_purge_immediate_size": "KiB",
    "arena_purge_min_size": "KiB",
    "arena_reserve": "KiB",
    "decommit_delay": "ms",
    "decommit_extend_delay": "ms",
    "purge_delay": "ms",
    "purge_extend_delay": "ms",
    "reserve_os_memory": "KiB",
    "segment_decommit_delay": "ms",
}

_RENAMED = {
    "purge_delay": "decommit_delay and segment_decommit_delay in 2.0",
    "purge_decommits": "allow_decommit in 2.0",
    "reset_delay": "decommit_delay in 2.0, purge_delay since 2.1",
    "decommit_delay": "purge_delay since 2.1",
    "segment_decommit_delay": "purge_delay since 2.1",
    "allow_decommit": "purge_decommits since 2.1, and purge_delay = -1 for not at all",
    "large_os_pages": "allow_large_os_pages since 2.1",
    "limit_os_alloc": "disallow_os_alloc since 2.1",
}

_VERSION = ctypes.CFUNCTYPE(ctypes.c_int)
_COLLECT = ctypes.CFUNCTYPE(None, ctypes.c_bool)
_GET = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int)
_SET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_long)
_INFO = ctypes.CFUNCTYPE(None, *(ctypes.POINTER(ctypes.c_size_t),) * 8)
_OUT = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
_PRINT_OUT = ctypes.CFUNCTYPE(None, _OUT, ctypes.c_void_p)
_MERGE = ctypes.CFUNCTYPE(None)
_JSON = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

LONG_MAX = ctypes.c_ulong(-1).value >> 1


class Mimalloc(Allocator):
    """mimalloc."""

    name = "mimalloc"

    def __init__(self, file: LoadedFile) -> None:
        super().__init__(file)
        self._number = self._function("mi_version", _VERSION)()

    @property
    def version(self) -> str | None:
        return ".".join(map(str, version_of(self._number)))

    def stats(self) -> Stats:
        """mi_process_info's commit, now and at its peak; what is allocated where it counts that (3.6).

        What it calls resident is that same number, see mi_stat_process_info, and left out.
        """
        merge = self._file.function("mi_stats_merge", _MERGE)
        if (
            merge is not None
        ):  # where it exists, the calling thread's numbers are its own until then
            merge()
        info = [ctypes.c_size_t() for _ in range(8)]
        self._function("mi_process_info", _INFO)(*map(ctypes.byref, info))
        return stats_of(
            allocated=self._allocated(), mapped=info[5].value, peak_mapped=info[6].value
        )

    def _allocated(self) -> int | None:
        tell = self._file.function("mi_stats_get_json", _JSON)
        if tell is None:
            return None
        text = tell(0, None)
        if not text:
            return None
        try:
            told = json.loads(ctypes.string_at(text))
        finally:
            self._function("mi_free", _FREE)(text)
        # Only builds that count it have the field.
        allocated = told.get("allocated", {}).get("current")
        return allocated if isinstance(allocated, int) and allocated > 0 else None

    def _give_back(self) -> None:
        # The calling thread's heap, and what threads that ended left; other threads' heaps are theirs.
        self._function("mi_collect", _COLLECT)(True)

    def settings(self) -> tuple[Setting, ...]:
        """All options whose numbers are known; none for a version that is not known here."""
        return tuple(self._setting(name, number) for name, number in self._options.items())

    @property
    def notes(self) -> tuple[str, ...]:
        if self._options:
            return super().notes
        return (*super().notes, f"options: {self._why_no_options()}")

    def read(self, name: str) -> Value:
        """An option by its name in this version. **Ex.:** ``purge_delay``"""
        return self._option(self._number_of(name))

    def write(self, name: str, value: Value) -> Setting:
        """Set an option. Raises `ReadOnlySettingError` for one that is looked at only at the start."""
        number = self._number_of(name)
        if name in READ_AT_START:
            raise ReadOnlySettingError(
                f"{name}: mimalloc looks at it only at the program's start; set the variable "
                f"MIMALLOC_{name.upper()} there"
            )
        if not isinstance(value, int):
            raise SettingTypeError(f"{name}: {value!r} is no whole number")
        if not -LONG_MAX - 1 <= value <= LONG_MAX:
            raise SettingValueError(
                f"{name}: {value} is out of range; allowed are {-LONG_MAX - 1} to {LONG_MAX}"
            )
        self._function("mi_option_set", _SET)(number, int(value))
        return self._setting(name, number)

    def report(self) -> str:
        """mi_stats_print_out's text."""
        return self._printed("mi_stats_print_out")

    @functools.cached_property
    def _options(self) -> dict[str, int]:
        """The numbers of the options: from mimalloc's own list where it prints one, else by version."""
        if self._file.address_of("mi_options_print_out"):
            printed = re.findall(
                r"^option '(\w+)': -?\d+", self._printed("mi_options_print_out"), re.MULTILINE
            )
            # Printed in order of their numbers, none left out; deprecated ones hold a place.
            return {
                name: number
                for number, name in enumerate(printed)
                if not name.startswith("deprecated_")
            }
        version = version_of(self._number)
        for first, last, options in TABLES:
            if first <= version <= last:
                return dict(options)
        return {}

    def _number_of(self, name: str) -> int:
        if not self._options:
            raise AllocatorUnsupportedError(f"{name}: {self._why_no_options()}")
        if name not in self._options:
            renamed = _RENAMED.get(name)
            error = unknown_setting(name, f"mimalloc {self.version}", tuple(self._options))
            raise type(error)(f"{error}; {name} is {renamed}") if renamed else error
        return self._options[name]

    def _why_no_options(self) -> str:
        known = ", ".join(
            f"{'.'.join(map(str, first))} to {'.'.join(map(str, last))}"
            for first, last, _ in TABLES
        )
        return (
            f"their numbers in mimalloc {self.version} are not known here (known are {known}, and "
            "those that print their list); set MIMALLOC_... variables at the program's start"
        )

    def _option(self, number: int) -> int:
        value = self._function("mi_option_get", _GET)(number)
        assert isinstance(value, int)
        return value

    def _setting(self, name: str, number: int) -> Setting:
        writable = name not in READ_AT_START
        return Setting(name, self._option(number), UNITS.get(name), writable)

    def _printed(self, symbol: str) -> str:
        parts: list[bytes] = []
        keep = _OUT(lambda text, _argument: parts.append(text))
        self._function(symbol, _PRINT_OUT)(keep, None)
        return b"".join(parts).decode(errors="replace")

    def _function(self, symbol: str, prototype: Prototype) -> Function:
        function = self._file.function(symbol, prototype)
        if function is None:
            raise AllocatorUnsupportedError(f"{self.path} has no {symbol}")
        return function


def version_of(number: int) -> tuple[int, int, int]:
    """mi_version's number taken apart: one digit each up to 3.2, two digits since.

    **Ex.:** ``version_of(209)`` is ``(2, 0, 9)``, ``version_of(30600)`` is ``(3, 6, 0)``
    """
    base = 100 if number >= 10_000 else 10
    return number // base**2, number // base % base, number % base
