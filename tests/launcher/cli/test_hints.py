# SPDX-License-Identifier: Apache-2.0
"""What is said of programs that start workers, choose interpreters or reset the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, program, xlaunch

from xlaunch.cli.launch import HINTS, program_hints
from xlaunch.environment.program import resolve_program
from xlaunch.planning.request import ProgramRequest


def hints(directory: Path, words: str, **variables: str) -> list[str]:
    """What is said of a command line, whose programs need only exist."""
    for name in (*HINTS, "env", "nice", "sh"):
        (directory / name).touch(0o755)
    if not (directory / "python").exists():
        (directory / "python").symlink_to(sys.executable)
    environment = {"PATH": str(directory), **variables}
    found = resolve_program(ProgramRequest(tuple(words.split(" "))), environment)
    return list(program_hints(found, environment))


def test_the_form_that_places_a_program_is_named(golden: Golden, tmp_path: Path) -> None:
    said = []
    for words in (
        "torchrun --nproc-per-node 4 x.py", "torchrun --nproc_per_node=auto x.py",
        "python -m torch.distributed.run --nproc-per-node=4 x.py", "accelerate launch x.py", "deepspeed x.py",
        "uvicorn app:app --workers 4", "python -m uvicorn app:app --workers=4", "gunicorn -w4 app:app",
        "hypercorn -w 4 app:app", "dask worker host:8786 --nworkers 4", "ray start --head", "mpirun -np 4 app",
        "srun app", "horovodrun -np 4 python x.py", "uv run x.py", "conda run -n env python x.py",
        "sudo python x.py", "docker run image", "nice torchrun --nproc-per-node 2 x.py",
        "env A=1 B=x*y python x.py", "numactl -C 0 python x.py", "env -i python x.py", "sh -c python\tx.py",
    ):  # fmt: skip
        said += [f"$ xlaunch {words}", *hints(tmp_path, words)]
    golden(said)


@pytest.mark.parametrize(
    "words",
    [
        "python x.py", "nice python x.py", "env python x.py", "env -u A python x.py", "sh -c true", "sh -c xlaunch\tx.py",
        "torchrun x.py", "torchrun --nproc-per-node 1 x.py", "uvicorn app:app", "gunicorn -w 1 app:app",
        "dask worker host:8786", "dask scheduler", "accelerate config", "uv sync", "docker ps",
        "mpirun -n 4 xlaunch x.py", "mpirun -n 1 app", "uv run xlaunch x.py",
    ],
)  # fmt: skip
def test_nothing_is_said_of_what_is_placed(tmp_path: Path, words: str) -> None:
    assert hints(tmp_path, words) == []


def test_workers_may_be_set_by_a_variable(tmp_path: Path) -> None:
    (said,) = hints(tmp_path, "gunicorn app:app", WEB_CONCURRENCY="3")
    assert "--instances 3" in said
    assert hints(tmp_path, "gunicorn -w 1 app:app", WEB_CONCURRENCY="3") == []


def test_a_script_of_a_shell_is_read_only_where_it_is_a_file(tmp_path: Path) -> None:
    script = program(tmp_path / "run", "#!/usr/bin/env bash\nexec python3 x.py\n")
    assert len(hints(tmp_path, str(script))) == 1
    os.mkfifo(tmp_path / "pipe.sh", 0o755)
    assert hints(tmp_path, f"sh {tmp_path}/pipe.sh") == []


def test_a_launch_says_it_once_and_not_when_quiet(tmp_path: Path) -> None:
    script = program(tmp_path / "run.sh", "#!/bin/sh\necho python done\n")
    done = xlaunch(script)
    assert (done.code, done.out) == (0, b"python done\n")
    assert done.err.count("xlaunch: note: run.sh runs a shell script") == 1
    assert xlaunch("-q", script).err == ""


@pytest.mark.parametrize("words", ["env A=1 true", "--ncores 1 env A=1 true"])
def test_the_command_env_with_a_variable_names_the_option(words: str) -> None:
    assert "--env A=1" in ask(*words.split()).refused(127 if words.startswith("env") else 2)
