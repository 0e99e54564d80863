# SPDX-License-Identifier: Apache-2.0
"""benchmarks/optim measures every optimizer beside its peer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "benchmarks.optimizers")


@pytest.mark.long
def test_every_optimizer_has_a_row(tmp_path: Path) -> None:
    results = tmp_path / "optim.json"
    settings = ["--elements", "100_000", "--layout", "odd", "--rounds", "2", "--json", str(results)]
    run = subprocess.run(
        [*COMMAND, *settings], cwd=ROOT, capture_output=True, text=True, check=True
    )
    raw = json.loads(results.read_text())
    seconds = {case["name"]: case["seconds"] for case in raw["cases"]}
    assert all(len(values) == 2 and min(values) > 0 for values in seconds.values())
    peers = {f"odd: torch {name}, fp32" for name in ("SGD", "Adagrad", "AdamW")}
    ours = {f"odd: {name}, split" for name in ("SGD", "Lars", "Adagrad", "AdamW", "Lamb")}
    ours |= {"odd: Lars, fp32", "odd: Lamb, fp32"}
    assert set(seconds) == peers | ours
    assert "2 tensors (odd), 66,668 elements" in run.stdout
    assert {goal.split(": ", 1)[1].rsplit(": ", 1)[0] for goal in raw["goals"]} == ours
