# SPDX-License-Identifier: Apache-2.0
"""What the tests of INT8 share."""

from __future__ import annotations

import importlib.util

import pytest
from tests.runtime_ext.conftest import Needs


@pytest.fixture(scope="session")
def torchao(native: None, needs: Needs) -> None:
    """torchao is here, and imported without its warnings."""
    from xruntime.quantization.torchao_package import import_torchao

    needs(importlib.util.find_spec("torchao"), "torchao (pip install '.[int8]')")
    import_torchao()
