# SPDX-License-Identifier: Apache-2.0
"""What all tests share: how a test says that it needs something which may be absent."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def needs() -> Callable[[object, str], None]:
    """`needs(found, what)`: skip where `found` is nothing; in CI, which has it all, fail.

    **Ex.:** ``needs(shutil.which("readelf"), "readelf (binutils)")``
    """

    def check(found: object, what: str) -> None:
        if found:
            return
        if os.environ.get("CI"):
            pytest.fail(f"CI should have {what}", pytrace=False)
        pytest.skip(f"needs {what}")

    return check
