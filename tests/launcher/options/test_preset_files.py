# SPDX-License-Identifier: Apache-2.0
"""Where options come from: the levels and their order, the files, and what is wrong with them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment, xlaunch
from tests.launcher.options.settings import Home, home, typed

from xlaunch.cli import run
from xlaunch.errors import UsageError
from xlaunch.options.precedence import locate_preset
from xlaunch.planning.request import MAX, MemoryPolicy, Mode, OnFailure

__all__ = ["home"]

LEVELS = ("command line", "variable", "preset", "project", "user")
"""The strongest first; the sixth is the default."""

# Option, its value at each level as TOML and as the request has it, and the default.
STOP, CONTINUE = OnFailure.STOP, OnFailure.CONTINUE
TABLE: list[tuple[str, str, list[Any], Any]] = [
    ("ncores", "5 4 3 2 1", [5, 4, 3, 2, 1], None),
    ("on-failure", "'continue' 'stop' 'continue' 'stop' 'continue'",
     [CONTINUE, STOP] * 2 + [CONTINUE], None),
    ("cpus", "'5' '0-4' '3' '2' '1'", [(5,), (0, 1, 2, 3, 4), (3,), (2,), (1,)], None),
    ("timeout", "5 '4m' 2.5 '2h' 1", [5.0, 240.0, 2.5, 7200.0, 1.0], None),
    ("log-dir", "'e' 'd' 'c' 'b' 'a'", list("edcba"), None),
    ("smt", "false true false true false", [False, True] * 2 + [False], False),
    ("tag", "true false true false true", [True, False] * 2 + [True], None),
]  # fmt: skip
FIELDS = {"timeout": "timeout_s"}


@pytest.mark.parametrize(("option", "texts", "values", "default"), TABLE, ids=[r[0] for r in TABLE])
def test_strongest_level_that_says_something_wins(
    home: Home, option: str, texts: str, values: list[Any], default: Any
):
    key = option.replace("-", "_")
    variable = f"XLAUNCH_OPT_{key.upper()}"
    files = ("preset best.toml", f"project {home.project}", f"user {home.user}")
    origins = ("command line", variable, *files)
    outcomes = [*zip(values, origins, strict=True), (default, None)]
    for present in itertools.product((False, True), repeat=len(LEVELS)):
        words, environment = [], {}
        for level, text, there in zip(LEVELS, texts.split(), present, strict=True):
            bare = text.strip("'")
            if level in ("preset", "project", "user"):
                home.write(level, f"{option} = {text}" if there else "")
            elif there and level == "variable":
                environment[variable] = bare
            elif there:
                flag = {"true": f"--{option}", "false": f"--no-{option}"}.get(bare)
                words = [flag or f"--{option}={bare}"]
        with mock.patch.dict(os.environ, environment):
            found = typed("--preset", "best.toml", *words, "program")
        strongest = [*present, True].index(True)
        value, source = outcomes[strongest]
        assert found.request.options()[FIELDS.get(option, key)] == value
        assert found.origins.get(key) == source


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('cpus = "0-2,5"', {"cpus": (0, 1, 2, 5)}),
        ("cpus = [5, 0, 1, 2]", {"cpus": (0, 1, 2, 5)}),
        ('cpus = [5, "0-2"]', {"cpus": (0, 1, 2, 5)}),
        ("numa-nodes = 1", {"numa_nodes": (1,)}),
        ('instances = "max"', {"instances": MAX}),
        ('instances = "3"', {"instances": 3}),
        ("log-dir = 'a b'", {"log_dir": "a b"}),
        ("log_dir = 'a b'", {"log_dir": "a b"}),
        ("timeout = 1.5", {"timeout_s": 1.5}),
        ("timeout = '250ms'", {"timeout_s": 0.25}),
        ("env = {}", {"env": ()}),
        ("[env]\nA = ''\n'b c' = 7", {"env": (("A", ""), ("b c", "7"))}),
        ("mode = 'latency'\nmem-policy = 'bind'",
         {"mode": Mode.LATENCY, "mem_policy": MemoryPolicy.BIND}),
        ("tag = false", {"tag": False}),
        ("", {}),
    ],
)  # fmt: skip
def test_what_a_file_may_write(home: Home, text: str, value: dict[str, Any]):
    home.write("preset", text)
    request = typed("--preset", "best", "program").request
    assert request == typed("program").request.replace(**value)


# Which files


@pytest.mark.parametrize("name", ["best", "best.toml", "./best", "../down/best.toml"])
def test_preset_here(home: Home, name: str):
    home.write("preset", "ncores = 3")
    (home.presets / "best.toml").write_text("ncores = 4")
    assert typed("--preset", name, "program").request.layout.ncores == 3


@pytest.mark.parametrize("name", ["best", "best.toml"])
def test_preset_of_the_user(home: Home, name: str):
    (home.here / "best").mkdir()
    (home.presets / "best.toml").write_text("ncores = 4")
    found = typed("--preset", name, "program")
    assert found.request.layout.ncores == 4
    assert found.origins["ncores"] == f"preset {home.presets}/best.toml"


def test_preset_that_is_not_there_names_the_nearest(golden: Golden, home: Home):
    (home.presets / "best.toml").write_text("")
    done = ask("--preset", "bset", "true", cwd=home.here)
    assert done.refused().endswith("; did you mean best?")
    golden(
        ask("--preset", "./bset", "true", cwd=home.here).refused(),
        ask("--preset", "..", "true", cwd=home.here).refused(),
    )
    assert "empty" in ask("--preset", "", "true", cwd=home.here).refused()


def test_preset_that_may_not_be_read(tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        with pytest.raises(UsageError, match=r"best\.toml': Permission denied"):
            locate_preset(str(closed / "best.toml"))
    finally:
        if root:
            os.seteuid(0)
        closed.chmod(0o700)


def test_preset_may_be_named_by_a_variable_or_come_through_a_pipe(home: Home):
    home.write("preset", "ncores = 1")
    env = clean_environment(XLAUNCH_OPT_PRESET="best")
    done = ask("plan", "--explain", env=env, cwd=home.here)
    assert b"ncores 1: preset best.toml" in done.out
    done = xlaunch("plan", "--explain", "--preset", "/dev/stdin", input=b"ncores = 1")
    assert b"ncores 1: preset /dev/stdin" in done.out


def test_settings_are_in_the_home_where_no_variable_says_otherwise(home: Home, tmp_path: Path):
    directory = tmp_path / ".config" / "xlaunch"
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text("ncores = 1")
    for base in ("", "relative/directory"):
        env = clean_environment(HOME=str(tmp_path), XDG_CONFIG_HOME=base)
        done = ask("plan", "--explain", env=env, cwd=home.here)
        assert b"ncores 1: user ~/.config/xlaunch/config.toml" in done.out


def test_project_is_the_nearest_that_says_something(home: Home):
    home.write("project", "ncores = 2")
    (home.here.parent / "pyproject.toml").write_text("[tool.other]\nname = 'xlaunch'")
    assert typed("program").request.layout.ncores == 2
    (home.here / "pyproject.toml").write_text("[tool.xlaunch]\nreserve-cores = 1")
    found = typed("program")
    assert (found.request.layout.ncores, found.request.layout.reserve_cores) == (None, 1)
    assert found.origins["reserve_cores"] == "project pyproject.toml"


def test_project_ends_with_the_repository(home: Home):
    (home.project.parents[1] / "pyproject.toml").write_text("[tool.xlaunch]\nncores = 2")
    assert typed("program").request.layout.ncores is None
    (home.project.parent / ".git").rmdir()
    assert typed("program").request.layout.ncores == 2


def test_isolated_reads_the_preset_alone(home: Home):
    home.write("user", "this is no TOML")
    home.write("project", "no-such = 'option'")
    home.write("preset", "ncores = 3")
    for words in (("--preset", "best", "--isolated"), ("--isolated", "--preset", "best")):
        assert typed(*words, "program").request.layout.ncores == 3


def test_project_file_of_another_user_is_not_read(home: Home, monkeypatch: pytest.MonkeyPatch):
    home.write("project", "env = { LD_PRELOAD = '/tmp/theirs.so' }")
    owner = 12345
    if os.geteuid() == 0:
        os.chown(home.project, owner, owner)
    else:
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    found = typed("program")
    assert found.request.program.env == ()
    (note,) = found.notes
    assert note.startswith(f"{home.project} is ignored: {home.project} belongs to another user")


@pytest.mark.parametrize("which", ["project", "user"])
@pytest.mark.parametrize("place", ["file", "directory"])
def test_settings_that_every_user_may_write_are_not_read(home: Home, which: str, place: str):
    home.write(which, "env = { LD_PRELOAD = '/tmp/theirs.so' }")
    path: Path = getattr(home, which)
    (path if place == "file" else path.parent).chmod(0o777)
    found = typed("program")
    assert found.request.program.env == ()
    (note,) = found.notes
    assert f"{path} is ignored: every user may write" in note


def test_preset_that_every_user_may_write_takes_its_path(home: Home):
    home.write("preset", "ncores = 3")
    (home.here / "best.toml").chmod(0o666)
    with pytest.raises(UsageError, match=r"--preset best: every user may write .* its path") as why:
        typed("--preset", "best", "program")
    named = str(why.value).rpartition(" ")[2]
    found = typed("--preset", named, "program")
    assert found.request.layout.ncores == 3
    (note,) = found.notes
    assert note.endswith(f"every user may write {home.here}/best.toml; used as you named it")


def test_help_and_version_work_whatever_files_say(home: Home):
    home.write("user", "this is no TOML")
    for option in ("--help", "--version"):
        assert ask(option, cwd=home.here, env=dict(os.environ)).code == 0


def test_directory_that_is_gone_has_no_project(home: Home):
    home.here.rmdir()
    assert run(["plan"]) == 0


def test_no_parser_is_loaded_where_no_file_has_options(home: Home):
    (home.here / "pyproject.toml").write_text("[project]\nname = 'other'")
    code = (
        "import sys; from xlaunch.cli import run; run(['--dry-run', '--ncores', '1'])\n"
        "print('tomllib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.endswith(b"\nFalse\n")


# What contradicts


def test_dropped_value_is_said_and_the_rest_counts(golden: Golden, home: Home):
    home.write("preset", "mode = 'latency'\nenv = { A = 'preset' }")
    words = ("env", "--preset", "best.toml", "--instances", "1")
    done = ask(*words, cwd=home.here)
    assert b"export A=preset\n" in done.out
    golden(done.err)
    assert ask("-q", *words[1:], "--dry-run", "true", cwd=home.here).err == ""


@pytest.mark.parametrize(
    ("text", "begins", "ends"),
    [
        ("mode = 'latency'\ninstances = 2", "--mode contradicts --instances", "mode, instances"),
        ("cpus = '999999'", "--cpus 999999", "cpus"),
        ("cpus = '999999'\nenv = { A = 'x' }", "--cpus 999999", "cpus, env A"),
    ],
)
def test_file_that_is_to_blame_is_named(home: Home, text: str, begins: str, ends: str):
    home.write("preset", text)
    message = ask("--preset", "best", "true", cwd=home.here).refused()
    assert message.startswith(begins)
    assert message.endswith(f"(preset best.toml sets {ends})")


# Within an instance


def test_instance_takes_no_layout_and_no_outputs_from_standing_files(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    layout = "instances = 2\nsupervise = true\nlog-dir = 'logs'\nreport = 'report.json'"
    home.write("project", f"{layout}\npython = 'py'\nenv = {{ A = 'x' }}")
    monkeypatch.setenv("XLAUNCH_INSTANCE_INDEX", "0")
    found = typed("program")
    plain = typed("--isolated", "program").request
    assert found.request == plain.replace(python="py", env=(("A", "x"),))
    (note,) = found.notes
    assert "instances, supervise, log-dir, report ignored inside an instance" in note


def test_instance_takes_all_of_a_preset_that_it_names(home: Home, monkeypatch: pytest.MonkeyPatch):
    home.write("preset", "instances = 2\nlog-dir = 'logs'")
    monkeypatch.setenv("XLAUNCH_INSTANCE_INDEX", "0")
    request = typed("--preset", "best", "program").request
    assert (request.layout.instances, request.run.log_dir) == (2, "logs")


# What is wrong with a file

BAD: list[tuple[str | bytes, str]] = [
    ("ncores = ", "best.toml is not TOML: Invalid value (at line 1, column 10)"),
    ("ncores = 1\nncores = 2", "Cannot overwrite a value (at line 2"),
    ("smt = true\n\xff".encode("latin-1"), "best.toml, line 2: not UTF-8, so not TOML"),
    ("[" * 5000, "best.toml"),
    ("a = 1" + " " * (1 << 20), "best.toml is longer than 1 MiB"),
    (f"ncores = {'9' * 5000}", "best.toml"),
    ("ncores = 99999999999999999999", "best.toml: ncores: the number is too large"),
    ("ncoers = 1", "best.toml: there is no option 'ncoers'; did you mean ncores?"),
    ("log_dri = 'x'", "there is no option 'log_dri'; did you mean log-dir?"),
    ("qwertyuiop = 1", "there is no option 'qwertyuiop'; 'xlaunch --help' lists the options"),
    ("log-dir = 'a'\nlog_dir = 'b'", "best.toml: log_dir is there twice"),
    ("dry-run = true", "best.toml: dry-run is for the command line; no file may hold it"),
    ("preset = 'other'", "preset is for the command line"),
    ("version = true", "there is no option 'version'"),
    ("ncores = 0", "best.toml: ncores: '0' is not a count; write a whole number from 1"),
    ("ncores = 2.0", "ncores: '2.0' is not a count"),
    ("ncores = true", "best.toml: ncores: must be N|max, as a number or in quotes, not true"),
    ("ncores = [1, 2]", "best.toml: ncores: must be N|max, as a number or in quotes, not a list"),
    ("ncores = { a = 1 }", "not a table"),
    ("ncores = 1979-05-27", "not a date or a time"),
    ("mode = 'fast'", "mode: 'fast' is not one of latency, throughput"),
    ("mode = 4", "mode: '4' is not one of"),
    ("smt = 1", "best.toml: smt: must be true or false, not a number"),
    ("tag = 'no'", "tag: must be true or false"),
    ("python = 3", "best.toml: python: must be in quotes, not a number"),
    ("log-dir = ['a']", "log-dir: must be in quotes, not a list"),
    ("cache-dir = ''", "best.toml: cache-dir: the directory's name is empty"),
    ('log-dir = "a\\u0000b"', "holds a null character"),
    ("cpus = '3-0'", "best.toml: cpus: '3-0' runs backwards"),
    ("cpus = []", "cpus: the list '' is empty"),
    ("cpus = [0, [1]]", "cpus: must be LIST, as a number or in quotes, not a list"),
    ("cpus = [-1]", "cpus: cannot read '-1'"),
    ("timeout = 0", "timeout: '0' is not a time above 0"),
    ("timeout = inf", "timeout: 'inf' is not a time"),
    ("env = 'A=1'", "best.toml: env: must be a table such as { NAME = \"value\" }, not text"),
    ("env = ['A']", "env: 'A' is not NAME=VALUE"),
    ("[env]\nA = true", "env: A: write the value in quotes, not as true"),
    ("[env]\nA = 1.5", "env: A: write the value in quotes, not as a number"),
    ("[env]\n'A=B' = '1'", "env: 'A=B' cannot be the name of a variable"),
    ("[env]\n'' = '1'", "env: '' cannot be the name of a variable"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), BAD, ids=[str(row[0])[:24] for row in BAD])
def test_bad_preset_is_one_line_that_names_file_and_key(
    home: Home, content: str | bytes, expected: str
):
    data = content if isinstance(content, bytes) else content.encode()
    (home.here / "best.toml").write_bytes(data)
    assert expected in ask("--preset", "best.toml", "true", cwd=home.here).refused()


def test_bad_standing_files_name_themselves(golden: Golden, home: Home):
    home.write("user", "ncoers = 1")
    said = [ask("true", cwd=home.here).refused()]
    for text in ("[tool.xlaunch]\nncores = 0", "[tool]\nxlaunch = 1", "[tool.xlaunch]\n["):
        home.project.write_text(text)
        said.append(ask("true", cwd=home.here).refused())
    golden(said, hide="(?<=is not TOML: ).*")


def test_file_that_cannot_be_read(golden: Golden, home: Home):
    home.user.mkdir()
    message = ask("true", cwd=home.here).refused()
    golden(message)
    (home.here / "best.toml").symlink_to("nowhere")
    message = ask("--isolated", "--preset", "best", "true", cwd=home.here).refused()
    golden(message)
