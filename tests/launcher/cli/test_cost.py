# SPDX-License-Identifier: Apache-2.0
"""A launch imports nothing heavy: what it does not import, nobody waits for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.launcher.cli.commands import clean_environment, run

HEAVY = frozenset(("cpuinfo", "numpy", "optuna", "psutil", "pynvml", "rich", "torch"))
SEVERAL = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q")

# `python -X importtime` names each module as it is imported, in the forked supervisor too.
IMPORTS = (sys.executable, "-X", "importtime")


def imported(*words: str, command: tuple[str, ...] = ("-m", "xlaunch")) -> frozenset[str]:
    """The top-level packages that a command imports."""
    done = run((*IMPORTS, *command, *words))
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip() for line in lines}
    assert "xlaunch.cli" in names
    return frozenset(name.partition(".")[0] for name in names)


@pytest.mark.parametrize(
    "words",
    [
        ("true",),
        ("--supervise", "-q", "true"),
        ("--supervise", "true"),
        (*SEVERAL, "true"),
        (*SEVERAL, "--timeout", "1h", "--on-failure", "continue", "true"),
        ("--version",),
        ("--help",),
        ("plan", "--explain", "true"),
        ("plan", "--json"),
        ("--dry-run", "true"),
        ("topology", "--json"),
    ],
    ids=" ".join,
)
def test_command_imports_nothing_heavy(words: tuple[str, ...]):
    assert not imported(*words) & HEAVY


@pytest.mark.parametrize(
    "words", [("--supervise", "-q", "true"), ("--supervise", "true")], ids=" ".join
)
def test_only_a_launch_that_samples_devices_imports_what_that_takes(words: tuple[str, ...]):
    def of_devices(*more: str) -> list[str]:
        done = run((*IMPORTS, "-m", "xlaunch", *more, *words))
        names = [line.rpartition("|")[2].strip() for line in done.err.splitlines()]
        return [name for name in names if "device" in name or name == "pynvml"]

    assert of_devices() == []
    assert "xlaunch.report.device_watch" in of_devices("--verify-device")


def test_log_files_and_report_cost_no_heavy_import(tmp_path: Path):
    words = ("--log-dir", str(tmp_path), "--report", str(tmp_path / "report"), "-q", "true")
    assert not imported(*words) & HEAVY


def test_library_is_imported_when_it_is_asked_for():
    code = "import xlaunch.cli, sys; assert not {'click', 'json'} & sys.modules.keys()"
    assert run((sys.executable, "-c", code)).code == 0


def test_this_test_would_notice(tmp_path: Path):
    """The same command with imports of stand-ins is caught."""
    for module in HEAVY:
        (tmp_path / f"{module}.py").write_text("")
    code = f"import runpy, {', '.join(HEAVY)}; runpy.run_module('xlaunch', run_name='__main__')"
    env = clean_environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env.get('PYTHONPATH', '')}"
    done = run((*IMPORTS, "-c", code, "--version"), env=env)
    names = {line.rpartition("|")[2].strip() for line in done.err.splitlines()}
    assert names & HEAVY == HEAVY


def test_heavy_import_of_the_supervisor_would_be_noticed_too(tmp_path: Path):
    (tmp_path / "torch.py").write_text("")
    code = (
        "import sys, xlaunch.supervision.supervisor as s; sys.argv[1:] = ['--supervise', '-q', 'true']\n"
        "run = s.Supervisor.run\n"
        "def noted(self): import torch; return run(self)\n"
        "s.Supervisor.run = noted\n"
        "import xlaunch.cli; xlaunch.cli.main()"
    )
    env = clean_environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env.get('PYTHONPATH', '')}"
    done = run((*IMPORTS, "-c", code), env=env)
    assert done.code == 0
    assert "torch" in {line.rpartition("|")[2].strip() for line in done.err.splitlines()}
