# SPDX-License-Identifier: Apache-2.0
"""Allocators that tell nothing of themselves: musl's, and whatever is not known here."""

from __future__ import annotations

from typing import NoReturn

from xruntime.allocator.controller import Allocator, Setting, Value, stats_of, unsupported
from xruntime.allocator.memory import Stats

_REMEDY = (
    "start the program under one that can, for instance xlaunch --allocator glibc, jemalloc, "
    "tcmalloc or mimalloc"
)


class Unknown(Allocator):
    """An allocator of which only the file is known."""

    name = "unknown"
    _note = (
        "this allocator exports nothing by which it could be known: only the kernel's numbers are "
        "told, and nothing can be set or given back"
    )

    @property
    def version(self) -> str | None:
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        return (*super().notes, self._note)

    def stats(self) -> Stats:
        """Only what the kernel tells of the process."""
        return stats_of()

    def _give_back(self) -> None:
        raise unsupported(self, "giving memory back", _REMEDY)

    def settings(self) -> tuple[Setting, ...]:
        return ()

    def read(self, name: str) -> NoReturn:
        raise unsupported(self, f"reading {name}", _REMEDY)

    def write(self, name: str, value: Value) -> NoReturn:
        raise unsupported(self, f"setting {name} to {value!r}", _REMEDY)

    def report(self) -> NoReturn:
        raise unsupported(self, "an account of its own", _REMEDY)


class Musl(Unknown):
    """musl's own malloc, old or mallocng: it has no statistics, no settings and no trim."""

    name = "musl"
    _note = "musl's malloc tells nothing and cannot be steered: only the kernel's numbers are told"
