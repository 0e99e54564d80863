# SPDX-License-Identifier: Apache-2.0
"""benchmarks/optimize compares forms of a model, and does not measure a cell twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "benchmarks.optimize")


@pytest.mark.full
def test_cells_are_kept(tmp_path: Path) -> None:
    results = tmp_path / "optimize.json"
    settings = ["--launches", "2", "--turns", "2", "--seconds", "0.1", "--json", str(results)]
    forms = ["--form", "eager", "--form", "optimize-eager"]

    def run(*modes: str) -> subprocess.CompletedProcess[str]:
        asked = [word for mode in modes for word in ("--mode", mode)]
        work = ["--work", "mobilenet", "--dtype", "float32", "--batch", "2"]
        return subprocess.run(
            [*COMMAND, *work, *asked, *forms, *settings],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )

    first = run("realtime")
    assert "already in" not in first.stderr
    raw = json.loads(results.read_text())["cells"]["mobilenet float32 realtime"]
    assert raw["raw"]["eager"]["rate"] > 0
    assert "conv_bn: applied: folded 52" in raw["notes"]["optimize-eager"]["text"]
    assert "| mobilenet float32 realtime | optimize-eager |" in first.stdout
    second = run("realtime", "offline")
    assert f"mobilenet float32 realtime: already in {results}" in second.stderr
    cells = json.loads(results.read_text())["cells"]
    assert cells["mobilenet float32 realtime"] == raw
    assert cells["mobilenet float32 offline"]["raw"]["eager"]["rate"] > 0
