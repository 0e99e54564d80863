# SPDX-License-Identifier: Apache-2.0
"""The commands in docs/options.md work as they stand there."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from tests.launcher.cli.commands import Done, clean_environment, program, run
from tests.launcher.options.settings import Home, home, typed

__all__ = ["home"]

PAGE = Path(__file__).parents[3] / "docs" / "options.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def in_shell(home: Home, script: str) -> Done:
    directory = home.here / "bin"
    directory.mkdir()
    program(directory / "xlaunch", f'#!/bin/sh\nexec {sys.executable} -m xlaunch "$@"\n')
    env = clean_environment(PATH=f"{directory}:{os.environ['PATH']}")
    return run(("sh", "-e", "-c", script), env=env, cwd=home.here)


@pytest.mark.parametrize("script", blocks("sh"))
def test_commands_work(home: Home, script: str):
    done = in_shell(home, script)
    assert done.code == 0, done.err
    assert "error" not in done.err
    if "A is $A" in script:
        assert sorted(done.out.splitlines()) == [b"[0] instance 0: A is 1", b"[1] instance 1: A is 1"]  # fmt: skip
    if "place.conf" in script:
        unit = (home.here / "worker.service.d" / "place.conf").read_text()
        assert unit.startswith('[Service]\nEnvironment="OMP_NUM_THREADS=1"\n')


def test_output_is_what_the_page_shows(home: Home):
    (session,) = blocks("console")
    lines = session.splitlines()
    script = "\n".join(line[2:] for line in lines if line.startswith("$ "))
    shown = [line for line in lines if not line.startswith("$ ")]
    assert in_shell(home, script).out.decode().splitlines() == shown


def test_file_on_the_page_is_a_preset(home: Home):
    (text,) = blocks("toml")
    home.write("preset", text)
    request = typed("--preset", "best", "program").request
    assert set(tomllib.loads(text)) == {"instances", "ncores", "cpus", "mem-policy", "smt", "timeout", "env"}  # fmt: skip
    assert request.run.timeout_s == 7200
