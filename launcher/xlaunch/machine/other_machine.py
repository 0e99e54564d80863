# SPDX-License-Identifier: Apache-2.0
"""The machine that options name: this one, a captured one, or a made-up one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from xlaunch.machine import read_machine
from xlaunch.machine.topology import Machine


@contextlib.contextmanager
def machine_of(sysroot: str | None, synthetic: str | None) -> Iterator[Machine]:
    """The machine that the options name; this one if they name none.

    What had to be unpacked or made up is in a temporary directory, which is removed at the end.
    Raises `UsageError` if it cannot be read.
    """
    if synthetic is not None:
        from xlaunch.machine.synthetic import parse_levels, write_tree
        from xlaunch.machine.tree import scratch_directory

        levels = parse_levels(synthetic)
        with scratch_directory() as directory:
            write_tree(levels, directory)
            yield read_machine(directory)
    elif sysroot is not None and os.path.isfile(sysroot):
        from xlaunch.machine.capture import unpacked

        with unpacked(sysroot) as directory:
            yield read_machine(directory)
    else:
        yield read_machine("/" if sysroot is None else sysroot)
