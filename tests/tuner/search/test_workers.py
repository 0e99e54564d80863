# SPDX-License-Identifier: Apache-2.0
"""Real processes on one study: killed and doubled."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import optuna
import pytest
from tests.tuner.cli.commands import started
from tests.tuner.search.studies import SUBJECT, search, store_of

import xlaunch
import xtune
from xtune.search.records import Record, Stage
from xtune.search.storage import open_storage
from xtune.search.study import open_study

ROOT = Path(__file__).resolve().parents[3]
FLOORS = [str(Path(package.__file__).parents[1]) for package in (xlaunch, xtune)]


@pytest.fixture(params=["studies.db", pytest.param("studies.journal", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return open_storage(str(tmp_path / request.param)).shown


def worker(
    url: str, directory: Path, launches: int, seed: int, **more: object
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A search in a process of its own."""
    asked = json.dumps({"launches": launches, "seed": seed, **more})
    return started(
        [sys.executable, "-m", "tests.tuner.search.studies", url, asked],
        cwd=directory,
        env={"HOME": str(directory), "PYTHONPATH": ":".join([str(ROOT), *FLOORS, *sys.path])},
    )


def output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def launches_begun(directory: Path) -> int:
    return len(list(directory.glob("* began")))


def complete(url: str) -> list[Record]:
    with contextlib.closing(open_storage(url)) as storage:
        records = store_of(storage).records()
    assert all(record.launch is not None for record in records)
    keys = Counter(record.step.key for record in records)
    assert set(keys.values()) <= {1}, "counted twice"
    return list(records)


@pytest.mark.parametrize(
    ("url", "hang_at"),
    [
        pytest.param("studies.db", 3, marks=pytest.mark.long),
        pytest.param("studies.db", 0, marks=pytest.mark.long),
        pytest.param("studies.db", 25, marks=pytest.mark.long),
        pytest.param("studies.journal", 3, marks=pytest.mark.long),
        pytest.param("studies.journal", 0, marks=pytest.mark.full),
        pytest.param("studies.journal", 25, marks=pytest.mark.full),
    ],
    indirect=["url"],
)
def test_a_killed_search_loses_the_launch_that_it_was_making_and_no_other(
    url: str, tmp_path: Path, hang_at: int
) -> None:
    budget = max(12, hang_at + 5)
    with worker(url, tmp_path, budget, 1, hang_at=hang_at) as process:
        assert process.stdout.readline() == "hanging\n"
        process.kill()
        process.wait()
    assert len(complete(url)) == hang_at
    result = search(url, tmp_path, budget - hang_at, 1)
    records = complete(url)
    assert len(records) == hang_at + result.launches
    assert launches_begun(tmp_path) == len(records) + 1
    stages = [record.step.stage for record in records]
    assert stages[0] is Stage.BASELINE
    assert stages.count(Stage.BASELINE) == 1
    trials = open_storage(url).backend.get_all_trials(open_study(open_storage(url), SUBJECT).id)
    lost = [trial for trial in trials if "not made" in trial.user_attrs]
    assert [trial.user_attrs["not made"] for trial in lost] == ["its worker is dead"]
    assert all(trial.state is optuna.trial.TrialState.FAIL for trial in lost)


@pytest.mark.long
def test_two_workers_make_each_launch_once(url: str, tmp_path: Path) -> None:
    with worker(url, tmp_path, 20, 1) as one, worker(url, tmp_path, 20, 2) as other:
        said = output(one) + output(other)
    records = complete(url)
    made = [int(line.split()[1].rstrip(",")) for line in said.splitlines()]
    assert sum(made) == len(records) == launches_begun(tmp_path)
    assert len(made) == 2
    assert max(made) > 10
    assert [record.step.stage for record in records].count(Stage.BASELINE) == 1


@pytest.mark.long
def test_one_of_two_workers_is_killed_and_nothing_is_lost(url: str, tmp_path: Path) -> None:
    with worker(url, tmp_path, 40, 1, hang_at=6) as first:
        assert first.stdout.readline() == "hanging\n"
        with worker(url, tmp_path, 25, 2) as second:
            # It waits for its turn, and gets it when the kernel takes the lock from the first.
            first.send_signal(signal.SIGKILL)
            first.wait()
            made = int(output(second).split()[1].rstrip(","))
    assert made > 10
    assert len(complete(url)) == 6 + made == launches_begun(tmp_path) - 1
