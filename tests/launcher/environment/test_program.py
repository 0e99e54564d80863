# SPDX-License-Identifier: Apache-2.0
"""resolve_program finds what a shell would find, and the interpreter that the program is meant for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xlaunch.environment.program import (
    PYTHON_SUFFIXES,
    find_interpreter,
    interpreter_flags,
    resolve_program,
)
from xlaunch.errors import ProgramNotExecutableError, ProgramNotFoundError, UsageError
from xlaunch.planning import ProgramRequest
from xlaunch.supervision.instance_start import exec_error, execute


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: scripts, executables, two directories of PATH, a plain file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "later").mkdir()
    for name, mode in (
        ("script.py", 0o644),
        ("executable.py", 0o755),
        ("run", 0o755),
        ("plain", 0o644),
        ("bin/tool", 0o755),
        ("bin/held", 0o644),
        ("later/tool", 0o755),
        ("later/held", 0o755),
    ):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    return tmp_path


def resolve(*words: str, variables: dict[str, str] | None = None, **more: object):
    path = {"PATH": "bin:later:/no/such/directory:"}
    return resolve_program(ProgramRequest(words=words, **more), path | (variables or {}))


OWN_INTERPRETER = "the interpreter that xlaunch runs on"
PYTHON = sys.executable


@pytest.mark.parametrize(
    ("words", "more", "expected"),
    [
        (("script.py", "a", ""), {}, (PYTHON, (PYTHON, "script.py", "a", ""), OWN_INTERPRETER)),
        (("./executable.py",), {}, (PYTHON, (PYTHON, "./executable.py"), OWN_INTERPRETER)),
        (("./executable.py", "a"), {"no_python": True}, ("./executable.py", ("./executable.py", "a"), None)),
        # A module is not looked for.
        (("no.such.module", "-x"), {"module": True}, (PYTHON, (PYTHON, "-m", "no.such.module", "-x"), OWN_INTERPRETER)),
        (("./run", "a"), {}, ("./run", ("./run", "a"), None)),
        (("tool", "a"), {}, ("bin/tool", ("tool", "a"), None)),
        # What may not be run is passed over; an empty part of the path is this directory.
        (("held",), {}, ("later/held", ("held",), None)),
        (("run",), {}, ("./run", ("run",), None)),
        *[((f"x{suffix}",), {}, (PYTHON, (PYTHON, f"x{suffix}"), OWN_INTERPRETER)) for suffix in PYTHON_SUFFIXES],
    ],
)  # fmt: skip
def test_what_is_run(directory: Path, words: tuple[str, ...], more: dict[str, bool], expected):
    for suffix in PYTHON_SUFFIXES:
        (directory / f"x{suffix}").touch()
    assert resolve(*words, **more)[:3] == expected


def test_program_that_is_not_to_be_had():
    """Others are in tests/launcher/cli/test_bad_input.py."""
    for name in ("", "nul\0byte.py", "\udc80.py", "script.py/below.py"):
        with pytest.raises(ProgramNotFoundError) as raised:
            resolve(name)
        assert "\n" not in str(raised.value)
    with pytest.raises(ProgramNotExecutableError, match="File name too long"):
        resolve(f"./{'x' * 300}")
    for name, error in (("held", ProgramNotExecutableError), ("run", ProgramNotFoundError)):
        with pytest.raises(error, match={"held": "bin/held", "run": r"\./run"}[name]):
            resolve(name, variables={"PATH": "bin"})
    for module, word in ((False, "program"), (True, "module")):
        with pytest.raises(UsageError, match=f"no {word} given"):
            resolve(module=module)


def test_without_a_path_there_is_the_system_s():
    assert resolve_program(ProgramRequest(("sh",)), {}).executable in ("/bin/sh", "/usr/bin/sh")


# Interpreters


def test_interpreter_of_the_active_environment(directory: Path):
    for name in ("venv", "conda"):
        (directory / name / "bin").mkdir(parents=True)
        os.symlink(sys.executable, directory / name / "bin" / "python")
    both = {"VIRTUAL_ENV": "venv", "CONDA_PREFIX": "conda"}
    assert find_interpreter(None, both) == ("venv/bin/python", "VIRTUAL_ENV is active")
    del both["VIRTUAL_ENV"]
    assert find_interpreter(None, both) == ("conda/bin/python", "CONDA_PREFIX is active")
    (directory / "conda" / "bin" / "python").unlink()
    assert find_interpreter(None, both)[0] == sys.executable


def test_asked_interpreter_is_a_path_or_looked_up():
    assert find_interpreter("./run", {}) == ("./run", "--python")
    assert find_interpreter("tool", {"PATH": "bin"}) == ("bin/tool", "--python")


@pytest.mark.parametrize("asked", ["", "gone", "./gone", "./plain", "bin", "./bin", "nul\0byte"])
def test_asked_interpreter_that_is_not_to_be_had(asked: str):
    with pytest.raises(UsageError, match=r"^--python: "):
        find_interpreter(asked, {"PATH": "bin"})


# What the kernel says no to


def test_too_long_for_the_kernel():
    program = resolve("./run", "x" * (1 << 18))
    with pytest.raises(ProgramNotExecutableError, match="too long"):
        execute(program, {})


def test_reasons_of_the_kernel():
    program = resolve("./run")
    assert isinstance(exec_error(program, 2), ProgramNotFoundError)
    for number in (1, 13, 7, 12, 26):
        assert isinstance(exec_error(program, number), ProgramNotExecutableError)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node 2 rank.py", True),
        ("/opt/venv/bin/torchrun rank.py", True),
        ("mpirun -n 4 app", True),
        ("mpiexec -n 4 app", True),
        ("srun app", True),
        ("deepspeed train.py", True),
        ("accelerate launch train.py", True),
        ("python -m torch.distributed.run rank.py", True),
        ("/opt/venv/bin/python3.13 -u -X dev -m torch.distributed.launch rank.py", True),
        ("python -um torch.distributed.run rank.py", True),
        ("python -mtorch.distributed.run rank.py", True),
        ("python /opt/venv/bin/torchrun rank.py", True),
        ("python train.py torchrun", False),
        ("python -W ignore::m train.py", False),
        ("python -Wignore::m torchrun", True),
        ("python -c torchrun", False),
        ("python -m torch.utils.collect_env", False),
        ("python", False),
        ("app -m torch.distributed.run", False),
        ("torchrunner", False),
        ("uv run torchrun rank.py", True),
        ("uv run train.py", False),
        ("bash -lc torchrun", True),
        ("bash -o pipefail -ec torchrun", True),
    ],
)
def test_programs_that_start_ranks_of_their_own(tmp_path: Path, command: str, expected: bool):
    name, *arguments = command.split()
    program = tmp_path / Path(name).name
    program.touch(0o755)
    found = resolve_program(ProgramRequest((str(program), *arguments)), {})
    assert found.starts_ranks is expected


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """The environment of a directory with commands that need only exist, and `python`."""
    for name in ("nice", "ionice", "timeout", "time", "env", "stdbuf", "chrt", "setsid", "nohup"):
        (tmp_path / name).touch(0o755)
    (tmp_path / "torchrun").touch(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    return {"PATH": str(tmp_path)}


@pytest.mark.parametrize(
    "wrapper",
    [
        "nice", "nice -n 5", "nice -5", "nice --adjustment=5", "ionice -c 2 -n 7", "ionice -t",
        "timeout 60", "timeout -k 3 --signal=INT 60", "time -v", "time -o out -f %e", "env",
        "env A=1 B=", "env -u C --unset=D A=1", "stdbuf -oL -e 0", "chrt -b 0", "chrt --fifo 10", "setsid -w", "nohup",
        "nohup nice -n 5 timeout 60 env A=1",
    ],
)  # fmt: skip
def test_the_program_behind_wrappers_decides(tools: dict[str, str], wrapper: str) -> None:
    words = (*wrapper.split(), "python", "-u", "x.py")
    found = resolve_program(ProgramRequest(words), tools)
    python = f"{tools['PATH']}/python"
    assert (found.executable, found.argv) == (f"{tools['PATH']}/{words[0]}", words)
    assert (found.interpreter, found.command) == (python, (python, "-u", "x.py"))
    assert list(interpreter_flags(found)) == ["u"]
    words = (*wrapper.split(), "torchrun", "x.py")
    assert resolve_program(ProgramRequest(words), tools).starts_ranks


@pytest.mark.parametrize(
    "words",
    ["nice --unknown python", "env -i python", "env PATH=/elsewhere python", "nice", "nice absent"],
)
def test_a_wrapper_that_is_not_understood_is_the_program(tools: dict[str, str], words: str) -> None:
    found = resolve_program(ProgramRequest(tuple(words.split())), tools)
    assert (found.interpreter, found.command[0]) == (None, found.executable)


@pytest.mark.parametrize(
    ("first_line", "name"),
    [("#!/bin/sh", "run"), ("#!/usr/bin/env bash", "run"), ("", "run.sh"), ("#!/bin/awk -f", None)],
)
def test_a_shell_script_that_starts_ranks(
    tmp_path: Path, first_line: str, name: str | None
) -> None:
    script = tmp_path / (name or "run")
    script.write_text(f"{first_line}\nexec torchrun x.py\n")
    script.chmod(0o755)
    found = resolve_program(ProgramRequest((str(script),)), {})
    assert found.starts_ranks is (name is not None)
    (tmp_path / "bash").touch(0o755)
    assert resolve_program(ProgramRequest((f"{tmp_path}/bash", str(script))), {}).starts_ranks


def test_an_assignment_in_place_of_a_program_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(ProgramNotFoundError, match="xlaunch --env A=1 PROGRAM"):
        resolve_program(ProgramRequest(("A=1", "python")), {"PATH": str(tmp_path)})
