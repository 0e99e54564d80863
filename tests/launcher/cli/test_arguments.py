# SPDX-License-Identifier: Apache-2.0
"""What is run is what was typed: arguments byte for byte, the right interpreter, the right program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.launcher.cli.commands import (
    AWKWARD,
    SHOW,
    arguments_of,
    ask,
    clean_environment,
    program,
    show,
    xlaunch,
)
from tests.tiers import quick_first

from xlaunch.cli import RESERVED


@pytest.mark.parametrize("options", [(), ("--supervise", "-q")], ids=["in place", "supervised"])
@pytest.mark.parametrize("separator", [(), ("--",)], ids=["plain", "behind --"])
def test_arguments_arrive_byte_for_byte(options: tuple[str, ...], separator: tuple[str, ...]):
    assert arguments_of(show(*AWKWARD, options=(*options, *separator))) == AWKWARD


def test_arguments_of_every_instance_are_the_same():
    words = AWKWARD[:-1]  # with the last, what is shown would be longer than a line may be
    options = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q", "--no-tag")
    done = xlaunch(*options, SHOW, *words)
    assert [arguments_of(one) for one in done.shown()] == [words, words]


def test_arguments_of_an_executable_arrive_byte_for_byte():
    told = xlaunch("--", sys.executable, SHOW, *AWKWARD).only()
    assert arguments_of(told) == AWKWARD


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_arguments_do_not_depend_on_the_locale(encoding: str):
    env = clean_environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    env["PYTHONIOENCODING"] = encoding
    told = show(*AWKWARD, env=env)
    assert arguments_of(told) == AWKWARD


def test_second_separator_is_the_program_s():
    told = show("--", "--instances", "2", options=("--",))
    assert arguments_of(told) == [b"--", b"--instances", b"2"]


@pytest.mark.parametrize("options", [("-m",), ("--module",), ("-m", "--"), ("--smt", "-m", "--")])
def test_module(tmp_path: Path, options: tuple[str, ...]):
    (tmp_path / "shown.py").write_text(SHOW.read_text())
    told = xlaunch(*options, "shown", "-m", "--instances", "2", cwd=tmp_path).only()
    assert arguments_of(told) == [b"-m", b"--instances", b"2"]


def test_options_between_m_and_the_module(tmp_path: Path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(SHOW.read_text())
    told = xlaunch("-m", "--ncores", "1", "--env", "A=1", "package", "--env", cwd=tmp_path).only()
    assert arguments_of(told) == [b"--env"]
    assert told["env"]["A"] == "1"


def test_no_python_is_accepted_and_not_needed(tmp_path: Path):
    script = program(tmp_path / "script", f'#!/bin/sh\nexec {sys.executable} {SHOW} "$@"\n')
    for options in ((), ("--no-python",)):
        assert arguments_of(xlaunch(*options, script, "a b").only()) == [b"a b"]


def test_no_python_runs_a_script_s_own_shebang(tmp_path: Path):
    script = program(tmp_path / "script.py", "#!/bin/sh\necho by the shell\n")
    assert xlaunch("--no-python", script).out == b"by the shell\n"


# Which interpreter


@pytest.fixture
def environments(tmp_path: Path) -> dict[str, Path]:
    """Two environments, each with a python of its own name."""
    found = {}
    for name in ("venv", "conda"):
        (tmp_path / name / "bin").mkdir(parents=True)
        found[name] = tmp_path / name
        os.symlink(sys.executable, tmp_path / name / "bin" / "python")
    return found


def test_script_is_run_by_the_active_environment(environments: dict[str, Path]):
    venv, conda = (str(path) for path in environments.values())
    for variables, expected in (
        ({}, sys.executable),
        ({"VIRTUAL_ENV": venv}, f"{venv}/bin/python"),
        ({"CONDA_PREFIX": conda}, f"{conda}/bin/python"),
        ({"VIRTUAL_ENV": venv, "CONDA_PREFIX": conda}, f"{venv}/bin/python"),
        ({"VIRTUAL_ENV": "", "CONDA_PREFIX": conda}, f"{conda}/bin/python"),
        ({"VIRTUAL_ENV": f"{venv}/gone"}, sys.executable),
    ):
        assert show(env=clean_environment(**variables))["python"] == expected, variables


def test_python_option_comes_first(environments: dict[str, Path]):
    env = clean_environment(VIRTUAL_ENV=str(environments["venv"]))
    asked = environments["conda"] / "bin" / "python"
    assert show(options=("--python", asked), env=env)["python"] == str(asked)


def test_python_by_its_name_is_looked_up(environments: dict[str, Path]):
    directory = environments["venv"] / "bin"
    (directory / "python").rename(directory / "our-python")
    env = clean_environment(PATH=f"{directory}:/usr/bin:/bin")
    assert show(options=("--python", "our-python"), env=env)["python"] == f"{directory}/our-python"


def test_module_is_run_by_the_active_environment(environments: dict[str, Path], tmp_path: Path):
    (tmp_path / "shown.py").write_text(SHOW.read_text())
    venv = environments["venv"]
    told = xlaunch("-m", "shown", cwd=tmp_path, env=clean_environment(VIRTUAL_ENV=str(venv))).only()
    assert told["python"] == f"{venv}/bin/python"


def test_shebang_speaks_for_itself(environments: dict[str, Path], tmp_path: Path):
    asked = environments["conda"] / "bin" / "python"
    script = program(tmp_path / "script", f"#!{asked}\n{SHOW.read_text()}")
    env = clean_environment(VIRTUAL_ENV=str(environments["venv"]))
    assert xlaunch(script, env=env).only()["python"] == str(asked)


@pytest.mark.parametrize("options", [(), ("--supervise", "-q")], ids=["in place", "supervised"])
def test_script_without_shebang_is_the_shell_s(tmp_path: Path, options: tuple[str, ...]):
    script = program(tmp_path / "script", 'printf "%s|" "$0" "$@"\n')
    done = xlaunch(*options, script, "a b", "")
    assert done.out.decode() == f"{script}|a b||"


def test_program_is_looked_up_on_the_path(tmp_path: Path):
    program(tmp_path / "our-program", "#!/bin/sh\necho found\n")
    env = clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert xlaunch("our-program", env=env).out == b"found\n"
    assert ask("our-program").refused(127)


# Names of commands


@pytest.fixture
def directory_of_reserved_names(tmp_path: Path) -> Path:
    for name in RESERVED:
        program(tmp_path / name, f"#!/bin/sh\necho program {name}\n")
    return tmp_path


@pytest.mark.parametrize("name", quick_first(sorted(RESERVED)))
def test_program_with_a_command_s_name(directory_of_reserved_names: Path, name: str):
    directory = directory_of_reserved_names
    env = clean_environment(PATH=f"{directory}:{os.environ['PATH']}")
    expected = f"program {name}\n".encode()
    for words in (
        ("--", name),
        ("--smt", "--", name),
        ("--env", f"A={name}", "--", name),
        (f"./{name}",),
        ("--smt", f"./{name}"),
    ):
        assert xlaunch(*words, env=env, cwd=directory).out == expected, words
    after_options = ask("--smt", name, env=env, cwd=directory).refused()
    assert f"'-- {name}'" in after_options


def test_option_value_with_a_command_s_name(directory_of_reserved_names: Path):
    env = clean_environment(PATH=f"{directory_of_reserved_names}:{os.environ['PATH']}")
    work = directory_of_reserved_names / "work"
    work.mkdir()
    done = xlaunch("--log-dir", "plan", "-q", "--", "plan", env=env, cwd=work)
    assert done == (0, b"", "")
    assert (work / "plan" / "instance-0.out").read_bytes() == b"program plan\n"


def test_module_may_have_a_command_s_name(tmp_path: Path):
    (tmp_path / "report.py").write_text("print('module report')")
    assert xlaunch("-m", "report", cwd=tmp_path).out == b"module report\n"


def test_argument_may_have_a_command_s_name():
    assert arguments_of(show("plan", "--", "topology")) == [b"plan", b"--", b"topology"]


def test_command_that_is_not_there_yet_is_no_program():
    assert "not in this version" in ask("doctor").refused()
