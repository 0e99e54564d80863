# SPDX-License-Identifier: Apache-2.0
"""`python -m xruntime allocator`: readable for people, JSON for programs, one line for mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime_ext.allocator.children import MIB, run

COMMAND = [sys.executable, "-m", "xruntime"]
LAUNCHER = [sys.executable, "-m", "xlaunch"]
ALLOCATORS = ["glibc", "jemalloc", "tcmalloc", "mimalloc"]


@pytest.mark.parametrize("name", ALLOCATORS)
def test_summary_and_object_tell_the_same(name: str, library: Callable[[str], str | None]) -> None:
    preloaded = library(name)
    done = run([*COMMAND, "allocator", "--json"], preloaded)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["schema_version"] == 1
    assert told["allocator"]["name"].startswith(name)
    assert told["stats"]["mapped"] > MIB
    assert told["stats"]["process_resident"] > MIB
    text = run([*COMMAND, "allocator"], preloaded)
    assert (text.returncode, text.stderr) == (0, "")
    lines = text.stdout.splitlines()
    assert lines[0] == f"{told['allocator']['name']} {told['allocator']['version']}"
    assert lines[1].strip() == told["allocator"]["path"]
    for setting in told["settings"]:
        marked = f"{setting['name']}{' *' if setting['writable'] else ''} "
        (line,) = [line for line in lines if line.strip().startswith(marked)]
        assert str(setting["value"]) in line
    assert ("unknown" in text.stdout) == (None in told["stats"].values())


def test_launcher_starts_it_under_the_allocator_that_was_asked_for(
    library: Callable[[str], str | None], tmp_path: Path
) -> None:
    library("jemalloc")
    done = run(
        [*LAUNCHER, "--allocator", "jemalloc", "-m", "xruntime", "allocator", "--json"],
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["allocator"]["name"] == "jemalloc"
    settings = {setting["name"]: setting["value"] for setting in told["settings"]}
    assert settings["opt.dirty_decay_ms"] == -1  # as the profile has it


def test_profile_of_the_launcher_is_told_under_glibc(glibc: None, tmp_path: Path) -> None:
    done = run(
        [*LAUNCHER, "--allocator", "glibc-one-arena", "-m", "xruntime", "allocator", "--json"],
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    settings = {setting["name"]: setting for setting in json.loads(done.stdout)["settings"]}
    assert settings["glibc.malloc.arena_max"]["value"] == "1"
    assert settings["glibc.malloc.mmap_max"]["value"] == "0"
    assert not settings["glibc.malloc.arena_max"]["writable"]


def test_output_that_cannot_be_written_is_one_line() -> None:
    done = run(["sh", "-c", '"$0" -m xruntime allocator >/dev/full', sys.executable])
    assert done.returncode == 125
    (line,) = done.stderr.splitlines()
    assert line.startswith("xruntime: error: ")


def test_command_needs_no_torch() -> None:
    code = (
        "import sys\nfrom xruntime.cli import run\nassert run(['allocator', '--json']) == 0\n"
        "print(*sorted({'torch', 'numpy', 'rich', 'optuna'} & set(sys.modules)), file=sys.stderr)"
    )
    done = run([sys.executable, "-c", code])
    assert (done.returncode, done.stderr) == (0, "\n")
