# SPDX-License-Identifier: Apache-2.0
"""What the tests of INT8 share."""

from __future__ import annotations

import importlib.util

import pytest
from tests.runtime_ext.conftest import Needs


@pytest.fixture(scope="session")
def torchao(native: None, needs: Needs) -> None:
    """torchao is here."""
    needs(importlib.util.find_spec("torchao"), "torchao (pip install 'xlaunch[int8]')")
