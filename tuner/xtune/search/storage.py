# SPDX-License-Identifier: Apache-2.0
"""Storages of studies: a SQLite file, a journal file on a network file system, or a database.

All are Optuna storages, so its dashboard and command line can open them. Only public methods of
`optuna.storages.BaseStorage` are used. Optuna is imported when a storage is opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xlaunch.files import PRIVATE, locked, make_private
from xlaunch.machine.tree import Tree, file_system_of
from xtune.errors import StorageError, StorageNameError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage, RDBStorage
    from sqlalchemy.engine import URL

SQLITE = "sqlite:///"
JOURNAL = "journal:"
"""xtune's scheme for a file of Optuna's journal, since SQLite needs locks that NFS lacks."""

JOURNAL_SUFFIXES = (".journal", ".log")
SUFFIXES = (".db", ".sqlite", ".sqlite3", *JOURNAL_SUFFIXES)

LOCK_SUFFIX = ".lock"
"""Of the lock file beside a SQLite file."""

SQLITE_TIMEOUT_S = 60
"""Maximum wait for another process to finish writing."""

MAX_MAKERS = 20
"""Maximum attempts to create tables while other machines create them too."""

MAX_LINE_BYTES = 1 << 20
"""Limit of the first line of a journal; Optuna writes less than 1 KiB."""

DRIVERS = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Packages of database drivers that are not named like their modules."""

NETWORK_FILE_SYSTEMS = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
))  # fmt: skip


class Storage(NamedTuple):
    backend: BaseStorage
    shown: str
    """Its URL without the password."""
    lock_path: str | None
    """Lock file that serializes writers of a SQLite file; other storages need none."""
    uncached: BaseStorage
    """The same without Optuna's cache, for studies that are deleted."""

    def close(self) -> None:
        """Close the database connections; the next use opens new ones."""
        engine = getattr(self.uncached, "engine", None)
        if engine is not None:
            engine.dispose()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Make reads and writes inside atomic for other workers."""
        with _locked(self.lock_path) if self.lock_path else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Convert storage failures inside to a one-line StorageError."""
        import sqlalchemy
        from optuna.exceptions import StorageInternalError

        # A damaged journal is a JSONDecodeError.
        storage_errors = (StorageInternalError, sqlalchemy.exc.SQLAlchemyError)
        try:
            yield
        except (*storage_errors, OSError, json.JSONDecodeError) as error:
            raise StorageError(f"storage {self.shown} cannot be used: {_reason(error)}") from error


def _locked(lock_path: str) -> contextlib.AbstractContextManager[int]:
    # Who may write the studies may lock them.
    mode = stat.S_IMODE(os.stat(lock_path.removesuffix(LOCK_SUFFIX)).st_mode) & 0o666
    return locked(lock_path, mode=mode)


def default_url(environment: Mapping[str, str], *, make: bool = True) -> str:
    """URL of the default storage, a file below XDG_STATE_HOME.

    `make`: create the directory. Raises StorageNameError if it cannot be made.
    """
    remedy = "set XDG_STATE_HOME to a writable directory, or give --storage FILE"
    state, home = environment.get("XDG_STATE_HOME", ""), os.path.expanduser("~")
    if not os.path.isabs(state):
        if make and not os.path.lexists(home):
            raise StorageNameError(
                f"studies cannot be stored: HOME {home} does not exist; {remedy}"
            )
        state = os.path.join(home, ".local", "state")
    directory = os.path.join(state, "xtune")
    try:
        if make:
            make_private(directory)
    except OSError as error:
        reason = f"studies cannot be stored in {directory}: {error.strerror}"
        raise StorageNameError(f"{reason}; {remedy}") from error
    return file_url(Path(directory, "studies"))


def file_url(path: Path) -> str:
    """The URL of a file; without a suffix, the one for its file system is added.

    **Ex.:** ``studies`` is ``sqlite:///studies.db``, on NFS ``journal:studies.journal``.
    """
    kind = file_system_of(Tree("/"), str(path))
    on_network = kind in NETWORK_FILE_SYSTEMS
    if path.suffix not in SUFFIXES:
        path = path.with_name(path.name + (".journal" if on_network else ".db"))
    if path.suffix in JOURNAL_SUFFIXES:
        return f"{JOURNAL}{path}"
    if on_network:
        raise StorageNameError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not work; use"
            f" {path.with_suffix('.journal')}, or a database server"
        )
    return f"{SQLITE}{path}"


