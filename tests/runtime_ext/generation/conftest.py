# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def installed(native: None, needs: Any) -> None:
    needs(find_spec("transformers"), "pip install transformers")


@pytest.fixture(autouse=True)
def single_thread(one_thread: None) -> None:
    """Spinning takes long on busy CPUs."""
