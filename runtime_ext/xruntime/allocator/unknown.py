# SPDX-License-Identifier: Apache-2.0
"""Allocators without statistics or settings: musl's, and any that is not known here."""

from __future__ import annotations

from typing import NoReturn

from xruntime.allocator.controller import Allocator, stats_of
from xruntime.allocator.memory import Stats
from xruntime.allocator.settings import Setting, Value
from xruntime.errors import AllocatorUnsupportedError


class Unknown(Allocator):
    """An allocator of which only the file is known."""

    name = "unknown"
    _note = "this allocator is not known: there are only the kernel's numbers, and no settings"

    @property
    def version(self) -> str | None:
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        return (*super().notes, self._note)

    def stats(self) -> Stats:
        """Only the kernel's numbers of the process."""
        return stats_of()

    def _release(self) -> None:
        self._refuse("releasing memory")

    def settings(self) -> tuple[Setting, ...]:
        return ()

    def read(self, name: str) -> NoReturn:
        self._refuse(f"reading {name}")

    def write(self, name: str, value: Value) -> NoReturn:
        self._refuse(f"setting {name} to {value!r}")

    def _refuse(self, what: str) -> NoReturn:
        raise AllocatorUnsupportedError(
            f"{what}: not possible under this allocator ({self.name}, {self.path}); start the program"
            " under another one, for instance xlaunch --allocator jemalloc"
        )


class Musl(Unknown):
    """musl's own malloc, old or mallocng: it has no statistics, no settings and no trim."""

    name = "musl"
    _note = "musl's malloc has no statistics and no settings: there are only the kernel's numbers"
