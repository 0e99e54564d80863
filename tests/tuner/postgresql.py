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
    """A cluster of its own behind a socket in a private directory."""

    def __init__(self, directory: Path, bin_directory: Path) -> None:
        self._directory = directory
        self._bin = bin_directory
        # It refuses to be root.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(directory, self._user)
        self._run("initdb", "-D", f"{directory}/data", "-A", "trust", "-U", "postgres", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@/postgres?host={self._directory}"

    def start(self) -> None:
        options = f"-k {self._directory} -c listen_addresses= -c fsync=off"
        self._run(
            *("pg_ctl", "-D", f"{self._directory}/data", "-l", f"{self._directory}/log", "-w"),
            *("-o", options, "start"),
        )

    def stop(self) -> None:
        self._run("pg_ctl", "-D", f"{self._directory}/data", "-w", "-m", "immediate", "stop")

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / name), *arguments],
            user=self._user,
            cwd=self._directory,
            # pg_ctl's server keeps its output open; a pipe would never end.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, (name, done.returncode)
