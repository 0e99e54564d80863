# SPDX-License-Identifier: Apache-2.0
"""Huge pages asked for or forbidden."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from xlaunch.environment import request_pages
from xlaunch.environment.allocators import glibc_asks
from xlaunch.environment.contribution import Contribution
from xlaunch.machine.limits import SystemMode, system_mode
from xlaunch.planning.request import HugePages

XLAUNCH = [sys.executable, "-m", "xlaunch"]


@pytest.mark.parametrize("supervise", [[], ["--supervise", "-q"]])
@pytest.mark.parametrize(("thp", "enabled"), [("never", "0"), ("auto", "1")])
def test_never_holds_for_the_program_and_what_it_starts(supervise, thp, enabled, needs):
    needs("THP_enabled" in Path("/proc/self/status").read_text(), "a kernel that shows it (5.0)")
    command = [*XLAUNCH, *supervise, "--thp", thp, "--"]
    show = "grep THP_enabled /proc/self/status; sh -c 'grep THP_enabled /proc/self/status'"
    done = subprocess.run([*command, "sh", "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["THP_enabled:", enabled] * 2


@pytest.mark.parametrize("mode", list(SystemMode))
def test_system_mode(mode, tmp_path):
    file = tmp_path / "enabled"
    words = [f"[{m.value}]" if m is mode else m.value for m in list(SystemMode)[:3]]
    file.write_text(" ".join(words) + "\n")
    assert system_mode(str(file)) is mode
    assert system_mode(str(tmp_path / "absent")) is SystemMode.UNKNOWN


@pytest.mark.parametrize(
    ("asked", "mode", "glibc", "asks"),
    [
        (HugePages.AUTO, SystemMode.MADVISE, (2, 36), False),
        (HugePages.ALWAYS, SystemMode.MADVISE, (2, 36), True),
        (HugePages.ALWAYS, SystemMode.MADVISE, (2, 34), False),
        (HugePages.ALWAYS, SystemMode.MADVISE, None, False),
        (HugePages.ALWAYS, SystemMode.ALWAYS, (2, 36), False),
        (HugePages.ALWAYS, SystemMode.NEVER, (2, 36), False),
        (HugePages.MADVISE, SystemMode.MADVISE, (2, 36), False),
        (HugePages.NEVER, SystemMode.MADVISE, (2, 36), False),
    ],
)
def test_when_glibc_asks(asked, mode, glibc, asks):
    assert glibc_asks(asked, mode, glibc) is asks


def test_always_asks_by_torch_too_and_says_when_it_is_in_vain():
    granted = request_pages(HugePages.ALWAYS, SystemMode.MADVISE)
    assert [proposal.name for proposal in granted.proposals] == ["THP_MEM_ALLOC_ENABLE"]
    assert not granted.warnings
    assert request_pages(HugePages.AUTO, SystemMode.NEVER) == Contribution()
    (warning,) = request_pages(HugePages.ALWAYS, SystemMode.NEVER).warnings
    assert "no effect" in warning
