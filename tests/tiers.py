# SPDX-License-Identifier: Apache-2.0
"""Parameters of a test that are divided between the quick tier and the tier `long`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick_first(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """The values as parameters: the first `quick` are in the quick tier, the others are `long`.

    Values of several arguments are given as `pytest.param`.
    """
    found = []
    for number, value in enumerate(values):
        parameters = value if hasattr(value, "marks") else pytest.param(value)
        if number >= quick:
            parameters = parameters._replace(marks=(*parameters.marks, pytest.mark.long))
        found.append(parameters)
    return found
