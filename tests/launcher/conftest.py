# SPDX-License-Identifier: Apache-2.0
"""What every test of the launcher starts from."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launcher.cli.commands import clean_environment

from xlaunch.cache.table import VARIABLES
from xlaunch.machine.limits import ControlGroups
from xlaunch.machine.tree import Tree

LIMIT_BYTES = 256 << 20


@pytest.fixture(scope="session", autouse=True)
def signals_reach_launches() -> Iterator[None]:
    """Launches do not ignore a signal because these tests run under nohup or behind a shell's `&`.

    What is ignored stays so through exec; what is handled, however little, is not.
    """
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Launches keep what they keep between runs below a home and a cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        # torch, imported by tests before these, writes where its cache is into the environment.
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def private_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads what the user has set for every launch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def unshared(
    tmp_path: Path, needs: Callable[[object, str], None]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start programs as PID 1 of a PID namespace, after options of `unshare`, and end them after the test."""
    unshare = ("unshare", "--fork", "--pid", "--kill-child")
    try:
        code = subprocess.run((*unshare, "true"), capture_output=True, check=False).returncode
    except FileNotFoundError:
        code = 1
    needs(code == 0, "unshare (util-linux), as root")
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        run = subprocess.Popen(
            (*unshare, *words), cwd=tmp_path, env=clean_environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        begun.append(run)
        return run

    yield start
    for run in begun:
        run.kill()
        run.communicate()


@pytest.fixture
def limited_group(needs) -> Iterator[Path]:
    """A control group below this process's own, with `LIMIT_BYTES` of memory."""
    for levels in ControlGroups(Tree("/")).enclosing("memory"):
        for level in levels:
            name = "max" if level.version == 2 else "limit_in_bytes"
            group = Path(level.directory, f"xlaunch-test-{os.getpid()}")
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                (group / f"memory.{name}").write_text(str(LIMIT_BYTES))
                yield group
                return
            except OSError:
                continue
            finally:
                group.rmdir()
    needs(False, "a memory control group that can be divided")
