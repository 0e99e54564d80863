# SPDX-License-Identifier: Apache-2.0
"""Where studies are kept: a SQLite file, a journal file on a network file system, or a database.

All are Optuna's storages, so its dashboard and its command line open what is kept here. Only the
public methods of `optuna.storages.BaseStorage` are used, and Optuna is imported when a storage is
opened, not before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xtune.errors import StorageError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage, RDBStorage

SQLITE = "sqlite:///"
JOURNAL = "journal:"
"""Ours, for a file of Optuna's journal: SQLite's locks do not hold on network file systems."""

SQLITE_TIMEOUT_S = 60
"""For another process to finish what it writes."""

MAX_MAKERS = 20
"""Of one database's tables at a time."""

DRIVERS = {
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "pymysql": "pymysql",
}
"""Of databases: what pip calls them."""

NETWORK_FILE_SYSTEMS = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gfs2", "glusterfs",
        "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3",
        "smbfs", "wekafs",
    )
)  # fmt: skip


class Storage(NamedTuple):
    """An open storage."""

    backend: BaseStorage
    shown: str
    """Its URL without a password."""
    lock_path: str | None
    """A file whose lock keeps writers of a SQLite file apart; other storages do that themselves."""
    disconnect: Callable[[], None] = lambda: None

    def close(self) -> None:
        """End the connections to a database; it may be used again, which makes new ones."""
        self.disconnect()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """What is read and written inside is one step for every worker."""
        if self.lock_path is None:
            yield
            return
        with open(self.lock_path, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Whatever goes wrong inside with the storage becomes a StorageError of one line."""
        import sqlalchemy
        from optuna.exceptions import StorageInternalError

        try:
            yield
        except (StorageInternalError, sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            raise StorageError(f"storage {self.shown} cannot be used: {_reason(error)}") from error


def default_url(environment: Mapping[str, str]) -> str:
    """The URL of the user's own studies: below XDG_STATE_HOME.

    Raises StorageError where there is no such directory and none can be made.
    """
    home = environment.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".local", "state")
    directory = Path(home, "xtune")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"studies cannot be kept in {directory}: {error.strerror}; set XDG_STATE_HOME to a directory"
            " that can be written, or say --storage FILE"
        ) from error
    return file_url(directory / "studies")


def file_url(path: Path) -> str:
    """The URL of a file, with the suffix that its file system calls for unless it has one.

    **Ex.:** ``studies`` is ``sqlite:///studies.db``, on NFS ``journal:studies.journal``.
    """
    on_network = file_system_of(path) in NETWORK_FILE_SYSTEMS
    if path.suffix not in (".db", ".sqlite", ".sqlite3", ".journal", ".log"):
        path = path.with_name(path.name + (".journal" if on_network else ".db"))
    if path.suffix in (".journal", ".log"):
        return f"{JOURNAL}{path}"
    if on_network:
        raise StorageError(
            f"{path} lies on a network file system ({file_system_of(path)}), where SQLite's locks do"
            f" not hold; take {path.with_suffix('.journal')}, or a database server"
        )
    return f"{SQLITE}{path}"


def open_storage(text: str | None, environment: Mapping[str, str] | None = None) -> Storage:
    """Open what --storage says, and make it where it is a file: a path, or any URL that Optuna takes.

    None is the user's own. Raises StorageError where it is out of reach, or a driver is missing.
    """
    if text is None:
        text = default_url(os.environ if environment is None else environment)
    url = text if "://" in text or text.startswith(JOURNAL) else file_url(Path(text))
    try:
        return _open(url)
    except StorageError:
        raise
    except ImportError as error:
        missing = getattr(_cause(error), "name", None) or _driver_of(url)
        raise StorageError(
            f"storage {_shown(url)} needs the driver {missing}, which is not installed here:"
            f" pip install '{DRIVERS.get(missing, missing)}'"
        ) from error
    except Exception as error:
        raise StorageError(
            f"storage {_shown(url)} cannot be opened: {_reason(error)}; a path of a file, or a URL"
            " such as postgresql://user@host/database is allowed"
        ) from error


def _open(url: str) -> Storage:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url.startswith(JOURNAL):
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        path = url.removeprefix(JOURNAL)
        return Storage(JournalStorage(JournalFileBackend(path)), url, None)
    is_sqlite = url.startswith("sqlite:")
    lock_path = _lock_path(url) if is_sqlite else None
    # A server may have been restarted since the last launch. A file is opened in no time, and one
    # that is not held open can be moved.
    arguments: dict[str, Any] = {"pool_pre_ping": True}
    if is_sqlite:
        from sqlalchemy.pool import NullPool

        arguments = {"poolclass": NullPool, "connect_args": {"timeout": SQLITE_TIMEOUT_S}}
    # Two processes that make the tables of one new file trip over each other.
    with Storage.writing(Storage(None, "", lock_path)):  # type: ignore[arg-type]
        backend = _with_tables(partial(optuna.storages.RDBStorage, url, engine_kwargs=arguments))
    cached = optuna.storages.get_storage(backend)
    return Storage(cached, _shown(url), lock_path, backend.engine.dispose)


def _with_tables(opened: Callable[[], RDBStorage]) -> RDBStorage:
    """The database, its tables made; two machines that make them at once trip over each other."""
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    for _ in range(MAX_MAKERS):
        try:
            return opened()
        except (IntegrityError, ProgrammingError):
            # Another has made them meanwhile: next time they are there.
            time.sleep(random.random() / 10)  # noqa: S311 - no secret
    return opened()


def _lock_path(url: str) -> str:
    import sqlalchemy

    path = sqlalchemy.engine.make_url(url).database
    if not path or path == ":memory:":
        raise StorageError(f"storage {url} is not kept; name a file: {SQLITE}studies.db")
    return f"{path}.lock"


def file_system_of(path: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """The type of the file system that a path lies on, or will; empty where it is not known."""
    real = os.path.realpath(path)
    best, found = "", ""
    try:
        lines = Path(mounts).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        if not after:
            continue
        point = before.split()[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # Later lines lie over earlier ones.
        if inside and len(point) >= len(best):
            best, found = point, after.split()[0]
    return found


def _driver_of(url: str) -> str:
    """The module that a URL asks for. **Ex.:** ``psycopg`` of ``postgresql+psycopg://...``."""
    import sqlalchemy

    return sqlalchemy.engine.make_url(url).get_driver_name()


def _shown(url: str) -> str:
    """A URL without its password."""
    scheme, separator, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{place}"


def _cause(error: BaseException) -> BaseException:
    """What lies at the bottom of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    """The first line of what lies at the bottom of it."""
    cause = _cause(error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__
