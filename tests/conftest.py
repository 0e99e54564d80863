# SPDX-License-Identifier: Apache-2.0
"""What all tests share: how a test says that it needs something which may be absent."""

from __future__ import annotations

import os
from collections.abc import Callable

import hypothesis
import pytest

# On a busy machine any example may take long.
hypothesis.settings.register_profile("xlaunch", deadline=None, derandomize=True)
hypothesis.settings.load_profile("xlaunch")


@pytest.fixture(scope="session")
def needs() -> Callable[[object, str], None]:
    """`needs(found, what)`: skip where `found` is nothing, or fail where all must be there.

    `.ci/run` installs everything that tests can use, and sets XLAUNCH_TESTS_MUST_NOT_SKIP.

    **Ex.:** ``needs(shutil.which("readelf"), "readelf (Debian: binutils)")``
    """

    def check(found: object, what: str) -> None:
        if found:
            return
        if os.environ.get("XLAUNCH_TESTS_MUST_NOT_SKIP"):
            pytest.fail(f"needs {what}, and XLAUNCH_TESTS_MUST_NOT_SKIP is set", pytrace=False)
        pytest.skip(f"needs {what}")

    return check


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test is in one tier: `-m long` would run what is marked `full` too."""
    both = [
        item.nodeid for item in items if {"long", "full"} <= {m.name for m in item.iter_markers()}
    ]
    if both:
        raise pytest.UsageError(f"marked `long` and `full`, and one is allowed: {', '.join(both)}")
