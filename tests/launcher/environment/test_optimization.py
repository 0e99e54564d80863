# SPDX-License-Identifier: Apache-2.0
"""--optimize finds the hook of the program's own xruntime, and refuses programs that it cannot reach."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment, program, xlaunch
from tests.launcher.environment.made_up import environment

import xruntime
from xlaunch.environment import prepare_environment
from xlaunch.environment.optimization import HOOK
from xlaunch.machine import read_machine
from xlaunch.planning import Request
from xlaunch.planning.planner import plan
from xlaunch.planning.request import Optimize

HOOK_DIRECTORY = os.path.join(os.path.dirname(xruntime.__file__), HOOK)
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}.0"

SHOWN = "import os; print({n: os.environ.get(n) for n in ('PYTHONPATH', 'XLAUNCH_OPTIMIZE')})"


def variables_of(request: Request, **inherited: str) -> dict[str, str]:
    made = plan(request.layout, read_machine())
    return prepare_environment(made, request.program, clean_environment(**inherited)).variables[0]


def test_two_variables_reach_the_program():
    """An own path comes after the hook, and the option wins over an inherited precision."""
    request = Request.of(sys.executable, "-c", "0", optimize=Optimize.BF16)
    assert variables_of(request, XLAUNCH_OPTIMIZE="fp32")["XLAUNCH_OPTIMIZE"] == "bf16"
    for mine in ("", "/mine", "/mine:", ":/mine:/yours"):
        inherited = variables_of(request, PYTHONPATH=mine)
        given = variables_of(request.replace(env=(("PYTHONPATH", mine),)))
        for told in (inherited, given):
            assert told["PYTHONPATH"] == (f"{HOOK_DIRECTORY}:{mine}" if mine else HOOK_DIRECTORY)
    assert variables_of(request.replace(optimize=None), PYTHONPATH="")["PYTHONPATH"] == ""


def test_a_second_word_has_the_program_wait(tmp_path: Path):
    request = Request.of(sys.executable, optimize=Optimize.AUTO, optimize_wait=True)
    assert variables_of(request)["XLAUNCH_OPTIMIZE"] == "auto wait"
    (tmp_path / "best.toml").write_text("optimize-wait = true")
    words = ("--preset", "best.toml", "--explain", sys.executable)
    out = ask("plan", "--optimize", "bf16", *words, cwd=tmp_path).out.decode()
    assert "option optimize-wait true: preset best.toml\n" in out
    assert "  XLAUNCH_OPTIMIZE=bf16 wait  (" in out
    refusal = ask("plan", *words, cwd=tmp_path).refused()
    assert refusal.startswith("--optimize-wait is about what --optimize compiles: add --optimize")
    assert "best.toml" in refusal


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--optimize-wait",)])
def test_xruntime_is_told_whether_to_wait(options: tuple[str, ...], needs):
    needs(find_spec("torch"), "torch")
    show = (
        "import gc, torch\n"
        "found = [it for it in gc.get_objects() if type(it).__name__ == 'Interception']\n"
        "print([it._wait for it in found])"
    )
    done = xlaunch("--optimize", "auto", *options, sys.executable, "-c", show)
    assert done.out.decode() == f"[{bool(options)}]\n", done.err


def test_program_and_its_processes_see_neither_variable(tmp_path: Path):
    script = tmp_path / "script.py"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHOWN!r}])"
    script.write_text(f"{SHOWN}\n{nested}")
    for mine in (None, "/mine:"):
        env = clean_environment() | ({} if mine is None else {"PYTHONPATH": mine})
        env = {n: v for n, v in env.items() if mine is not None or n != "PYTHONPATH"}
        done = xlaunch("--optimize", "auto", script, env=env)
        assert done.code == 0, done.err
        shown = str({"PYTHONPATH": mine, "XLAUNCH_OPTIMIZE": None})
        assert sorted(done.out.decode().splitlines()) == [shown, shown]
        assert done.err.endswith("nothing is optimized: the program did not import torch\n")
        assert done.err.count("nothing is optimized") == 1


def test_nested_launch_is_a_plain_one(tmp_path: Path):
    script = tmp_path / "script.py"
    words = [sys.executable, "-m", "xlaunch", "env", "--format", "json", sys.executable]
    script.write_text(f"import subprocess; subprocess.run({words!r})")
    env = clean_environment(PYTHONPATH="/mine")
    done = xlaunch("--optimize", "auto", script, env=env)
    told = json.loads(done.out)
    assert not {"PYTHONPATH", "XLAUNCH_OPTIMIZE"} & {*told["changed"], *told["removed"]}


def test_plan_shows_both_variables_with_their_reasons():
    words = ("--explain", "--optimize", "auto", sys.executable, "-c", "0")
    for command in (("plan",), ("--dry-run",)):
        out = ask(*command, *words).out.decode()
        assert "option optimize auto: command line\n" in out
        assert "  XLAUNCH_OPTIMIZE=auto  (xruntime.optimize is applied to models that the" in out
        assert f"  PYTHONPATH={HOOK_DIRECTORY}" in out


@pytest.mark.parametrize(
    "text",
    [
        "print('hello')",
        "import atexit; atexit.register(print, 'bye')",
        "import io, sys; sys.stdout = io.StringIO()",
        "import sys; sys.stdout = None",
    ],
)
def test_own_start_up_code_may_print(tmp_path: Path, text: str):
    (tmp_path / "sitecustomize.py").write_text(text)
    environment = clean_environment(PYTHONPATH=str(tmp_path))
    done = ask("--dry-run", "--optimize", "auto", sys.executable, "-c", "0", env=environment)
    assert f"  PYTHONPATH={HOOK_DIRECTORY}:{tmp_path}" in done.out.decode(), done.err


def test_container_does_not_get_a_path_of_this_machine():
    done = ask("env", "--format", "docker", "--optimize", "auto", "--ncores", "1")
    assert done.code == 0
    assert HOOK not in done.out.decode()
    assert "XLAUNCH_OPTIMIZE" not in done.out.decode()
    assert "PYTHONPATH" in done.err


def test_file_may_set_it_and_an_unknown_precision_is_refused(golden: Golden, tmp_path: Path):
    (tmp_path / "best.toml").write_text('optimize = "fp32"')
    out = ask("plan", "--preset", "best.toml", sys.executable, cwd=tmp_path).out.decode()
    assert "  XLAUNCH_OPTIMIZE=fp32" in out
    golden(ask("--optimize", "int8", "x.py").refused())


# What it cannot reach


def test_program_that_is_not_python_is_refused(golden: Golden, tmp_path: Path):
    shell = program(tmp_path / "run", "#!/bin/sh\ntouch ran\n")
    golden(ask("--optimize", "auto", shell, cwd=tmp_path).refused())
    assert not (tmp_path / "ran").exists()


def test_environment_without_xruntime_is_refused(golden: Golden, tmp_path: Path):
    environment(tmp_path / "bare", python=VERSION)
    python = tmp_path / "bare" / "bin" / "python"
    # What lies in the current directory is not the program's.
    (tmp_path / HOOK).mkdir(parents=True)
    for name in ("x.py", "xruntime.py"):
        (tmp_path / name).write_text("")
    words = ("--optimize", "bf16", "--python", python, "x.py")
    golden(ask(*words, cwd=tmp_path, env=_without_path()).refused())


def test_xruntime_without_the_hook_is_refused(golden: Golden, tmp_path: Path):
    site = environment(tmp_path / "old", python=VERSION)
    (site / "xruntime").mkdir()
    (site / "xruntime" / "__init__.py").write_text("raise SystemError('imported')")
    python = tmp_path / "old" / "bin" / "python"
    golden(
        ask("--optimize", "auto", python, env=_without_path()).refused(), hide=r"(?<=python)3\.\d+"
    )


def test_interpreter_that_ignores_the_hook_is_refused(golden: Golden):
    for flags in ("-I", "-uE", "-W error -S", "-Xdev -I"):
        message = ask("--optimize", "auto", sys.executable, *flags.split(), "x.py").refused()
        golden(message)


@pytest.mark.parametrize("words", ["-c pass -I", "-W ignore -c pass", "-mthis"])
def test_options_of_the_program_are_not_the_interpreter_s(words: str):
    assert ask("--dry-run", "--optimize", "auto", sys.executable, *words.split()).code == 0


def test_first_line_of_a_script_counts(golden: Golden, tmp_path: Path):
    isolated = program(tmp_path / "tool", f"#!{sys.executable} -I\n")
    golden(ask("--optimize", "auto", isolated).refused())
    plain = program(tmp_path / "other", f"#!{sys.executable}\n")
    assert ask("--dry-run", "--optimize", "auto", plain).code == 0


def test_program_that_starts_ranks_is_refused(golden: Golden, tmp_path: Path):
    program(tmp_path / "torchrun", f"#!{sys.executable}\n")
    message = ask("--optimize", "auto", tmp_path / "torchrun", "x.py").refused()
    golden(message)


def test_interpreter_that_fails_is_refused(golden: Golden, tmp_path: Path):
    broken = program(tmp_path / "python3", "#!/bin/sh\necho broken >&2\nexit 3\n")
    golden(ask("--optimize", "auto", broken).refused())


def _without_path() -> dict[str, str]:
    """The environment without PYTHONPATH, which may name this project."""
    return {name: value for name, value in clean_environment().items() if name != "PYTHONPATH"}
