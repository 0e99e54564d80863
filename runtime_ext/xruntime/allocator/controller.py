# SPDX-License-Identifier: Apache-2.0
"""What every allocator can be asked, whichever it is: one small class for each has these methods."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import NamedTuple

from xruntime.allocator.loader import LoadedFile
from xruntime.allocator.memory import Stats, exact_resident, process_memory
from xruntime.errors import AllocatorUnsupportedError, UnknownSettingError

Value = bool | int | float | str


class Setting(NamedTuple):
    """One setting of the allocator, as it is now.

    **Ex.:** ``Setting("purge_delay", 10, "ms", True)``
    """

    name: str
    value: Value
    unit: str | None = None
    """bytes, KiB, MiB, ms; None: a plain number, a switch, or a word."""
    writable: bool = False
    """Whether `write` can change it in the running process."""
    note: str | None = None
    """What the value alone does not say."""


class Allocator(ABC):
    """The allocator that serves `malloc` in this process.

    Made by `xruntime.allocator.current`; it lives as long as the process.
    """

    name: str = "unknown"

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
    @abstractmethod
    def version(self) -> str | None:
        """As the allocator itself tells it; None where it does not."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What one should know before relying on the rest."""
        if not self.in_program:
            return ()
        return (
            "malloc is part of the main executable: preloading another allocator has no effect",
        )

    @abstractmethod
    def stats(self) -> Stats:
        """Memory in use and kept, now."""

    def release(self) -> int:
        """Give unused memory back to the system; the bytes by which the resident set fell, 0 or more.

        The count is of the whole process, so what other threads do meanwhile is in it. Raises
        `AllocatorUnsupportedError` where the allocator has no call for it.
        """
        before = exact_resident()
        self._give_back()
        after = exact_resident()
        return 0 if before is None or after is None else max(0, before - after)

    @abstractmethod
    def _give_back(self) -> None:
        """Do what `release` promises."""

    @abstractmethod
    def settings(self) -> tuple[Setting, ...]:
        """The settings that matter, as they are now."""

    @abstractmethod
    def read(self, name: str) -> Value:
        """The value of one setting. Raises `UnknownSettingError`, `AllocatorUnsupportedError`."""

    @abstractmethod
    def write(self, name: str, value: Value) -> Setting:
        """Change one setting in the running process, and tell what it is then.

        Raises `UnknownSettingError`, `ReadOnlySettingError`, `SettingTypeError`, `SettingValueError`.
        """

    @abstractmethod
    def report(self) -> str:
        """The allocator's own account, in its own form; for people, not for programs."""

    def __repr__(self) -> str:
        return f"<{self.name} {self.version or 'of unknown version'} from {self.path}>"


def stats_of(
    *,
    allocated: int | None = None,
    resident: int | None = None,
    mapped: int | None = None,
    free: int | None = None,
    retained: int | None = None,
    peak_mapped: int | None = None,
) -> Stats:
    """What an allocator tells, together with what the kernel tells."""
    process = process_memory()
    return Stats(
        allocated,
        resident,
        mapped,
        free,
        retained,
        peak_mapped,
        process.resident,
        process.peak_resident,
    )


def unsupported(allocator: Allocator, what: str, remedy: str) -> AllocatorUnsupportedError:
    """The error for something that this allocator cannot do."""
    return AllocatorUnsupportedError(f"{what}: {allocator.name} serves malloc here; {remedy}")


def unknown_setting(name: str, allocator: str, known: tuple[str, ...]) -> UnknownSettingError:
    """The error for a name that the allocator does not have."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UnknownSettingError(
        f"{name!r} is no setting of {allocator}; there are {', '.join(known)}{hint}"
    )


def start_environment() -> dict[str, str]:
    """The variables that the process was started with, which are what an allocator has read.

    Changes through `os.environ` came too late for it, and are not in here.
    """
    try:
        with open("/proc/self/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return dict(os.environ)
    variables: dict[str, str] = {}
    name = ""
    for entry in map(os.fsdecode, entries):
        if name == "GLIBC_TUNABLES" and entry.startswith("glibc."):
            # glibc 2.36 ends each tunable by a null character, in the variable itself.
            variables[name] += f":{entry}"
        elif "=" in entry:
            name, _, value = entry.partition("=")
            variables[name] = value
    return variables
