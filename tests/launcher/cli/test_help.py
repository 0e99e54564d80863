# SPDX-License-Identifier: Apache-2.0
"""Help of each command, misspelt commands, and completion in shells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launcher.cli.commands import ask, clean_environment, program, xlaunch

from xlaunch.cli.plan import OF_A_RUN
from xlaunch.environment import allocators, openmp
from xlaunch.options.definitions import BY_KEY, COMMANDS

SCRIPTS = Path(sys.executable).parent


def test_help_has_a_line_for_each_command():
    commands = ask("--help").out.decode().partition("\nCommands:\n")[2].splitlines()
    named = [re.match(r"  xlaunch (\w+)  +\S.*\.$", line) for line in commands]
    assert [found and found[1] for found in named] == sorted(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_a_command(name: str):
    asked = ask("help", name)
    assert asked == ask(name, "--help")
    assert (asked.code, asked.err) == (0, "")
    assert asked.out.startswith(f"Usage: xlaunch {name} ".encode())


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_of_help(word: str):
    assert ask("help", word) == ask("--help")


def test_help_of_a_command_of_a_command():
    assert ask("help", "cache", "warm") == ask("cache", "warm", "--help")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("topo", "topology"), ("cahce", "cache"), ("doctr", "doctor"), ("envv", "env"), ("qqq", "")],
)
def test_misspelt_command(typed: str, meant: str):
    for code, words in ((127, (typed, "--json")), (2, ("help", typed))):
        message = ask(*words).refused(code)
        assert repr(typed) in message
        assert ("did you mean" in message) == bool(meant)
        assert f"'xlaunch {meant}'" in message or not meant


def test_program_with_a_name_like_a_command_s_runs(tmp_path: Path):
    program(tmp_path / "topo", "#!/bin/sh\necho ran\n")
    env = clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert xlaunch("topo", env=env).out == b"ran\n"


def test_program_that_is_missing_after_options_is_no_command():
    assert "did you mean" not in ask("--ncores", "1", "topo").refused(127)


@pytest.mark.parametrize("command", ["plan", "env"])
def test_options_of_a_run_are_taken_and_not_shown(command: str):
    """A command line of xlaunch becomes one of plan by a word."""
    text = ask(command, "--help").out.decode()
    plain = ask(command)
    values = {"--on-failure": "stop", "--timeout": "1h", "--grace": "1s", "--max-restarts": "2"}
    for name in OF_A_RUN:
        option = f"--{name}"
        assert f"{option} " not in text
        words = [option]
        if BY_KEY[name.replace("-", "_")].kind.metavar:
            words.append(values.get(option, "x"))
        if option == "--tee":
            words += ["--log-dir", "x"]
        done = ask(command, *words)
        assert (done.code, done.err) == (0, plain.err)
        assert without_buffering(done.out) == without_buffering(plain.out)


def without_buffering(output: bytes) -> bytes:
    """Without what a Python program gets whose output is relayed."""
    return re.sub(rb"export PYTHONUNBUFFERED=1\n|;PYTHONUNBUFFERED=1", b"", output)


def test_options_that_warming_implies_are_not_shown():
    text = ask("cache", "warm", "--help").out.decode()
    assert "--timeout" in text
    assert "--optimize-wait " not in text


def test_names_in_help_are_those_of_the_profiles():
    assert {*BY_KEY["allocator"].kind.words} == {*allocators.PROFILES, allocators.AUTO}
    assert {*BY_KEY["omp"].kind.words} == {*openmp.PROFILES}


# Completion


def completions(*words: str, shell: str = "bash", cwd: Path | str = ".") -> list[str]:
    """What click's script of `shell` gets for a command line that ends with the last word."""
    typed = {"COMP_WORDS": " ".join(["xlaunch", *words]), "COMP_CWORD": str(len(words))}
    if shell == "fish":
        typed["COMP_CWORD"] = words[-1]
    env = clean_environment(_XLAUNCH_COMPLETE=f"{shell}_complete", **typed)
    done = ask(env=env, cwd=cwd)
    assert (done.code, done.err) == (0, "")
    return done.out.decode().split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("to",), "plain,topology"),
        (("--mode", ""), "plain,latency plain,throughput"),
        (("--mode=l",), "plain,latency"),
        (("--numa",), "plain,--numa-nodes"),
        (("plan", "--allocator", "tc"), "plain,tcmalloc"),
        (("plan", "--log"), ""),
        (("help", "p"), "plain,plan plain,ps"),
        (("help", "cache", "w"), "plain,warm"),
        (("cache", "w"), "plain,warm"),
        (("completion", ""), "plain,bash plain,fish plain,zsh"),
        (("--cache-dir", "a"), "dir,a"),
        (("--report", "a"), "file,a"),
        (("infer",), "file,infer"),
        (("infer.py", "--mo"), "file,--mo"),
        (("--", "in"), "file,in"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_completions(tmp_path: Path, words: tuple[str, ...], expected: str):
    assert sorted(completions(*words, cwd=tmp_path)) == expected.split()


def test_first_word_is_a_command_or_a_file(tmp_path: Path):
    assert set(completions("", cwd=tmp_path)) >= {f"plain,{name}" for name in (*COMMANDS, "help")}
    (tmp_path / "plate.py").touch()
    assert completions("pla", cwd=tmp_path) == ["plain,plan", "plain,plate.py"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_same_words(shell: str):
    assert "latency" in " ".join(completions("--mode", "l", shell=shell))


def test_bash_completes(needs: Callable[[object, str], None]):
    script = (
        'eval "$(xlaunch completion bash)"\n'
        'COMP_WORDS=(xlaunch topology --place "") COMP_CWORD=3\n'
        '_xlaunch_completion xlaunch\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    env = clean_environment(PATH=f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}")
    needs((SCRIPTS / "xlaunch").exists(), "xlaunch beside its interpreter")
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("compact\nscatter\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str):
    done = ask("completion", shell)
    assert done.code == 0
    assert f"_XLAUNCH_COMPLETE={shell}_complete" in done.out.decode()


@pytest.mark.parametrize(
    ("words", "told"), [(("completion", "tcsh"), "'tcsh'"), (("completion",), "bash|zsh|fish")]
)
def test_completion_for_no_shell_or_another(words: tuple[str, ...], told: str):
    assert told in ask(*words).refused()


@pytest.mark.parametrize("instruction", ["tcsh_complete", "bash", "bash_other"])
def test_instruction_that_no_script_gives(instruction: str):
    assert "complet" in ask(env=clean_environment(_XLAUNCH_COMPLETE=instruction)).refused()
