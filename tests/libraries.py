# SPDX-License-Identifier: Apache-2.0
"""Find allocators and OpenMP runtimes that are installed here."""

from __future__ import annotations

from collections.abc import Mapping

from xlaunch.environment.elf import read_program
from xlaunch.environment.libraries import Library, find_libraries


def find_library(
    name: str,
    prefix: str | None,
    environment: Mapping[str, str],
    *,
    interpreter: str | None = None,
    root: str = "/",
) -> Library | None:
    """The first library that `interpreter` (None: the prefix's Python, else ours) can load, or None."""
    loads = read_program(interpreter or (None if prefix is None else f"{prefix}/bin/python"))
    found = find_libraries((name,), prefix, environment, loads=loads, root=root)
    return next((library for library in found if library.refusal is None), None)
