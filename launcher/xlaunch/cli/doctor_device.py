# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device -- PROGRAM`: run a program and say which devices worked."""

from __future__ import annotations


def watch_program(words: tuple[str, ...], *, compare: str | None, as_json: bool) -> int:
    """Run the program and print where it worked; its exit code."""
    raise NotImplementedError
