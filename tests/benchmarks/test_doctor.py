# SPDX-License-Identifier: Apache-2.0
"""The draw of findings for judging, and the table of verdicts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from benchmarks.doctor.__main__ import draw as draw_findings
from benchmarks.doctor.__main__ import place, read_judged

from xlaunch.doctor.lint.rules import BY_CODE
from xlaunch.doctor.lint.source import ScriptFinding


def findings(code: str, count: int) -> list[ScriptFinding]:
    return [ScriptFinding(f"p/t-1.2/{n}.py", 1, 1, 1, 2, code, "message") for n in range(count)]


def test_each_rule_has_the_same_share_as_far_as_there_are_findings():
    found = {"XL001": findings("XL001", 50), "XL010": findings("XL010", 2)}
    drawn = draw_findings(found, 12, seed=3)
    assert Counter(one.code for one in drawn) == {"XL001": 10, "XL010": 2}
    assert drawn == draw_findings(found, 12, seed=3) != draw_findings(found, 12, seed=4)


def test_package_and_version_are_in_the_name_of_the_directory():
    finding = findings("XL001", 1)[0]
    assert place(finding, [Path("p/s-1"), Path("p/t-1.2")]) == ("t", "1.2", "0.py")


@pytest.mark.parametrize(
    "draw", ["1", "2", "3", "held out", "held out 2", "scripts 1", "scripts 4"]
)
def test_judged_findings_are_of_rules(draw: str):
    assert {row["rule"] for row in read_judged(draw)} <= set(BY_CODE)
