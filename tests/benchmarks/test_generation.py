# SPDX-License-Identifier: Apache-2.0
"""The benchmark of generation: a quick run, and what it makes of its values."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.generation", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_quick_run(tmp_path: Path, needs: Any) -> None:
    needs(find_spec("transformers"), "pip install transformers")
    path = tmp_path / "values.json"
    done = run("--quick", "--threads", "1", "--json", path)
    assert done.returncode == 0, done.stderr
    values = json.loads(path.read_text())
    assert (values["benchmark"], values["threads"]) == ("generation", 1)
    (case,) = values["cases"]
    assert list(case["forms"]) == ["eager", "linears", "step"]
    assert all(len(rounds) == 2 for rounds in case["forms"].values())
    assert all(one["first_s"] > 0 < one["rate"] for it in case["forms"].values() for one in it)
    assert all(limit > 0 for limit in case["read_limit_bytes_per_s"])
    assert "| tiny B, batch 1, prompt 32: step" in done.stdout
    assert "read limit: " in done.stdout


def test_rows_have_medians_and_shares(needs: Any) -> None:
    needs(find_spec("torch"), "pip install torch")
    from benchmarks.generation.__main__ import rows_of

    rounds = [{"rate": rate, "first_s": 0.5} for rate in (10.0, 40.0, 20.0)]
    case = {
        "size": "0.5",
        "batch": 1,
        "prompt": 32,
        "weight_bytes": 2_000_000_000,
        "read_limit_bytes_per_s": [60e9, 80e9],
        "forms": {"eager": [{"rate": 8.0, "first_s": 0.25}], "step": rounds},
    }
    assert rows_of(case) == [
        ["0.5 B, batch 1, prompt 32: eager", "8.0", "1.00", "20%", "0.250"],
        ["0.5 B, batch 1, prompt 32: step", "20.0", "2.50", "50%", "0.500"],
    ]


def test_wrong_options() -> None:
    done = run("--tokens", "1")
    assert done.returncode == 2
    assert "--tokens needs at least 2" in done.stderr
