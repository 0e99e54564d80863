# SPDX-License-Identifier: Apache-2.0
"""Another Python measures when it is asked, by as many threads; one without IPEX is refused."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from benchmarks.harness.other_python import add_ipex_option, cases_of

ROOT = Path(__file__).resolve().parents[2]

MEASURED = """
import time
from benchmarks.harness.other_python_side import measure_by_name
measure_by_name({"short, 1 ms": lambda: time.sleep(1e-3), "long": lambda: time.sleep(0.1)}, 0.01)
"""


def test_a_process_measures_by_name_when_it_is_asked() -> None:
    short, long = cases_of(["short, 1 ms", "long"], [sys.executable, "-c", MEASURED])
    assert (short.name, long.name) == ("short, 1 ms", "long")
    for _ in range(2):
        assert short.measure() >= 1e-3
        assert long.measure() >= 0.1


def test_a_process_has_as_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "93")
    program = "import os; raise SystemExit(int(os.environ['OMP_NUM_THREADS']))"
    (case,) = cases_of(["ended"], [sys.executable, "-c", program])
    with pytest.raises(SystemExit, match=f"ended ended with exit code {torch.get_num_threads()}$"):
        case.measure()


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("/nowhere/python", "/nowhere/python: No such file or directory"),
        (str(ROOT), f"{ROOT}: Permission denied"),
        (sys.executable, "No package metadata was found for intel_extension_for_pytorch"),
    ],
)
def test_a_python_without_ipex_is_an_error(
    python: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_ipex_option(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--ipex-python", python])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "error: argument --ipex-python: " in last
    assert last.endswith(reason)
