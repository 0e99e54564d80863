# SPDX-License-Identifier: Apache-2.0
"""What tests of pages share: a browser where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.tuner.conftest import Needs
from tests.tuner.show.browser import Browser, find_chromium


@pytest.fixture(scope="module")
def browser(needs: Needs) -> Iterator[Browser]:
    needs(find_chromium(), "chromium (Debian's package)")
    with Browser() as browser:
        yield browser
