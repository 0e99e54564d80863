# SPDX-License-Identifier: Apache-2.0
"""Recorded calls of the operators from C++, without Python or torch, on every instruction set of this CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kernels.recorded import cases, driver

from xruntime import native

pytestmark = pytest.mark.long

Needs = Callable[[object, str], None]


@pytest.fixture(scope="module")
def program(needs: Needs, built_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    needs(compiler, "g++")
    return driver.compile_driver(str(compiler), built_library, tmp_path_factory.mktemp("recorded"))


def test_every_isa_computes_the_recorded_results_and_the_same_bits(
    program: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cases"
    written = cases.write_cases(path)
    found = []
    for isa in native.supported_isas():
        found.append(driver.checksums(driver.run_driver(program, path, isa), isa))
        assert len(found[-1]) == written
        assert driver.on_every_isa(found[-1]) == driver.on_every_isa(found[0])


CASE = "adam/split/bf16/bf16"


def test_a_wrong_result_is_named(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (case,) = (case for case in cases.every_case() if case.name == CASE)
    masters = case.expectations["masters"]
    wrong = masters.wanted.copy()
    wrong[700] += 1e-4
    monkeypatch.setattr(
        cases,
        "every_case",
        lambda: iter([case._replace(expectations={"masters": masters._replace(wanted=wrong)})]),
    )
    cases.write_cases(tmp_path / "cases")
    done = driver.run_driver(program, tmp_path / "cases", "")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{CASE}: masters[700] is ")
