# SPDX-License-Identifier: Apache-2.0
"""Help and version, misspelt commands, and completion in shells."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment, program, run
from tests.launcher.cli.commands import xlaunch as xlaunch_command

import xlaunch
from xlaunch.cli.plan import OF_A_RUN
from xlaunch.options.definitions import BY_KEY, COMMANDS, OPTIONS, OptionGroup

SCRIPTS = Path(sys.executable).parent


def test_help_and_version():
    for words in (("--help",), ("-h",), ("help",), ("help", "-h"), ("help", "--help")):
        done = ask(*words)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(b"Usage: xlaunch [OPTIONS] [--] PROGRAM [ARGS...]\n")
    for words in (("--version",), ("version",), ("--version", "no-such-program")):
        assert ask(*words) == (0, f"xlaunch {xlaunch.__version__}\n".encode(), "")


def test_help_shows_commands_and_every_option_in_its_group_within_80_columns(golden: Golden):
    text = ask("--help").out.decode()
    assert max(len(line) for line in text.splitlines()) <= 80
    commands = text.partition("\nCommands:\n")[2].splitlines()
    named = [re.match(r"  xlaunch (\w+)  +\S.*\.$", line) for line in commands]
    assert [found and found[1] for found in named] == sorted(COMMANDS)
    titles = [group.value for group in OptionGroup] + ["Other"]
    starts = [text.index(f"\n{title}:\n") for title in titles]
    assert starts == sorted(starts)
    parts = dict(zip(titles, itertools.pairwise([*starts, len(text)]), strict=True))
    for option in OPTIONS:
        start, end = parts[option.group.value]
        assert f"--{option.name} " in text[start:end]
    golden(text[starts[0] :])
    for shown in ("--mode latency|throughput", "--instances N|max", "--on-failure stop|continue"):
        assert shown in text


@pytest.mark.parametrize("name", [*sorted(COMMANDS), "cache warm"])
def test_help_of_a_command(name: str):
    asked = ask("help", *name.split())
    assert asked == ask(*name.split(), "--help")
    assert (asked.code, asked.err) == (0, "")
    assert asked.out.startswith(f"Usage: xlaunch {name} ".encode())
    in_brackets = b"[OPTIONS] [[--] PROGRAM [ARGS...]]\n" in asked.out
    assert in_brackets == (name in ("plan", "env"))


def test_misspelt_command(golden: Golden, tmp_path: Path):
    lines = [ask("--ncores", "1", "cahce").refused(127)]
    for typed in ("cahce", "doctr", "envv", "qqq"):
        lines += [ask(typed, "--json").refused(127), ask("help", typed).refused()]
    golden(lines)
    program(tmp_path / "cahce", "#!/bin/sh\necho ran\n")
    env = clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert xlaunch_command("cahce", env=env).out == b"ran\n"


@pytest.mark.parametrize("command", ["plan", "env"])
def test_options_of_a_run_are_taken_and_not_shown(command: str):
    """A command line of xlaunch becomes one of plan by a word."""
    text = ask(command, "--help").out.decode()
    plain = ask(command)
    values = {"--on-failure": "stop", "--timeout": "1h", "--grace": "1s", "--max-restarts": "2"}
    values |= {f"--health-{name}": "2" for name in ("interval", "timeout", "failures", "start")}
    values |= {"--health": "8000", "--log-format": "json", "--log-size": "1MB"}
    values["--prometheus-port"] = "9400"
    for name in OF_A_RUN:
        option = f"--{name}"
        assert f"{option} " not in text
        words = [option]
        if BY_KEY[name.replace("-", "_")].kind.metavar:
            words.append(values.get(option, "x"))
        if option in ("--tee", "--log-size"):
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
    assert run(["bash", "-c", script], env=env) == (0, b"compact\nscatter\n", "")


def test_completion_script():
    for shell in ("bash", "zsh", "fish"):
        done = ask("completion", shell)
        assert done.code == 0
        assert f"_XLAUNCH_COMPLETE={shell}_complete" in done.out.decode()
    assert "'tcsh'" in ask("completion", "tcsh").refused()
    assert "bash|zsh|fish" in ask("completion").refused()
    for instruction in ("tcsh_complete", "bash", "bash_other"):
        assert "complet" in ask(env=clean_environment(_XLAUNCH_COMPLETE=instruction)).refused()
