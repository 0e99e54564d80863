# SPDX-License-Identifier: Apache-2.0
"""`benchmarks/tuner`: records real launches, goes on after a kill, and replays what it has."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.tuner.recorded import read_recording
from tests.tuner.cli.commands import Desk

from xtune.launches.launch import Outcome
from xtune.space.parameters import BARE

pytestmark = pytest.mark.long

PROGRAM = """\
import os, pathlib, sys, time
directory, batch = pathlib.Path(sys.argv[1]), int(sys.argv[2])
started = len(list(directory.glob("*.started")))
(directory / f"{started}.started").touch()
if (directory / "hang").exists() and started == 5:
    time.sleep(600)
if batch == 8:
    sys.exit("no such batch")
print(f"{100 * batch + started} items/s")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(PROGRAM)
    return path


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    desk = Desk(directory)
    inherited = desk.environment.items()
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.tuner", *arguments],
        env={name: value for name, value in inherited if not name.endswith("_NUM_THREADS")},
        cwd=desk.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def complete(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed, once it has succeeded."""
    with process:
        out, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    return out, errors


def recorder(directory: Path, program: Path, *options: str) -> subprocess.Popen[str]:
    space = ["--metric", "items/s", "--only-params", "--param", "batch=1,8", "--param", "n=1,2"]
    work = [str(program), str(directory), "{batch}", "{n}"]
    file = str(directory / "work.jsonl")
    return start(directory, "record", file, "--rounds", "2", *options, "--", *space, *work)


def test_the_bare_command_is_recorded_without_settings_of_the_recorder(tmp_path: Path) -> None:
    program = tmp_path / "work.py"
    program.write_text(
        "import os\n"
        "settings = [name for name in os.environ if name.endswith('_NUM_THREADS')]\n"
        "print(100 + len(settings), 'items/s')\n"
    )
    space = ("--metric", "items/s", "--only-params", "--param", "n=1,2", str(program), "{n}")
    file = tmp_path / "work.jsonl"
    complete(start(tmp_path, "record", str(file), "--rounds", "1", "--", *space))
    launches = [one.launch for one in read_recording(file).launches]
    assert {one.value for one in launches if one.configuration == BARE} == {100}


def test_a_killed_recorder_goes_on_where_it_was(tmp_path: Path, program: Path) -> None:
    file = tmp_path / "work.jsonl"
    (tmp_path / "hang").touch()
    with recorder(tmp_path, program) as process:
        while not (tmp_path / "5.started").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.kill()
    # One was made to warm up, four are kept, the sixth was under way.
    first = read_recording(file).launches
    assert len(first) == 4
    with file.open("a") as stream:
        stream.write('{"round":0,"configura')
    (tmp_path / "hang").unlink()
    _, errors = complete(recorder(tmp_path, program))
    assert "4 plans, 10 launches, 4 of them made already" in errors

    recording = read_recording(file)
    assert recording.launches[:4] == first
    assert len(recording.launches) == 10
    made = Counter((one.round, one.launch.plan_hash) for one in recording.launches)
    assert set(made.values()) == {1}
    assert len(recording.plans) == 5
    assert recording.plans[0].configurations == (BARE,)
    assert recording.header.command == (str(program), str(tmp_path), "{batch}", "{n}")
    for one in recording.launches:
        if one.launch.configuration.get("batch") == 8:
            assert one.launch.outcome is Outcome.CRASHED
            assert "no such batch" in one.launch.stderr_tail
        else:
            assert one.launch.value is not None
            batch = one.launch.configuration.get("batch", 1)
            assert 0 < one.launch.value - 100 * float(batch) < 30
    assert any(one.launch.series for one in recording.launches)
    orders = [
        [one.launch.plan_hash for one in recording.launches if one.round == number]
        for number in (0, 1)
    ]
    assert orders[0] != orders[1]

    _, errors = complete(recorder(tmp_path, program))
    assert errors.endswith("10 launches, 10 of them made already\n")
    with recorder(tmp_path, program, "--seed", "7") as process:
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 2
    assert "a recording of something else" in errors
    assert errors.count("\n") == 1


def test_strategies_are_replayed_and_compared(tmp_path: Path) -> None:
    arguments = ["--synthetic", "small", "--seeds", "3", "--jobs", "1", "--json", "first.json"]
    chosen = ["--budgets", "5,20", "--strategies", "ours,random,grid,tpe,hypertune"]
    complete(start(tmp_path, "replay", *arguments, *chosen))
    content = json.loads((tmp_path / "first.json").read_text())
    curves = content["curves"]["small"]
    assert curves.keys() == {"ours", "random", "grid", "tpe", "hypertune"}
    assert all(len(one) == 3 for one in curves.values())
    # Judged by what plans come to on average, and none of them is above the best.
    assert all(0 < share <= 1 for one in curves.values() for _, shares in one for share in shares)


def test_claims_are_counted_where_nothing_differs(tmp_path: Path) -> None:
    arguments = ["--synthetic", "small", "--seeds", "4", "--jobs", "1", "--json", "aa.json"]
    out, _ = complete(start(tmp_path, "aa", *arguments))
    assert "goal met: small: a gain claimed in 0 of 4 searches" in out
    verdicts = json.loads((tmp_path / "aa.json").read_text())["verdicts"]["small"]
    assert len(verdicts) == 4
