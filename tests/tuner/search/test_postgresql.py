# SPDX-License-Identifier: Apache-2.0
"""A study on a real PostgreSQL: workers of several hosts, and a server that restarts."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from tests.tuner.cli.commands import PATIENCE_S, Desk
from tests.tuner.postgresql import Server
from tests.tuner.search.studies import store_of
from tests.tuner.search.test_study import launch, step
from tests.tuner.search.test_workers import complete, launches_begun, output, worker

from xtune import tune
from xtune.errors import StorageError
from xtune.search.storage import open_storage
from xtune.search.study import list_studies

pytestmark = pytest.mark.full


def test_many_workers_at_once_make_each_launch_once(url: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(worker(url, tmp_path, 15, number, host=f"node{number}"))
            for number in range(4)
        ]
        said = [output(one) for one in workers]
    made = [int(one.split()[1].rstrip(",")) for one in said]
    records = complete(url)
    assert len(records) == sum(made) == launches_begun(tmp_path)
    with contextlib.closing(open_storage(url)) as storage:
        (study,), _ = list_studies(storage)
        found = optuna.load_study(study_name=f"{study.name} results", storage=storage.backend)
        trials = found.trials
    numbers = [one for trial in trials for one in trial.user_attrs["launches"]]
    assert sorted(numbers) == [record.number for record in records]
    configurations = {record.step.configuration for record in records}
    assert len(trials) == len(configurations)


def test_a_server_that_restarts_loses_nothing(server: Server, url: str) -> None:
    with contextlib.closing(open_storage(url)) as storage:
        store = store_of(storage)
        first, second = store.claim(step(0)), store.claim(step(1))
        assert first is not None
        assert second is not None
        assert store.finish(first, launch(1.0))
        server.stop()
        with pytest.raises(StorageError, match="cannot be used") as caught:
            store.finish(second, launch(2.0))
        assert "\n" not in str(caught.value)
        with pytest.raises(StorageError, match="cannot be opened"):
            open_storage(url)
        server.start()
        assert store.finish(second, launch(2.0))
    values = [record.launch.value for record in complete(url) if record.launch]
    assert values == [1.0, 2.0]


def test_a_search_closes_its_connections(
    desk: Desk, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.directory)
    search = {"metric": "items/s", "only_params": True, "param": ["n=1,2"], "budget": "2"}
    tune("rate.py", "{n}", storage=url, **search)
    assert desk.xtune("list", "--storage", url).out.startswith("rate")
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as own:
        until = time.monotonic() + PATIENCE_S  # the server notices a closed connection later
        while own.scalar(sqlalchemy.text(query)) != 1:
            assert time.monotonic() < until
            time.sleep(0.02)
    engine.dispose()
