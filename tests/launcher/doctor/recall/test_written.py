# SPDX-License-Identifier: Apache-2.0
"""Scripts with one fault each, and their twins without it: each fault is found, and nothing in a twin.

A comment ``# fault: XL030, twin: ...`` names the rule, and what stands on that line of the twin; other lines
that differ have ``# twin: ...``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.launcher.doctor.lint.checking import codes_in

SCRIPTS = sorted((Path(__file__).parent / "written").glob("*.py"))
MARK = re.compile(r"^(\s*).*  # (?:fault: (XL\d{3}), )?twin: (.*)$", re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_fault_is_found_and_nothing_in_the_twin(script: Path, tmp_path: Path):
    text = script.read_text()
    (code,) = [match[2] for match in MARK.finditer(text) if match[2]]
    assert code in codes_in(text, tmp_path)
    assert codes_in(MARK.sub(r"\1\3", text), tmp_path) == []
