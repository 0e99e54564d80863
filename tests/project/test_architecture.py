# SPDX-License-Identifier: Apache-2.0
"""What docs/architecture.md tells of a launch and a search is what they call, in that order.

A call of an optimized model is compared in tests/runtime_ext/optimization/test_optimized_code.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
TRACER = Path(__file__).with_name("first_calls.py")
STEP = re.compile(r"\d+\. `([\w/]+\.py:[\w.]+)`")


def steps(heading: str) -> list[str]:
    """The functions of the numbered list below a heading."""
    _, found, rest = PAGE.read_text().partition(f"\n## {heading}\n")
    assert found
    return STEP.findall(rest.partition("\n## ")[0])


def first_calls(directory: Path, package: str, *arguments: str) -> list[str]:
    """The functions that a command and the processes that it forks call, in the order of their first calls."""
    output = directory / "calls"
    done = subprocess.run(
        [sys.executable, str(TRACER), str(output), package, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lists = [path.read_text().splitlines() for path in directory.glob("calls.*")]
    return max(lists, key=len)


def check_order(told: list[str], calls: Iterable[str]) -> None:
    position = {name: at for at, name in enumerate(calls)}
    assert not [name for name in told if name not in position]
    assert told == sorted(told, key=position.__getitem__)


def test_a_launch_goes_the_way_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    told = steps("A launch")
    program = tmp_path / "x.py"
    program.write_text("")
    calls = first_calls(tmp_path, "xlaunch", "--instances", "2", "--ncores", "1", "x.py")
    assert 10 <= len(told) <= 15
    check_order(told, calls)
    # The files that a reader of a launch has to open; fewer are better.
    assert len({name.partition(":")[0] for name in calls}) <= 46


@pytest.mark.long
def test_a_search_goes_the_way_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    program = tmp_path / "x.py"
    program.write_text("")
    told = steps("A search of `xtune`")
    assert 10 <= len(told) <= 20
    check_order(told, first_calls(tmp_path, "xtune", "--budget", "12 launches", "x.py"))
