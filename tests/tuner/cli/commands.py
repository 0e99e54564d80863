# SPDX-License-Identifier: Apache-2.0
"""The command as a user types it, in a directory with studies of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from xtune.cli import main

XTUNE = (sys.executable, "-m", "xtune")
PATIENCE_S = 200.0
"""How long a search may take. Never waited for in full unless the test fails."""

NAP = """\
import sys, time
time.sleep(float(sys.argv[1]))
"""
"""Takes as long as it is told: of several times the shortest is best."""

RATE = """\
import sys, time
for turn in range(8):
    time.sleep(0.005)
    print(f"{int(sys.argv[1]) * 100} items/s", flush=True)
"""
"""Prints the rate that it is told."""


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process whose output is read; it is killed in the end. `options` go to Popen."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def found(self) -> dict[str, Any]:
        """What --json printed: one object and nothing else."""
        return json.loads(self.out)

    @property
    def message(self) -> str:
        """The one line of an error."""
        assert self.out == ""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("xtune: error: ")
        return self.err.strip().removeprefix("xtune: error: ")


class Desk(NamedTuple):
    """A directory to run xtune in; what xtune keeps, studies and caches, lies below it."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """What xtune inherits; every process that it starts has it too."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name == "XLAUNCH_RECORDS_DIR"
            or not name.startswith(("XLAUNCH_", "OMP_", "LD_PRELOAD"))
        }
        return {
            **kept,
            "HOME": str(self.directory),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "XDG_STATE_HOME": str(self.directory / "state"),
            "XDG_RUNTIME_DIR": str(self.directory),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def xtune(self, *words: str) -> Done:
        """Run the command in this process, which has imported what a search needs."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.directory),
            mock.patch.dict(os.environ, self.environment, clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main(words)
        return Done(code, out.getvalue(), err.getvalue())

    def search(
        self,
        program: str,
        *words: str,
        n: str = "1,2",
        budget: str = "30",
        metric: str = "items/s",
        may_fail: bool = False,
    ) -> Done:
        """Search the values `n` of the program's one argument."""
        searched = ("--metric", metric, "--only-params", "--param", f"n={n}", "--budget", budget)
        done = self.xtune(*searched, *words, program, "{n}")
        assert may_fail or done.code == 0, done.err
        return done

    def run(self, *command: str) -> Done:
        """Run any command, as a process."""
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)
