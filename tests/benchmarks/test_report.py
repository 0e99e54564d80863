# SPDX-License-Identifier: Apache-2.0
"""The report of all benchmarks has what each printed, and does not hide those that fail."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import BENCHMARKS, Benchmark, html, markdown, run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda it: it.name)
def test_every_benchmark_exists(benchmark) -> None:
    name = f"benchmarks.{benchmark.module}"
    spec = importlib.util.find_spec(name)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        assert importlib.util.find_spec(f"{name}.__main__") is not None


def test_a_run_is_reported_as_markdown_and_html(tmp_path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "rules", "--out", tmp_path]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("rules ... ran, ")
    text = (tmp_path / "report.md").read_text()
    assert "| rules | ran | " in text
    assert "`python -m benchmarks.doctor --judged`" in text
    assert "false alarms in" in text
    page = (tmp_path / "report.html").read_text()
    assert page.count("<table>") == 2
    assert "<td>rules</td>" in page


def test_failures_and_what_cannot_run_are_listed(tmp_path) -> None:
    wrong = Benchmark("wrong", "launching.planning", "--rounds 1", modules=())
    absent = Benchmark("absent", "launching.planning", "", modules=("a_module_that_is_not_there",))
    outcomes = [run(one, tmp_path, quick=True) for one in (wrong, absent)]
    text = markdown(outcomes)
    assert "| wrong | failed with exit code 2 |" in text
    assert "argument --rounds: at least 2 are needed" in text
    assert "| absent | not run: a_module_that_is_not_there is not installed | 0 |" in text
    assert "<strong>failed with exit code 2</strong>" in html(text)


def test_a_benchmark_that_takes_too_long_is_stopped(tmp_path) -> None:
    endless = Benchmark("endless", "launching.planning", "--rounds 1_000_000", timeout_s=0.5)
    outcome = run(endless._replace(modules=()), tmp_path, quick=True)
    assert outcome.failure == "stopped after 0 s"
    assert outcome.seconds < 60
