# SPDX-License-Identifier: Apache-2.0
"""A fleet on a real PostgreSQL: workers of several hosts, one of which is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.tuner.search.studies import store_of
from tests.tuner.search.test_study import launch, step
from tests.tuner.search.test_workers import complete, launches_begun, output, worker

from xtune.errors import StorageError
from xtune.search.records import Stage
from xtune.search.storage import open_storage
from xtune.search.study import list_studies

pytestmark = pytest.mark.full


def binaries() -> Path | None:
    """Where Debian keeps what a cluster is made with, of the latest version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class Server:
    """A cluster of its own behind a socket in a private folder."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self._folder = folder
        self._bin = bin_folder
        # It refuses to be root.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(folder, self._user)
        self._run("initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "postgres", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@/postgres?host={self._folder}"

    def start(self) -> None:
        options = f"-k {self._folder} -c listen_addresses= -c fsync=off"
        self._run(
            *("pg_ctl", "-D", f"{self._folder}/data", "-l", f"{self._folder}/log", "-w"),
            *("-o", options, "start"),
        )

    def stop(self) -> None:
        self._run("pg_ctl", "-D", f"{self._folder}/data", "-w", "-m", "immediate", "stop")

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / name), *arguments],
            user=self._user,
            cwd=self._folder,
            # pg_ctl's server keeps its output open; a pipe would never end.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, (name, done.returncode)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    needs: Callable[[object, str], None] = request.getfixturevalue("needs")
    found = binaries()
    needs(found, "PostgreSQL (Debian: postgresql)")
    needs(find_spec("psycopg"), "psycopg (psycopg[binary])")
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="xtune-pg-", dir="/tmp") as folder:
        made = Server(Path(folder), found)
        made.start()
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def url(server: Server) -> str:
    """A database of its own for each test."""
    import sqlalchemy

    name = f"test_{os.urandom(4).hex()}"
    engine = sqlalchemy.create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.url.replace("/postgres?", f"/{name}?")


def test_two_hosts_share_a_study_and_one_is_killed(url: str, tmp_path: Path) -> None:
    with worker(url, tmp_path, 40, 1, hang_at=6, host="node1") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "hanging\n"
        with worker(url, tmp_path, 40, 2, host="node2") as second:
            while launches_begun(tmp_path) < 12:
                assert second.poll() is None
            first.kill()
            said = output(second)
    made = int(said.split()[1].rstrip(","))
    # The dead worker's launch is given up once its count has stood still.
    with worker(url, tmp_path, 20, 3, host="node3") as third:
        more = int(output(third).split()[1].rstrip(","))
    records = complete(url)
    assert len(records) == 6 + made + more == launches_begun(tmp_path) - 1
    hosts = Counter(record.host.split()[0] for record in records)
    assert hosts == {"node1": 6, "node2": made, "node3": more}
    baselines = [r.host.split()[0] for r in records if r.step.stage is Stage.BASELINE]
    assert sorted(baselines) == ["node1", "node2", "node3"]


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
        assert len(list_studies(storage)) == 1


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