def open_storage(
    text: str | None, environment: Mapping[str, str] | None = None, *, create: bool = True
) -> Storage:
    """Open a --storage: a path, or any URL that Optuna accepts.

    None: the user's default. `create`: create a file that is absent. Without it an absent default is
    a storage without studies, and another absent file an error.

    Raises StorageNameError if the text names no storage or a file that cannot be one, StorageError if
    the storage cannot be reached or a driver is missing.
    """
    if text == "":
        raise StorageNameError("--storage: the name is empty; leave it out for the default")
    environment = os.environ if environment is None else environment
    url = default_url(environment, make=create) if text is None else text
    if "://" not in url and not url.startswith(JOURNAL):
        url = url if os.path.isdir(url) else file_url(Path(url))
    if os.path.isdir(path := url.removeprefix(JOURNAL).removeprefix(SQLITE)):
        example = os.path.join(path, "studies.db")
        raise StorageNameError(
            f"storage {path} is a directory; name a file in it, such as {example}"
        )
    try:
        file, url = _with_file(url)
        if file is not None and not file.exists() and text is None and not create:
            from optuna.storages import InMemoryStorage

            empty = InMemoryStorage()
            return Storage(empty, url, None, empty)
        if file is not None:
            _check_file(file, is_journal=url.startswith(JOURNAL), must_exist=not create)
        return _open(url, file)
    except StorageError:
        raise
    except ImportError as error:
        missing = getattr(_cause(error), "name", None) or _parsed(url).get_driver_name()
        raise StorageError(
            f"storage {_shown(url)} needs the driver {missing}, which is not installed here:"
            f" pip install '{DRIVERS.get(missing, missing)}'"
        ) from error
    except Exception as error:
        import sqlalchemy

        is_misnamed = isinstance(error, sqlalchemy.exc.ArgumentError)
        raise (StorageNameError if is_misnamed else StorageError)(
            f"storage {_shown(url)} cannot be opened: {_reason(error)}; give a file, or a URL such as"
            " postgresql://user@host/database"
        ) from error


def _with_file(url: str) -> tuple[Path | None, str]:
    """The file of a storage, None for a server; and the URL with its absolute path."""
    if url.startswith(JOURNAL):
        path = Path(os.path.abspath(url.removeprefix(JOURNAL)))
        return path, f"{JOURNAL}{path}"
    parts = _parsed(url)
    if parts.get_backend_name() != "sqlite":
        return None, url
    if parts.database in (None, "", ":memory:"):
        raise StorageNameError(f"storage {url} is only in memory; name a file: {SQLITE}studies.db")
    path = Path(os.path.abspath(parts.database))
    return path, parts.set(database=str(path)).render_as_string(hide_password=False)


def _check_file(path: Path, *, is_journal: bool, must_exist: bool) -> None:
    """Raise StorageNameError unless studies can be stored in a file at that path."""
    exists, parent = path.exists(), path.parent
    if exists and not path.is_file():
        problem = " is not a regular file; choose another name"
    elif not parent.is_dir():
        problem = f": the directory {parent} does not exist; create it first"
    elif must_exist and not exists:
        problem = " does not exist; begin a study with xtune PROGRAM"
    elif not os.access(parent, os.W_OK | os.X_OK):
        another = "copy the file to" if exists else "choose"
        where = f"{parent} is not writable, and locks are kept there"
        problem = f": {where}; {another} another directory"
    elif exists and not os.access(path, os.R_OK | os.W_OK):
        problem = " is not readable and writable; change its mode, or choose another file"
    elif exists and (why := _journal_problem(path) if is_journal else _database_problem(path)):
        problem = f" holds no studies: {why}; choose another name"
    else:
        return
    raise StorageNameError(f"storage {path}{problem}")


def _journal_problem(path: Path) -> str:
    with path.open("rb") as stream:
        line = stream.readline(MAX_LINE_BYTES)
    with contextlib.suppress(ValueError, TypeError):
        if not line or "op_code" in dict(json.loads(line)):
            return ""
    return "it is not a journal of Optuna's"


def _database_problem(path: Path) -> str:
    """Why an existing file is no database of Optuna's. An empty one may become it."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)) as database:
            rows = database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
    except sqlite3.OperationalError:  # such as a lock: Optuna waits longer
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    # These come first when tables are created.
    is_foreign = rows and {("studies",), ("version_info",)}.isdisjoint(rows)
    return "it is a database of another program" if is_foreign else ""


def _open(url: str, file: Path | None) -> Storage:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if file is not None:
        # Studies hold command lines, whose secrets are this user's. SQLite's own files get the same mode.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    if url.startswith(JOURNAL):
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        journal = JournalStorage(JournalFileBackend(str(file)))
        return Storage(journal, url, None, journal)
    if file is None:
        # A server may be restarted between launches.
        backend = _with_tables(url, pool_pre_ping=True)
        return Storage(optuna.storages.get_storage(backend), _shown(url), None, backend)
    from sqlalchemy.pool import NullPool

    lock_path, timeout = f"{file}{LOCK_SUFFIX}", {"timeout": SQLITE_TIMEOUT_S}
    # Two processes cannot create the tables of a new file at the same time.
    with _locked(lock_path):  # a file that is not held open can be moved
        backend = _with_tables(url, poolclass=NullPool, connect_args=timeout)
    return Storage(optuna.storages.get_storage(backend), _shown(url), lock_path, backend)


def _with_tables(url: str, **arguments: Any) -> RDBStorage:
    """Open a database and create its tables, which another machine may do at the same time."""
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    for _ in range(MAX_MAKERS):
        with contextlib.suppress(IntegrityError, ProgrammingError):
            return RDBStorage(url, engine_kwargs=arguments)
        time.sleep(random.random() / 10)  # noqa: S311 - no secret
    return RDBStorage(url, engine_kwargs=arguments)


def _parsed(url: str) -> URL:
    import sqlalchemy

    return sqlalchemy.engine.make_url(url)


def _shown(url: str) -> str:
    """A URL without its password."""
    scheme, separator, location = url.partition("://")
    user, at, place = location.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{place}"


def _cause(error: BaseException) -> BaseException:
    """The root cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    """The first line of the root cause."""
    cause = _cause(error)
    return str(cause).strip().split("\n")[0].strip().rstrip(".") or type(cause).__name__
