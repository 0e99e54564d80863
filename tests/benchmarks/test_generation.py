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


@pytest.mark.long
def test_a_quick_run(tmp_path: Path, needs: Any) -> None:
    needs(find_spec("transformers"), "pip install transformers")
    path = tmp_path / "values.json"
    forms = ("eager", "step", "bits4")
    options = ("--quick", "--threads", "1", "--cpus", "1", "--form", *forms, "--json", str(path))
    command = [sys.executable, "-m", "benchmarks.generation", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values = json.loads(path.read_text())
    assert values["benchmark"] == "generation"
    (case,) = values["cases"]
    assert (case["place"], tuple(case["forms"])) == ("1 CPUs", forms)
    assert all(case["started"][form]["threads"] == 1 for form in forms)
    read = [case["started"][form]["weight_bytes"] or case["weight_bytes"] for form in forms]
    assert read[1] > 3 * read[2] > 0
    assert all(len(rounds) == 3 for rounds in case["forms"].values())
    assert all(one["first_s"] > 0 < one["rate"] for it in case["forms"].values() for one in it)
    assert all(limit > 0 for limit in case["read_limit_bytes_per_s"])
    assert "| tiny B, 1 CPUs, batch 1, prompt 32: step" in done.stdout
    assert "read limit: " in done.stdout


def test_rows_have_medians_and_shares(needs: Any) -> None:
    needs(find_spec("torch"), "pip install torch")
    from benchmarks.generation.__main__ import rows_of

    def rounds(*rates: float, first_s: float) -> list[dict[str, Any]]:
        """Of the warm-up, which does not count, and one with each rate."""
        memory = {"peak": 3_500_000_000}
        return [{"rate": rate, "first_s": first_s, "memory": memory} for rate in (1.0, *rates)]

    started = {"load_s": 1.5, "before": {"resident": 500_000_000}}
    case = {
        "size": "0.5",
        "place": "2 CPUs",
        "batch": 1,
        "prompt": 32,
        "conversations": 1,
        "weight_bytes": 2_000_000_000,
        "read_limit_bytes_per_s": [60e9, 80e9],
        "started": {"eager": started},
        "forms": {
            "eager": rounds(8.0, first_s=0.25),
            "step": rounds(10.0, 40.0, 20.0, first_s=0.5),
        },
    }
    assert rows_of(case) == [
        ["0.5 B, 2 CPUs, batch 1, prompt 32: eager", "8.0", "1.00", "20%", "0.250", "1.50", "1.50"],
        ["0.5 B, 2 CPUs, batch 1, prompt 32: step", "20.0", "2.50", "50%", "0.500", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--tokens", "1"), "--tokens needs at least 2"),
        (("--cpus", "100000"), "--cpus 100000: this process may use"),
    ],
)
def test_wrong_options(
    options: tuple[str, ...],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    needs: Any,
) -> None:
    needs(find_spec("torch"), "pip install torch")
    from benchmarks.generation.__main__ import main

    monkeypatch.setattr("sys.argv", ["generation", *options])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert problem in capsys.readouterr().err
