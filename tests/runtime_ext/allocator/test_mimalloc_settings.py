# SPDX-License-Identifier: Apache-2.0
"""mimalloc: its version, and the variables that it was started with."""

from __future__ import annotations

import pytest
from tests.runtime_ext.allocator.children import ask

from xruntime.allocator.mimalloc import version_of


@pytest.mark.parametrize(
    ("number", "version"),
    [(209, (2, 0, 9)), (301, (3, 0, 1)), (30600, (3, 6, 0))],
)
def test_number_of_a_version_is_split(number: int, version: tuple[int, int, int]) -> None:
    assert version_of(number) == version


def test_settings_are_the_variables_of_the_start(mimalloc: str) -> None:
    answer = ask(
        """
import os
os.environ["MIMALLOC_VERBOSE"] = "1"  # too late
tell(settings=heap.settings(), read=heap.read("MIMALLOC_PURGE_DELAY"),
     refused=[refusal(heap.read, "purge_delay"), refusal(heap.write, "purge_delay", 0)])
""",
        mimalloc,
        MIMALLOC_PURGE_DELAY="50",
    )
    ((name, value, _, writable, _),) = answer["settings"]
    assert (name, value, writable) == ("MIMALLOC_PURGE_DELAY", "50", False)
    assert answer["read"] == "50"
    assert [name for name, _ in answer["refused"]] == [
        "UnknownSettingError",
        "ReadOnlySettingError",
    ]
