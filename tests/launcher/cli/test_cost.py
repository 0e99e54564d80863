# SPDX-License-Identifier: Apache-2.0
"""A launch imports nothing heavy: what it does not import, nobody waits for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.launcher.cli.commands import clean_environment, run

HEAVY = frozenset(("cpuinfo", "numpy", "optuna", "psutil", "pynvml", "rich", "torch"))
SEVERAL = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q")


def imported(*words: str, command: tuple[str, ...] = ("-m", "xlaunch"), **env: str) -> set[str]:
    """The modules that a command imports, in the forked supervisor too."""
    env = clean_environment(**env)
    done = run((sys.executable, "-X", "importtime", *command, *words), env=env)
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip() for line in lines}
    assert "xlaunch.cli" in names
    return names


@pytest.mark.parametrize(
    "words",
    [
        ("true",),
        ("--supervise", "--log-dir", "logs", "--report", "logs/report", "true"),
        (*SEVERAL, "--timeout", "1h", "--on-failure", "continue", "true"),
        ("--version",),
        ("--help",),
        ("plan", "--explain", "true"),
        ("plan", "--json"),
        ("topology", "--json"),
    ],
    ids=" ".join,
)
def test_command_imports_nothing_heavy(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert not {name.partition(".")[0] for name in imported(*words)} & HEAVY


def test_only_a_launch_that_samples_devices_imports_what_that_takes():
    def of_devices(*options: str) -> list[str]:
        names = imported("--supervise", *options, "true")
        return [name for name in names if "device" in name or name == "pynvml"]

    assert of_devices() == []
    assert "xlaunch.report.device_watch" in of_devices("--verify-device")


def test_library_is_imported_when_it_is_asked_for():
    code = "import xlaunch.cli, sys; assert not {'click', 'json'} & sys.modules.keys()"
    assert run((sys.executable, "-c", code)).code == 0


def test_these_tests_would_notice_a_heavy_import_of_the_supervisor(tmp_path: Path):
    for module in HEAVY:
        (tmp_path / f"{module}.py").write_text("")
    code = (
        "import sys, xlaunch.supervision.supervisor as s; sys.argv[1:] = ['--supervise', '-q', 'true']\n"
        "run = s.Supervisor.run\n"
        f"def noted(self): import {', '.join(HEAVY)}; return run(self)\n"
        "s.Supervisor.run = noted\n"
        "import xlaunch.cli; xlaunch.cli.main()"
    )
    path = f"{tmp_path}:{clean_environment().get('PYTHONPATH', '')}"
    assert imported(command=("-c", code), PYTHONPATH=path) >= HEAVY
