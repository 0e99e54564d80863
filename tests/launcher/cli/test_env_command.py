# SPDX-License-Identifier: Apache-2.0
"""`xlaunch env`: read by a real shell, by systemd, by docker, it is what an instance gets."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import AWKWARD, SHOW, XLAUNCH, ask, clean_environment, xlaunch

from xlaunch.environment.threads import OPENMP_COUNT, VARIABLES
from xlaunch.environment.variables import SET_VARIABLES

VALUES = [value for value in AWKWARD if len(value) < 1000]
WRITTEN_BY_SHELLS = {"_", "SHLVL", "PWD", "OLDPWD"}
MACHINE = "package:2 node:2 l3:4 core:4 pu:2"


def in_shell(script: str, *words: str | bytes, shell: str = "sh", **env: str) -> bytes:
    """What a shell prints; ``"$@"`` is xlaunch with `words`."""
    command = (shell, "-c", script, shell, *XLAUNCH, *words)
    done = subprocess.run(command, env=clean_environment(**env), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_shell_gets_every_value_unchanged(shell: str):
    options = [b"--env=V%d=" % n + value for n, value in enumerate(VALUES)]
    script = f'eval "$("$@")"; exec {sys.executable} {SHOW}'
    told = json.loads(in_shell(script, "env", *options, shell=shell))
    for number, value in enumerate(VALUES):
        assert os.fsencode(told["env"][f"V{number}"]) == value


def environment_after_eval(*options: str, **env: str) -> dict[str, str]:
    """The environment of a program in a shell that has read `xlaunch env`."""
    # Standard error has a line on MKL_NUM_THREADS.
    script = f'eval "$("$@" 2>/dev/null)"; exec {sys.executable} {SHOW}'
    told = json.loads(in_shell(script, "env", *options, **env))["env"]
    return without_what_shells_write(told)


def without_what_shells_write(told: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in told.items() if name not in WRITTEN_BY_SHELLS}


def without_counts(told: dict[str, str]) -> dict[str, str]:
    """A shell has no mask that programs could count, so it gets more thread counts."""
    counts = {row.name for row in VARIABLES} | {OPENMP_COUNT, SET_VARIABLES}
    return {name: value for name, value in told.items() if name not in counts}


@pytest.mark.parametrize(
    "options",
    [
        ("--env", "OMP_NUM_THREADS=7", "--allocator", "glibc-frugal"),
        ("--ncores", "1", "--no-cache", "--env", "PATH=/nowhere"),
    ],
    ids=" ".join,
)
def test_shell_has_the_environment_that_an_instance_has(options: tuple[str, ...]):
    env = {"XLAUNCH_OPT_GRACE": "5", "MKL_NUM_THREADS": "3"}
    told = environment_after_eval(*options, sys.executable, **env)
    real = xlaunch(*options, sys.executable, SHOW, env=clean_environment(**env)).only()["env"]
    assert without_counts(told) == without_counts(without_what_shells_write(real))
    assert told["OMP_NUM_THREADS"] == ("7" if options[0] == "--env" else "1")


def test_second_time_in_the_same_shell_sets_what_has_changed():
    first, second = (f'"$@" --ncores 1 --env A={n}' for n in (1, 2))
    script = f'eval "$({first})"; eval "$({second})"; echo $A $OMP_NUM_THREADS'
    assert in_shell(script, "env") == b"2 1\n"


def test_environment_is_the_same_after_eval_and_inside_an_instance():
    evaluated, inside = environment_after_eval(), xlaunch(sys.executable, SHOW).only()["env"]
    assert without_counts(without_what_shells_write(inside)) == without_counts(evaluated)
    for form in ("sh", "systemd", "docker", "json"):
        options = ("env", "--ncores", "1", "--format", form)
        plain = ask(*options)
        assert b"XLAUNCH_INSTANCE_INDEX" in plain.out
        assert b"OMP_NUM_THREADS" in plain.out
        assert ask(*options, env=evaluated).out == ask(*options, env=inside).out == plain.out


def test_name_that_cannot_be_had_is_refused(golden: Golden):
    for form in ("sh", "systemd"):
        message = ask("env", "--format", form, "--env", "A-B=1").refused()
        golden(message)


def test_several_instances_need_a_choice(golden: Golden):
    options = ("--synthetic", MACHINE, "--instances", "4")
    message = ask("env", *options).refused()
    golden(message)
    done = ask("env", *options, "--instance-index", "2")
    assert b"export XLAUNCH_INSTANCE_INDEX=2\n" in done.out
    assert "4 instances" not in done.err
    assert "choose one" in ask("env", *options, "--instance-index", "1,2").refused()


def test_program_of_python_is_the_default(golden: Golden, tmp_path: Path):
    with_program = ask("env", "--ncores", "1", sys.executable)
    assert ask("env", "--ncores", "1") == with_program
    assert ask("env", "--ncores", "1", "-m") == with_program
    golden(ask("env", "no-such-program").refused(127))


def test_presets_hold_for_it(tmp_path: Path):
    (tmp_path / "best.toml").write_text("env = { A = 'b c' }")
    done = ask("env", "--preset", "best", cwd=tmp_path)
    assert b"export A='b c'\n" in done.out


# systemd


def systemd_lines(*options: str | bytes) -> list[str]:
    done = ask("env", "--format", "systemd", *options)
    assert done.code == 0, done.err
    return done.out.decode().splitlines()


def unquoted(line: str) -> str:
    """What systemd makes of ``Environment="..."``, by systemd.syntax(7) and systemd.unit(5)."""
    text = line.removeprefix('Environment="').removesuffix('"')
    assert len(text) == len(line) - len('Environment=""'), line
    read, rest = "", iter(text)
    for char in rest:
        if char == "\\":
            code = next(rest)
            known = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}
            read += chr(int(next(rest) + next(rest), 16)) if code == "x" else known[code]
        elif char == "%":
            assert next(rest) == "%"
            read += "%"
        else:
            assert char != '"'
            read += char
    return read


TEXTS = {f"V{n}": value.decode() for n, value in enumerate(VALUES) if value[:1] != b"\xff"}


def test_systemd_quoting_keeps_every_value():
    lines = systemd_lines(*[f"--env={name}={value}" for name, value in TEXTS.items()])
    told = dict(unquoted(ln).split("=", 1) for ln in lines if ln.startswith("Environment="))
    assert TEXTS.items() <= told.items()


def test_systemd_reads_every_value_unchanged(tmp_path: Path, needs):
    """By systemd itself: with this variable it dumps the unit that it verifies."""
    verify = shutil.which("systemd-analyze")
    needs(verify, "systemd-analyze (Debian: systemd)")
    options = [f"--env={name}={value}" for name, value in TEXTS.items()]
    lines = systemd_lines("--mem-policy", "bind", "--ncores", "2", "--synthetic", MACHINE, *options)
    unit = tmp_path / "unit.service"
    unit.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *lines, ""]))
    plain = subprocess.run((verify, "verify", unit), capture_output=True, text=True, check=False)
    assert "unit.service" not in plain.stderr
    env = os.environ | {"SYSTEMD_LOG_LEVEL": "debug"}
    done = subprocess.run((verify, "verify", unit), env=env, capture_output=True, check=False)
    for name, value in TEXTS.items():
        assert f"\t\tEnvironment: {name}={value}\n".encode() in done.stdout + done.stderr


def test_systemd_gets_the_place():
    options = ("--synthetic", MACHINE, "--instances", "4", "--instance-index", "1")
    bound = systemd_lines(*options, "--mem-policy", "bind")
    assert bound[-3:] == ["CPUAffinity=16-31", "NUMAPolicy=bind", "NUMAMask=1"]
    assert systemd_lines(*options)[-2:] == ["NUMAPolicy=preferred", "NUMAMask=1"]
    assert systemd_lines(*options, "--mem-policy", "none")[-1] == "CPUAffinity=16-31"
    assert systemd_lines(*options, "--mem-policy", "local")[-1] == "NUMAPolicy=local"


def test_systemd_has_no_preference_for_several_nodes(golden: Golden):
    options = ("--synthetic", MACHINE, "--cpus", "0-31", "--mem-policy", "preferred")
    done = ask("env", "--format", "systemd", *options)
    assert b"NUMAPolicy" not in done.out
    golden(done.err)


def test_systemd_takes_utf_8_only(golden: Golden):
    message = ask("env", "--format", "systemd", "--env", b"A=\xff").refused()
    golden(message)


def test_unit_gets_what_the_user_has_set_in_this_shell():
    """A unit inherits nothing of it."""
    env = clean_environment(OMP_NUM_THREADS="3")
    done = ask("env", "--format", "systemd", env=env)
    assert b'Environment="OMP_NUM_THREADS=3"\n' in done.out
    assert b"OMP_NUM_THREADS" not in ask("env", env=env).out


def test_what_no_variable_holds_is_said():
    for format_, options, told in (
        ("sh", ("--thp", "never"), "warning: --thp never is no variable"),
        ("docker", ("--thp", "never"), "warning: --thp never is no variable"),
        ("sh", ("--mem-policy", "bind"), "warning: --mem-policy bind is no variable"),
    ):
        assert told in ask("env", "--format", format_, *options).err
    assert ask("env", "--mem-policy", "auto", "--thp", "auto").err == ""


# docker


def docker_words(*options: str | bytes) -> list[bytes]:
    """What a program named docker gets."""
    printed = ask("env", "--format", "docker", *options).out
    script = """docker() { printf '%s\\0' "$@"; }; eval "docker run $1 image" """
    command = ("sh", "-c", script, "sh", printed.rstrip(b"\n"))
    done = subprocess.run(command, capture_output=True, check=True)
    return done.stdout.split(b"\0")[:-1]


def test_docker_gets_every_value_unchanged():
    options = [b"--env=V%d=" % n + value for n, value in enumerate(VALUES)]
    words = docker_words(*options, "--env", "A-B=1")
    assert (words[0], words[-1]) == (b"run", b"image")
    told = [word for flag, word in itertools.pairwise(words) if flag == b"--env"]
    assert {b"V%d=" % n + value for n, value in enumerate(VALUES)} < set(told)
    assert b"A-B=1" in told


def test_docker_gets_the_place(golden: Golden):
    options = ("--synthetic", MACHINE, "--instances", "4", "--instance-index", "1")
    assert docker_words(*options)[-3:-1] == [b"--cpuset-cpus", b"16-31"]
    bound = docker_words(*options, "--mem-policy", "bind")[-5:-1]
    assert bound == [b"--cpuset-cpus", b"16-31", b"--cpuset-mems", b"1"]
    done = ask("env", "--format", "docker", *options, "--mem-policy", "interleave")
    golden(done.err)


def test_xruntime_in_a_container_keeps_nothing_either():
    assert b"XRUNTIME_CACHE_DIR=0" in docker_words("--no-cache")
    told = docker_words("--no-cache", "--env", "XRUNTIME_CACHE_DIR=/inside")
    assert b"XRUNTIME_CACHE_DIR=/inside" in told
    assert b"XRUNTIME_CACHE_DIR=0" not in told


def test_docker_gets_no_paths_of_this_machine(golden: Golden, tmp_path: Path):
    options = ("--env", "TRITON_CACHE_DIR=/inside")
    told = [word.decode() for word in docker_words(*options)]
    assert not any(
        re.search("(INDUCTOR|CUDA|NUMBA|SYCL).*_CACHE_(DIR|PATH)", word) for word in told
    )
    assert "TRITON_CACHE_DIR=/inside" in told
    (listed,) = [word for word in told if word.startswith("XLAUNCH_SET=")]
    assert "CACHE" not in listed
    assert "OMP_NUM_THREADS=" in listed
    done = ask("env", "--format", "docker", "--cache-dir", tmp_path)
    assert str(tmp_path) not in done.out.decode()
    golden(done.err)
    done = ask("env", "--format", "docker", env=clean_environment(LD_PRELOAD="/lib/x.so"))
    assert "/lib/x.so" not in done.out.decode()


def test_every_format_is_printable_text():
    for form in ("sh", "systemd", "docker", "json"):
        text = ask("env", "--format", form).out.decode()
        assert text.replace("\n", "").isprintable(), form


# JSON


def test_json_tells_all():
    env = clean_environment(OMP_NUM_THREADS="3", XLAUNCH_OPT_GRACE="5")
    done = ask("env", "--format", "json", "--env", b"A=\xff", "--env", "A-B=1", env=env)
    facts: dict[str, Any] = json.loads(done.out)
    assert facts["schema_version"] == 1
    assert (facts["instance_index"], facts["instance_count"]) == (0, 1)
    assert facts["environment"]["OMP_NUM_THREADS"] == "3"
    assert facts["reasons"]["OMP_NUM_THREADS"].startswith("already set")
    assert os.fsencode(facts["environment"]["A"]) == b"\xff"
    assert facts["environment"]["A-B"] == "1"
    assert facts["removed"] == ["XLAUNCH_OPT_GRACE"]
    assert "OMP_NUM_THREADS" not in facts["changed"]
    assert set(facts["changed"]) < set(facts["environment"])
