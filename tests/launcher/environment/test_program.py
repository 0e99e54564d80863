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
    resolve_program,
)
from xlaunch.errors import ProgramNotExecutableError, ProgramNotFoundError, UsageError
from xlaunch.planning import ProgramRequest
from xlaunch.supervision.instance_start import exec_error, execute


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: a script, two executables, one in a directory of PATH, a plain file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "later").mkdir()
    for name, mode in (
        ("script.py", 0o644),
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


def test_script_is_run_by_an_interpreter():
    assert resolve("script.py", "a", "")[:3] == (
        sys.executable,
        (sys.executable, "script.py", "a", ""),
        "the interpreter that xlaunch runs on",
    )


@pytest.mark.parametrize("suffix", PYTHON_SUFFIXES)
def test_every_suffix_of_python(directory: Path, suffix: str):
    (directory / f"x{suffix}").write_text("")
    assert resolve(f"x{suffix}").executable == sys.executable


def test_executable_script_is_run_by_an_interpreter_all_the_same(directory: Path):
    (directory / "script.py").chmod(0o755)
    assert resolve("./script.py").argv == (sys.executable, "./script.py")


def test_no_python_takes_the_file_itself(directory: Path):
    (directory / "script.py").chmod(0o755)
    found = resolve("./script.py", "a", no_python=True)
    assert found[:3] == ("./script.py", ("./script.py", "a"), None)


def test_module_is_not_looked_for():
    found = resolve("no.such.module", "-x", module=True)
    assert found.argv == (sys.executable, "-m", "no.such.module", "-x")


def test_path_is_taken_as_it_is():
    assert resolve("./run", "a")[:3] == ("./run", ("./run", "a"), None)


def test_name_is_looked_up_and_stays_the_program_s_own_name():
    assert resolve("tool", "a")[:3] == ("bin/tool", ("tool", "a"), None)


def test_file_that_may_not_be_run_is_passed_over():
    assert resolve("held").executable == "later/held"
    with pytest.raises(ProgramNotExecutableError, match="bin/held"):
        resolve("held", variables={"PATH": "bin"})


def test_empty_part_of_the_path_is_this_directory():
    assert resolve("run").executable == "./run"
    with pytest.raises(ProgramNotFoundError, match=r"\./run"):
        resolve("run", variables={"PATH": "bin"})


def test_without_a_path_there_is_the_system_s():
    assert resolve_program(ProgramRequest(("sh",)), {}).executable in ("/bin/sh", "/usr/bin/sh")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", ProgramNotFoundError),
        ("gone", ProgramNotFoundError),
        ("./gone", ProgramNotFoundError),
        ("gone.py", ProgramNotFoundError),
        ("script.py/below", ProgramNotFoundError),
        ("script.py/below.py", ProgramNotFoundError),
        ("nul\0byte", ProgramNotFoundError),
        ("./nul\0byte", ProgramNotFoundError),
        ("nul\0byte.py", ProgramNotFoundError),
        ("\udc80.py", ProgramNotFoundError),
        ("bin", ProgramNotExecutableError),
        ("./bin", ProgramNotExecutableError),
        ("./plain", ProgramNotExecutableError),
        (f"./{'x' * 300}", ProgramNotExecutableError),
    ],
)
def test_program_that_is_not_to_be_had(name: str, error: type[Exception]):
    with pytest.raises(error) as raised:
        resolve(name)
    assert "\n" not in str(raised.value)


def test_directory_named_as_a_script(directory: Path):
    (directory / "package.py").mkdir()
    with pytest.raises(ProgramNotExecutableError, match="directory"):
        resolve("package.py")


@pytest.mark.parametrize(("module", "word"), [(False, "program"), (True, "module")])
def test_nothing_given(module: bool, word: str):
    with pytest.raises(UsageError, match=f"no {word} given"):
        resolve(module=module)


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
    ],
)
def test_programs_that_start_ranks_of_their_own(tmp_path: Path, command: str, expected: bool):
    name, *arguments = command.split()
    program = tmp_path / Path(name).name
    program.touch(0o755)
    found = resolve_program(ProgramRequest((str(program), *arguments)), {})
    assert found.starts_ranks is expected
