# SPDX-License-Identifier: Apache-2.0
"""What /proc says of processes, on the live system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from xlaunch.machine.processes import read_file
from xlaunch.machine.tree import Tree

LONG = "/proc/self/maps"
"""More than a page, and handed out in whole lines of less than a page."""


@pytest.mark.parametrize(
    "read",
    [lambda: str(Tree("/").read(LONG)), lambda: str(read_file(LONG), "utf-8")],
    ids=["machine", "run"],
)
def test_long_file_of_procfs_is_read_to_its_end(read: Callable[[], str]):
    whole = Path(LONG).read_text()
    assert len(whole) > 2 * 4096
    assert read().splitlines()[-1] == whole.splitlines()[-1]
