# SPDX-License-Identifier: Apache-2.0
"""One cache of compiled code for all tests of the runtime, and no trace of it for other tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
BEFORE = os.environ.get(VARIABLE)


def pytest_collection_modifyitems() -> None:
    """Undo what importing the tests did: torch._inductor sets the variable when it is imported."""
    if BEFORE is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = BEFORE


@pytest.fixture(scope="session")
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory, shared by all processes of a session: headers are compiled once in each."""
    base = tmp_path_factory.getbasetemp()
    # A worker of pytest-xdist has a directory inside the session's.
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = root / "inductor"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@pytest.fixture(scope="module", autouse=True)
def inductor_variable(inductor_cache: Path) -> Iterator[None]:
    """The variable names it in each module's tests and their children, and not after them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(inductor_cache))
        yield
