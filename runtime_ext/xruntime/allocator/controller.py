# SPDX-License-Identifier: Apache-2.0
"""The base of the classes of allocators, which serves those without statistics and settings."""

from __future__ import annotations

from typing import NoReturn

from xruntime.allocator.loader import Function, LoadedFile, Prototype
from xruntime.allocator.mallctl import Mallctl
from xruntime.allocator.memory import Stats, exact_resident, stats_of
from xruntime.allocator.settings import Setting, Value
from xruntime.errors import AllocatorUnsupportedError


class Allocator:
    """The allocator that serves `malloc` in this process, as `xruntime.allocator.current` finds it."""

    name: str = "unknown"
    _notes: tuple[str, ...] = ()

    def __init__(self, file: LoadedFile) -> None:
        self._file = file

    @property
    def path(self) -> str:
        """The file that defines `malloc`."""
        return self._file.path

    @property
    def in_program(self) -> bool:
        """Whether `malloc` is part of the main executable, so that no library can replace it."""
        return self._file.is_program

    @property
    def version(self) -> str | None:
        """The version that the allocator reports; None if it reports none."""
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """Limitations of what the other methods return."""
        if not self.in_program:
            return self._notes
        return (
            "malloc is part of the main executable: preloading another allocator has no effect",
            *self._notes,
        )

    def stats(self) -> Stats:
        """Return memory in use and kept, now; without an allocator's own numbers, the kernel's."""
        return stats_of()

    def release(self) -> int:
        """Return unused memory to the system, and the number of bytes by which the resident set
        fell.

        The difference is that of the whole process, including what other threads do meanwhile; it is
        0 if the resident set grew. Raises `AllocatorUnsupportedError` if the allocator has no such call.
        """
        before = exact_resident()
        self._release()
        after = exact_resident()
        return 0 if before is None or after is None else max(0, before - after)

    def _release(self) -> None:
        """Return unused memory to the system."""
        self._refuse("releasing memory")

    def settings(self) -> tuple[Setting, ...]:
        """Return the settings that are known, with their current values."""
        return ()

    def read(self, name: str) -> Value:
        """Return the value of one setting. Raises `UnknownSettingError`, `AllocatorUnsupportedError`."""
        self._refuse(f"reading {name}")

    def write(self, name: str, value: Value) -> Setting:
        """Change one setting in the running process and return its new state.

        Raises `UnknownSettingError`, `ReadOnlySettingError`, `SettingTypeError`, `SettingValueError`,
        `AllocatorUnsupportedError`.
        """
        self._refuse(f"setting {name} to {value!r}")

    @property
    def mallctl(self) -> Mallctl:
        """Jemalloc's mallctl. Raises `AllocatorUnsupportedError` under any other allocator."""
        raise AllocatorUnsupportedError(
            f"mallctl needs jemalloc, and {self.name} ({self.path}) serves malloc here; start the"
            " program under it: xlaunch --allocator jemalloc"
        )

    def _function(self, symbol: str, prototype: Prototype) -> Function:
        """A function of the allocator's file. Raises `AllocatorUnsupportedError` if it has none."""
        function = self._file.function(symbol, prototype)
        if function is None:
            raise AllocatorUnsupportedError(f"{self.path} has no {symbol}")
        return function

    def _refuse(self, what: str) -> NoReturn:
        raise AllocatorUnsupportedError(
            f"{what}: not possible under this allocator ({self.name}, {self.path}); start the program"
            " under another one, for instance xlaunch --allocator jemalloc"
        )

    def __repr__(self) -> str:
        return f"<{self.name} {self.version or 'of unknown version'} from {self.path}>"
