# SPDX-License-Identifier: Apache-2.0
"""What tests of the tuner share: a home of their own, a desk, and for fleets a real database server."""

from __future__ import annotations

import functools
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.tuner.cli.commands import NAP, RATE, Desk
from tests.tuner.postgresql import Server, binaries

Needs = Callable[[object, str], None]


@pytest.fixture(scope="package", autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep studies, caches and options of these tests out of the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("CACHE", "CONFIG", "DATA", "STATE"):
            patch.setenv(f"XDG_{name}_HOME", str(tmp_path_factory.mktemp(name.lower())))
        yield


@pytest.fixture(scope="package", autouse=True)
def quick_databases() -> Iterator[None]:
    """Nothing waits for the disk; the files that describe Optuna's tables run once."""
    from alembic.util import pyfiles
    from sqlalchemy import Engine, event

    def do_not_wait(connection: object, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", do_not_wait)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # by journals of Optuna, after each line
        patch.setattr(pyfiles, "load_module_py", functools.cache(pyfiles.load_module_py))
        yield
    event.remove(Engine, "connect", do_not_wait)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An empty storage, and two programs whose truth is known."""
    desk = Desk(tmp_path)
    desk.write("nap.py", NAP)
    desk.write("rate.py", RATE)
    return desk


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    needs: Needs = request.getfixturevalue("needs")
    found = binaries()
    needs(found, "PostgreSQL (Debian: postgresql)")
    needs(find_spec("psycopg"), "psycopg (psycopg[binary])")
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="xtune-pg-", dir="/tmp") as directory:
        made = Server(Path(directory), found)
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
