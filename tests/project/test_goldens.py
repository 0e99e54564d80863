# SPDX-License-Identifier: Apache-2.0
"""Recorded outputs belong to tests."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_each_recorded_output_has_its_test():
    found = list(TESTS.rglob("test_*.golden"))
    assert found
    for path in found:
        tests = set(
            re.findall(r"^ *def (test_\w+)\(", path.with_suffix(".py").read_text(), re.MULTILINE)
        )
        assert set(re.findall(r"^==> (test_\w+)", path.read_text(), re.MULTILINE)) <= tests, path
