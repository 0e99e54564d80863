# SPDX-License-Identifier: Apache-2.0
"""What is run is what was typed: arguments byte for byte, the right interpreter, the right program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import (
    AWKWARD,
    SHOW,
    arguments_of,
    ask,
    clean_environment,
    program,
    xlaunch,
)

from xlaunch.options.definitions import RESERVED


@pytest.mark.parametrize(
    "words",
    [
        (SHOW,),
        ("--", SHOW),
        ("--supervise", "-q", "--", SHOW),
        ("--", sys.executable, SHOW),
    ],
    ids=["plain", "behind --", "supervised", "an executable"],
)
def test_arguments_arrive_byte_for_byte(words: tuple[str, ...]):
    """Whatever the locale is."""
    env = clean_environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert arguments_of(xlaunch(*words, *AWKWARD, env=env).only()) == AWKWARD


def test_arguments_of_every_instance_are_the_same():
    words = AWKWARD[:-1]  # with the last, what is shown would be longer than a line may be
    options = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q", "--no-tag")
    done = xlaunch(*options, SHOW, *words)
    assert [arguments_of(one) for one in done.shown()] == [words, words]


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


@pytest.mark.parametrize("options", ["-m", "--module", "-m --", "--smt -m --", "-m --ncores 1 --env A=1"])  # fmt: skip
def test_module(tmp_path: Path, options: str):
    words = (*options.split(), "shown", "-m", "--instances", "2")
    planned = json.loads(ask("plan", "--json", *words, cwd=tmp_path).out)
    assert planned["program"] == [sys.executable, "-m", *words[-4:]]


def test_no_python_runs_the_file_itself(tmp_path: Path):
    script = program(tmp_path / "script.py", f'#!/bin/sh\nexec {sys.executable} {SHOW} "$@"\n')
    assert arguments_of(xlaunch("--no-python", script, "a b").only()) == [b"a b"]


def test_script_or_module_is_run_by_the_active_environment_or_as_asked(tmp_path: Path):
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "shown.py").write_text(SHOW.read_text())
    active = clean_environment(VIRTUAL_ENV=f"{tmp_path}/venv")
    for words, env, expected in (
        ((SHOW,), None, sys.executable),
        ((SHOW,), active, str(python)),
        (("-m", "shown"), active, str(python)),
        (("--python", sys.executable, SHOW), active, sys.executable),
        ((program(tmp_path / "script", f"#!{python}\n{SHOW.read_text()}"),), None, str(python)),
    ):
        assert xlaunch(*words, cwd=tmp_path, env=env).only()["python"] == expected, words


@pytest.mark.parametrize("options", [(), ("--supervise", "-q")], ids=["in place", "supervised"])
def test_script_without_shebang_is_the_shell_s(tmp_path: Path, options: tuple[str, ...]):
    script = program(tmp_path / "script", 'printf "%s|" "$0" "$@"\n')
    done = xlaunch(*options, script, "a b", "")
    assert done.out.decode() == f"{script}|a b||"


def test_names_of_commands_are_names_of_other_things_too(golden: Golden, tmp_path: Path):
    for name in (*RESERVED, "show"):
        program(tmp_path / name, f'#!/bin/sh\necho program {name} "$@"\n')
    env = clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    for name in RESERVED:
        for words, run in (
            (("--", name), [name]),
            (("--smt", "--", name), [name]),
            (("--env", f"A={name}", "--", name), [name]),
            ((f"./{name}",), [f"./{name}"]),
            (("--smt", f"./{name}"), [f"./{name}"]),
            (("-m", name), [sys.executable, "-m", name]),
            (("./show", name, "--", name), ["./show", name, "--", name]),
            (("--log-dir", name, "--", name), [name]),
        ):
            planned = ask("--dry-run", "--json", *words, env=env, cwd=tmp_path)
            assert json.loads(planned.out)["program"] == run, words
        after_options = ask("--smt", name, env=env, cwd=tmp_path).refused()
        assert f"'-- {name}'" in after_options
    assert xlaunch("--", "plan", "plan", env=env).out == b"program plan plan\n"
    golden(ask("explain").refused())
