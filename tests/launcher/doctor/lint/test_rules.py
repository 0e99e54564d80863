# SPDX-License-Identifier: Apache-2.0
"""The table of rules: every example is found, or not, as it says; docs hold the same table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.launcher.cli.commands import ask
from tests.launcher.doctor.lint.checking import codes_in

from xlaunch.doctor.lint.rules import RULES, Rule

PAGE = Path(__file__).parents[4] / "docs" / "doctor-scripts.md"
EACH = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)


@EACH
def test_examples(rule: Rule, tmp_path: Path):
    """Each has its own fault once, and no other."""
    assert codes_in(rule.failing, tmp_path, hints=True).count(rule.code) == 1
    assert codes_in(rule.failing, tmp_path) == ([] if rule.is_hint else [rule.code])
    assert rule.code not in codes_in(rule.passing, tmp_path, hints=True)
    assert codes_in(rule.passing, tmp_path) == []


@EACH
def test_explanation(rule: Rule):
    done = ask("doctor", "--rule", rule.code.lower())
    assert done.code == 0
    out = done.out.decode()
    assert out.startswith(f"{rule.code} {rule.name}\n")
    for example in (rule.failing, rule.passing):
        assert all(line in out for line in example.splitlines())
    assert ask("doctor", "--rule", rule.name).out.decode() == out


def test_codes_are_sorted_and_names_unique():
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_page_has_the_table():
    rows = re.findall(r"^\| (XL\d+) \| ([a-z-]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(rule.code, rule.name, rule.summary) for rule in RULES]
