# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_thread(native: None) -> Iterator[None]:
    """The calling thread's team has one thread: spinning takes long on busy CPUs."""
    import torch

    from xruntime.native import quick_library

    torch.get_num_threads()  # it sets the number in a thread's first call
    resize = quick_library().xk_team_resize
    before = resize(1)
    yield
    resize(before)
