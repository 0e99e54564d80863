# SPDX-License-Identifier: Apache-2.0
"""benchmarks.harmless compares the same work of a program under python and under xlaunch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.harmless import __main__ as harmless
from benchmarks.harmless import programs, torch_programs
from benchmarks.harness.quota import make_group

ROOT = Path(__file__).resolve().parents[2]


def measured(*pairs: tuple[float, float], peak: int = 100, quota: float = 0.0) -> harmless.Measured:
    """Pairs of the seconds of python and of xlaunch, whose processes have `peak` MiB, python's 100."""
    runs = {
        "python": [harmless.ProgramRun(0.5, python, 100 << 20) for python, _ in pairs],
        "xlaunch": [harmless.ProgramRun(0.6, xlaunch, peak << 20) for _, xlaunch in pairs],
    }
    return harmless.Measured("work", quota, 7, runs)


@pytest.mark.parametrize(
    ("one", "time", "memory"),
    [
        (measured((1.0, 1.0), (2.0, 2.02), (3.0, 3.0)), "met", "met"),
        (measured((1.0, 1.1), (2.0, 2.21), (3.0, 3.3), peak=106), "MISSED", "MISSED"),
        (measured((1.0, 0.8), (2.0, 2.4), (3.0, 3.0), peak=105), "open", "met"),
    ],
)
def test_goals_are_of_times_over_pythons(one: harmless.Measured, time: str, memory: str) -> None:
    of_time, of_memory = one.goals()
    assert of_time.startswith(f"goal {time}: work: {one.ratio('work_s')} times python's time")
    assert of_memory.startswith(f"goal {memory}: work: ")


def test_the_table_has_medians_ratios_and_what_the_start_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pairs = ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0))
    harmless.print_tables([measured(*pairs), measured(*pairs, peak=110, quota=1.5)])
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    same, more = "1.00 [1.00, 1.00]", "1.10 [1.10, 1.10]"
    assert f"| work (3 pairs) | 2.00 s | {same} | 100 MiB | {same} | 500 ms | +100 ms |" in printed
    assert f"| work (3 pairs) | 2.00 s | {same} | 100 MiB | {more} | 500 ms | +100 ms |" in printed
    assert any("with a CPU quota of 1.5" in line for line in printed)


def test_every_program_names_what_it_needs() -> None:
    assert set(harmless.MODULES) == {
        *programs.PROGRAMS,
        *torch_programs.PROGRAMS,
        "openmp",
        "gunicorn",
    }


def test_a_program_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "programs.py").write_text("raise SystemExit('no memory')")
    monkeypatch.setattr(harmless, "HERE", tmp_path)
    bench = harmless.Bench(tmp_path, None)
    with pytest.raises(harmless.RunFailedError, match="under python, exit code 1: no memory"):
        next(bench.measure("numpy", 0.0, 0.0, 0.1, 2))


@pytest.mark.machine
def test_programs_run_within_the_quota_and_none_is_left(tmp_path: Path, needs: Any) -> None:
    group = make_group(0.5)
    needs(group, "a control group for CPU time that can be made")
    assert group is not None
    try:
        read = "import xlaunch; print(xlaunch.read_machine().limits.cpu_quota)"
        enter = group.inside(())
        told = subprocess.run(
            (*enter, sys.executable, "-c", read), capture_output=True, text=True, check=True
        )
        left = subprocess.Popen((*enter, "sleep", "100"))
        while str(left.pid) not in (group.directory / "cgroup.procs").read_text().split():
            assert left.poll() is None
    finally:
        group.remove()
    assert told.stdout == "0.5\n"
    assert left.wait() < 0
    assert not group.directory.exists()


@pytest.mark.long
def test_the_command_measures_pairs_and_writes_every_run(tmp_path: Path) -> None:
    raw = tmp_path / "harmless.json"
    options = ("--quick", "--programs", "frugal", "ray", "--quota", "0", "--json", str(raw))
    done = subprocess.run(
        (sys.executable, "-m", "benchmarks.harmless", *options),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| frugal (3 pairs) | " in done.stdout
    values = json.loads(raw.read_text())
    (one, *_) = values["programs"]
    for side in harmless.SIDES:
        assert len(one["runs"][side]) == 3
        assert all(run["work_s"] > 0 and run["startup_s"] > 0 for run in one["runs"][side])
        # The largest chunk alone is 61 MiB.
        assert all(run["peak_bytes"] > 61 << 20 for run in one["runs"][side])
    assert "ray" in values["absent"] or any(it["program"] == "ray" for it in values["programs"])


def test_a_quota_beyond_the_cpus_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["harmless", "--quota", "1e9"])
    with pytest.raises(SystemExit) as caught:
        harmless.main()
    assert caught.value.code == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert "--quota 1e+09: 0, or 0.01 to " in error
