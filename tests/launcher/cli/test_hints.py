# SPDX-License-Identifier: Apache-2.0
"""What is said of programs that start workers, choose interpreters or reset the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.launcher.cli.commands import ask, program, xlaunch

from xlaunch.cli.launch import HINTS, program_hints
from xlaunch.environment.program import resolve_program
from xlaunch.planning.request import ProgramRequest

WORKERS = "starts workers, which share the cores and are not placed: write"
LATER = "chooses the interpreter after xlaunch, which sets less for a program that it does not know: write"


def hints(directory: Path, words: str, **variables: str) -> list[str]:
    """What is said of a command line, whose programs need only exist."""
    for name in (*HINTS, "env", "nice", "sh"):
        (directory / name).touch(0o755)
    if not (directory / "python").exists():
        (directory / "python").symlink_to(sys.executable)
    environment = {"PATH": str(directory), **variables}
    found = resolve_program(ProgramRequest(tuple(words.split(" "))), environment)
    return list(program_hints(found, environment))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("torchrun --nproc-per-node 4 x.py", f"torchrun {WORKERS} xlaunch --nproc-per-node 4 PROGRAM"),
        ("torchrun --nproc_per_node=auto x.py",
         f"torchrun {WORKERS} xlaunch --nproc-per-node N PROGRAM"),
        ("python -m torch.distributed.run --nproc-per-node=4 x.py",
         f"torch.distributed.run {WORKERS} xlaunch --nproc-per-node 4 PROGRAM"),
        ("accelerate launch x.py",
         f"accelerate launch {WORKERS} accelerate launch --no_python xlaunch PROGRAM"),
        ("deepspeed x.py", f"deepspeed {WORKERS} deepspeed --no_python --no_local_rank xlaunch PROGRAM"),
        ("uvicorn app:app --workers 4",
         f"uvicorn {WORKERS} xlaunch --instances 4 --substitute uvicorn APP --port {{8000+index}}"),
        ("python -m uvicorn app:app --workers=4",
         f"uvicorn {WORKERS} xlaunch --instances 4 --substitute uvicorn APP --port {{8000+index}}"),
        ("gunicorn -w4 app:app",
         f"gunicorn {WORKERS} xlaunch --instances 4 gunicorn --reuse-port APP"),
        ("hypercorn -w 4 app:app",
         f"hypercorn {WORKERS} xlaunch --instances 4 --substitute hypercorn APP --bind :{{8000+index}}"),
        ("dask worker host:8786 --nworkers 4",
         f"dask worker {WORKERS} xlaunch --instances 4 dask worker SCHEDULER"),
        ("ray start --head",
         f"ray start {WORKERS} xlaunch --instances N ray start --block --address HOST:PORT"),
        ("mpirun -np 4 app", f"mpirun {WORKERS} mpirun --bind-to none -n 4 xlaunch PROGRAM"),
        ("srun app", f"srun {WORKERS} srun -n N xlaunch PROGRAM"),
        ("horovodrun -np 4 python x.py",
         f"horovodrun {WORKERS} horovodrun --mpi -np 4 xlaunch PROGRAM"),
        ("uv run x.py", f"uv run {LATER} uv run xlaunch PROGRAM"),
        ("conda run -n env python x.py", f"conda run {LATER} conda run xlaunch PROGRAM"),
        ("sudo python x.py",
         "sudo drops the variables that xlaunch sets: write sudo xlaunch PROGRAM"),
        ("docker run image", "docker run starts its program elsewhere, where nothing arrives of what "
         "xlaunch chooses: write docker run IMAGE xlaunch PROGRAM"),
        ("nice torchrun --nproc-per-node 2 x.py",
         f"torchrun {WORKERS} xlaunch --nproc-per-node 2 PROGRAM"),
        ("env A=1 B=x*y python x.py", "env sets variables after xlaunch has chosen its own: write "
         "xlaunch --env A=1 --env 'B=x*y' PROGRAM"),
        ("numactl -C 0 python x.py",
         "numactl binds again, after xlaunch has chosen the number of threads for its own CPUs: leave "
         "numactl out and use --cpus or --numa-nodes"),
        ("env -i python x.py", "env with these options hides its program from xlaunch, which sets less "
         "for it: write xlaunch between env's options and PROGRAM"),
        ("sh -c python\tx.py", "sh runs a shell script, and xlaunch sets less for Python programs "
         "that it does not know: write xlaunch before them, in the script"),
    ],
)  # fmt: skip
def test_the_form_that_places_a_program_is_named(tmp_path: Path, words: str, expected: str) -> None:
    assert hints(tmp_path, words) == [expected]


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
