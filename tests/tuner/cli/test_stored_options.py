# SPDX-License-Identifier: Apache-2.0
"""The command line that a study keeps is read again, whatever its options were called then."""

from __future__ import annotations

import click
import pytest

from xlaunch.planning.request import MemoryPolicy
from xtune.cli.options import parse_search


@pytest.mark.parametrize("memory", [["--memory", "interleave"], ["--memory=interleave"]])
def test_former_names_of_options_are_read(memory: list[str]) -> None:
    words = [*memory, "--reserve", "1", "--nodes", "0", "--", "serve.py", "--memory", "8"]
    request = parse_search(words).request
    assert request.mem_policy is MemoryPolicy.INTERLEAVE
    assert (request.reserve_cores, request.numa_nodes) == (1, (0,))
    assert request.program == ("serve.py", "--memory", "8")


def test_other_unknown_options_are_refused() -> None:
    with pytest.raises(click.NoSuchOption):
        parse_search(["--nosuch", "serve.py"])
