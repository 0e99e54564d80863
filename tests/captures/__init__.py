# SPDX-License-Identifier: Apache-2.0
"""Captured machines: about a dozen of our own in this directory, and many of other projects'.

The others lie beside the project, in ``../shared/topologies``, and may be absent. Tests over them
are in the tier `long`; where they are absent, one skipped test says so.
"""

from __future__ import annotations

import functools
import lzma
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from xlaunch.machine import read_machine
from xlaunch.machine.topology import Machine
from xlaunch.machine.tree import scratch_directory

OWN = Path(__file__).parent
OTHERS = Path(__file__).parents[3] / "shared" / "topologies"
WITHOUT_OTHERS = f"the captures of other projects are not in {OTHERS}"
SUFFIX = ".tar.xz"


def own_captures() -> list[str]:
    """The names of the captures in this directory, sorted."""
    return _names(OWN)


def other_captures() -> list[str]:
    """The names of the captures of other projects, sorted; none where they are absent."""
    return _names(OTHERS)


def each_capture() -> list[object]:
    """Parameters for a test of every capture: other projects' in the tier `long`, or skipped."""
    return [*own_captures(), *among_others(other_captures())]


def among_others(names: Iterable[str]) -> list[object]:
    """Parameters in the tier `long` for these captures of other projects, or one that skips."""
    if not OTHERS.is_dir():
        return [
            pytest.param(
                "others", marks=[pytest.mark.skip(reason=WITHOUT_OTHERS), pytest.mark.machine]
            )
        ]
    return [pytest.param(name, marks=pytest.mark.long) for name in names]


def capture_path(name: str) -> str:
    """The archive of that name; skips the test where it would be one of the absent others."""
    own, other = OWN / f"{name}{SUFFIX}", OTHERS / f"{name}{SUFFIX}"
    if not own.exists() and not OTHERS.is_dir():
        pytest.skip(WITHOUT_OTHERS)
    return os.fspath(own if own.exists() else other)


@functools.cache
def read_capture(name: str) -> Machine:
    """The captured machine of that name; its root, which is gone again, is the name."""
    with lzma.open(capture_path(name)) as archive, scratch_directory() as root:
        # Several times as fast as Python's tarfile, which `unpacked` uses.
        subprocess.run(["tar", "-x", "-C", root], input=archive.read(), check=True)
        return read_machine(root)._replace(root=name)


def _names(directory: Path) -> list[str]:
    return sorted(path.name.removesuffix(SUFFIX) for path in directory.glob(f"*{SUFFIX}"))
