# SPDX-License-Identifier: Apache-2.0
"""The command as a user types it, and a program that tells what it was started with."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from xlaunch import cli

SHOW = Path(__file__).with_name("show.py")
XLAUNCH = (sys.executable, "-m", "xlaunch")
EAT_MEMORY = "held = []\nwhile True: held.append(b'x' * (1 << 24))"
PATIENCE_S = 60.0
"""How long a launch may take. Never waited for in full unless the test fails."""


AWKWARD = [
    b"--",
    b"",
    b" ",
    b"two words",
    b"tab\tand\nnewlines\n\n",
    b"'single' \"double\" `back`",
    b"* ? [a-z] {a,b} ~ !",
    b"$HOME ${HOME} $(id) $? %s %(x)s",
    b"back\\slash \\n \\",
    b"a=b; c & d | e > f # g",
    b"\xff\xfe not utf-8 \x80",
    "ünïcödé 🐍".encode(),
    b"\x01\x1b[31m\x7f",
    b"-",
    b"--",
    b"--instances",
    b"7",
    b"-m",
    b"--help",
    b"--version",
    b"--dry-run",
    b"--ncores=max",
    b"-q",
    b"plan",
    b"{instance}",
    b"@file",
    b"x" * 100_000,
]
"""Arguments that something on the way might change."""

Word = str | bytes | Path

_SET_BY_A_SHELL = (
    "COLUMNS",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "OMP_NUM_THREADS",
    "PYTHONUNBUFFERED",
    "XLAUNCH_",
)


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what would change a launch, and with `more`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "XLAUNCH_RECORDS_DIR" or not name.startswith(_SET_BY_A_SHELL)
    }
    return kept | more


def xlaunch(*words: Word, env: dict[str, str] | None = None, **options: Any) -> Done:
    """Run the command to its end. `options` go to subprocess.run."""
    return run((*XLAUNCH, *words), env=env, **options)


def ask(*words: Word, env: dict[str, str] | None = None, cwd: Path | str = ".") -> Done:
    """Run a command that starts no program, in this process and otherwise as `xlaunch` does."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
        for _ in range(2)
    )
    inherited = clean_environment() if env is None else env
    with (
        mock.patch.dict(os.environ, inherited, clear=True),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(os, "execve", _refuse),
        mock.patch.object(os, "fork", _refuse),
    ):
        code = cli.run([os.fsdecode(word) for word in words])
    told, complained = (stream.buffer.getvalue() for stream in (out, err))
    return Done(code, told, complained.decode())


def _refuse(*_: object) -> None:
    pytest.fail("a program was started")


def run(words: Sequence[Word], *, env: dict[str, str] | None = None, **options: Any) -> Done:
    """Run any command to its end, in a clean environment unless `env` is given."""
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    done = subprocess.run(
        words,
        env=clean_environment() if env is None else env,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )
    return Done(done.returncode, done.stdout or b"", (done.stderr or b"").decode(errors="replace"))


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: bytes
    err: str

    def shown(self) -> list[dict[str, Any]]:
        """What each instance of the program `SHOW` told, by instance."""
        assert self.code == 0, self.err
        told = [json.loads(line) for line in self.out.splitlines()]
        return sorted(told, key=lambda one: int(one["env"]["XLAUNCH_INSTANCE_INDEX"]))

    def only(self) -> dict[str, Any]:
        """What the only instance of `SHOW` told."""
        (one,) = self.shown()
        return one

    def refused(self, code: int = 2) -> str:
        """The one line of an error, after its prefix; nothing else may have been printed."""
        assert (self.code, self.out) == (code, b""), self
        return one_error_line(self.err)


def own_lines(err: str) -> list[str]:
    """What a launch says of itself, without tables and times, and without the work of others."""
    lines = [line for line in err.splitlines() if line.startswith("xlaunch: ")]
    others = ("busy with other work", "steal in /proc/stat")
    kept = [line for line in lines if not any(words in line for words in others)]
    return [re.sub(r"; [\d.]+ \w+( [\d.]+ \w+)?$", "; ... s", line) for line in kept]


def one_error_line(err: str) -> str:
    """The text of the error line that `err` must be."""
    prefix = "xlaunch: error: "
    assert err.startswith(prefix), err
    assert err.endswith("\n"), err
    assert len(err.splitlines()) == 1, err
    return err.removeprefix(prefix).rstrip("\n")


def show(*words: Word, options: Sequence[Word] = (), **more: Any) -> dict[str, Any]:
    """What `SHOW` tells when it is launched with `options` and given `words`."""
    return xlaunch(*options, SHOW, *words, **more).only()


def arguments_of(told: dict[str, Any]) -> list[bytes]:
    """The program's arguments, its own name left out."""
    return [bytes.fromhex(word) for word in told["argv"]]


def program(path: Path, text: str) -> Path:
    """Write an executable file."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def allowed_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def two_cpus(needs: Any) -> list[int]:
    """The first two CPUs that may be used here; the test is skipped without two."""
    cpus = allowed_cpus()
    needs(len(cpus) > 1, "two CPUs")
    return cpus[:2]


def in_group(group: Path, *command: str) -> tuple[str, ...]:
    """A command that runs in a control group."""
    return ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command)
