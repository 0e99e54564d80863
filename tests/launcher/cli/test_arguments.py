# SPDX-License-Identifier: Apache-2.0
"""What is run is what was typed: arguments byte for byte, the right interpreter, the right program."""

from __future__ import annotations

import os
import subprocess
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

from xlaunch.options.definitions import RESERVED


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


def test_script_whose_name_begins_with_a_dash(tmp_path: Path):
    (tmp_path / "-c.py").write_text("import sys; print(sys.argv)")
    assert xlaunch("--", "-c.py", "-x", cwd=tmp_path).out == b"['./-c.py', '-x']\n"


def test_script_that_can_be_read_once(tmp_path: Path):
    """Such as a named pipe: nothing looks into it before the program."""
    script = tmp_path / "pipe.py"
    os.mkfifo(script)
    with subprocess.Popen(["sh", "-c", f"echo 'print(1)' > {script}"]):
        done = xlaunch(script, "--instances", "2")
    assert (done.code, done.out, done.err) == (0, b"1\n", "")


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


def test_no_python_runs_the_file_itself(tmp_path: Path):
    script = program(tmp_path / "script.py", f'#!/bin/sh\nexec {sys.executable} {SHOW} "$@"\n')
    assert arguments_of(xlaunch("--no-python", script, "a b").only()) == [b"a b"]


# Which interpreter


@pytest.fixture
def python(tmp_path: Path) -> str:
    """The interpreter of an environment of its own."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    os.symlink(sys.executable, tmp_path / "venv" / "bin" / "python")
    return f"{tmp_path}/venv/bin/python"


def test_script_is_run_by_the_active_environment_or_as_asked(tmp_path: Path, python: str):
    env = clean_environment(VIRTUAL_ENV=f"{tmp_path}/venv")
    assert show()["python"] == sys.executable
    assert show(env=env)["python"] == python
    assert show(options=("--python", sys.executable), env=env)["python"] == sys.executable


def test_module_is_run_by_the_active_environment(tmp_path: Path, python: str):
    (tmp_path / "shown.py").write_text(SHOW.read_text())
    env = clean_environment(VIRTUAL_ENV=f"{tmp_path}/venv")
    assert xlaunch("-m", "shown", cwd=tmp_path, env=env).only()["python"] == python


def test_shebang_speaks_for_itself(tmp_path: Path, python: str):
    script = program(tmp_path / "script", f"#!{python}\n{SHOW.read_text()}")
    assert xlaunch(script).only()["python"] == python


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
    assert "not in this version" in ask("explain").refused()
