# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of the tests' own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


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
