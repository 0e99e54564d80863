# SPDX-License-Identifier: Apache-2.0
"""Scripts as people write them, with the faults that their comments name: all are found, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.launcher.doctor.recall.test_written import MARK
from tests.launcher.doctor.recall.test_written import SCRIPTS as WRITTEN

from xlaunch.doctor.lint.rules import RULES
from xlaunch.doctor.lint.running import check_paths

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
EXPECTED = re.compile(r"# expect: (XL\d{3})$")


def expected_findings(script: Path) -> set[tuple[int, str]]:
    """Return the lines and codes of the comments ``# expect: XL001``."""
    lines = enumerate(script.read_text().splitlines(), start=1)
    return {(number, match[1]) for number, line in lines if (match := EXPECTED.search(line))}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_all_faults_are_found_and_nothing_else(script):
    found = {(one.line, one.code) for one in check_paths([str(script)]).findings}
    assert found == expected_findings(script)


def test_every_fault_is_in_some_script():
    seen = {code for script in SCRIPTS for _, code in expected_findings(script)}
    seen |= {
        match[2] for script in WRITTEN for match in MARK.finditer(script.read_text()) if match[2]
    }
    assert seen == {rule.code for rule in RULES if not rule.is_hint} - {"XL000"}
