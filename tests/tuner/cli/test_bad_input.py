# SPDX-License-Identifier: Apache-2.0
"""A user's mistake is one clear line with exit code 2, and nothing is launched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from tests.tuner.cli.commands import Desk
from tests.tuner.conftest import Needs

from xtune.cli import main


@pytest.fixture(autouse=True)
def at_the_desk(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk.directory)
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.directory / "state"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "name a program: xtune [OPTIONS] [--] PROGRAM [ARGS...]"),
        ("--bugdet 3 nap.py", "there is no option --bugdet; did you mean --budget"),
        ("--budget ten nap.py 1", "--budget 'ten' cannot be read; write a time"),
        ("--budget 1 nap.py 1", "a search needs at least 2 launches"),
        ("--min-effect 5 nap.py 1", "'5' is not a percentage"),
        ("--goal faster nap.py 1", "'faster' is not one of"),
        ("--work halved nap.py 1", "'halved' is not one of"),
        ("--metric loss nap.py 1", "is neither a rate nor a time by its name: give --goal"),
        ("--metric it(s nap.py 1", "not a valid one"),
        ("--require p99=20 nap.py 1", "'=' is not supported; write <= or >="),
        ("--require p99<=20ms nap.py 1", "p99 of what?"),
        ("--param n=1,2 nap.py 1", "{n} occurs neither in the program's arguments nor in --env"),
        ("--param ncores=1,2 nap.py {ncores}", "choose another name"),
        ("--param n nap.py {n}", "write NAME=VALUE,VALUE"),
        ("--only-params nap.py 1", "there is no --param to search"),
        ("--only-params --param n=1 nap.py {n}", "there is only one configuration"),
        (
            "--only-params --param n=1,2 --when m>1 nap.py {n}",
            "nothing here has the name or the value 'm'",
        ),
        ("--only-params --param n=1,2 --when n>5 nap.py {n}", "no configuration meets it"),
        ("--conf-file none.yaml nap.py 1", "--conf-file 'none.yaml': No such file"),
        ("--conf-file pipe nap.py 1", "'pipe': it is a named pipe, not a regular file"),
        ("list --storage pipe.journal", "pipe.journal is not a regular file"),
        ("list --storage journal:pipe.journal", "pipe.journal is not a regular file"),
        ("--try none.toml nap.py 1", "--try 'none.toml' is neither here nor in"),
        ("--metric x/s --metric x/s nap.py 1", "--metric names the same number twice"),
        ("--study= nap.py 1", "--study: the name is empty"),
        ("--instances 1000000 nap.py 1", "1000000"),
        ("--work shared -m --no-python x", "--no-python contradicts --module"),
        ("--ready {port} nap.py 1", "a service needs both --ready (a URL, a port,"),
        ("--measure wrk nap.py 1", "and --measure (the command of a load generator)"),
        ("--measure wrk --ready {port} nap.py 1", "--measure needs a --metric of its output"),
        ("--load c=1..8 nap.py 1", "--load is about a service"),
        ("--warmup 2s nap.py 1", "--warmup is about a service"),
        (
            "--measure echo{c} --ready {port} --metric x/s --load c=1..8 nap.py 1",
            "--load needs the bound to keep",
        ),
        (
            "--measure echo --ready {port} --metric x/s --require p99<=1s --load c=1..8 nap.py 1",
            "write {c} in --measure",
        ),
        (
            "--measure no-wrk --ready {port} --metric x/s nap.py 1",
            "program 'no-wrk' is not on PATH",
        ),
        ("--prepare no-sql nap.py 1", "--prepare 'no-sql': no program 'no-sql' can be run"),
        ("--cleanup ./nap.py nap.py 1", "--cleanup './nap.py': no program './nap.py' can be run"),
        ("--prepare= nap.py 1", "--prepare: the command is empty"),
        ("--measure= --ready 80 --metric x/s nap.py 1", "--measure: the command is empty"),
        ("--storage= nap.py 1", "--storage: the name is empty"),
        ("-q -v nap.py 1", "--quiet contradicts --verbose"),
        ("--save-preset best.txt nap.py 1", "the name of a preset ends in .toml"),
        ("--save-preset no/best.toml nap.py 1", "is not a directory that can be written"),
        ("--save-preset mine.toml nap.py 1", "exists and is not a preset"),
        (
            "--only-params --param t=0.01,0.02 --storage none/studies.db nap.py {t}",
            "the directory {here}/none does not exist; create it first",
        ),
        ("report --storage none/studies.db", "the directory {here}/none does not exist"),
        ("list --storage absent.db", "storage {here}/absent.db does not exist"),
        ("resume --storage sqlite:///absent.db", "storage {here}/absent.db does not exist"),
        ("export --storage state.d", "state.d is a directory; name a file in it, such as"),
        ("--storage state.d nap.py 1", "state.d is a directory; name a file in it, such as"),
        ("list --storage sqlite:///state.d", "state.d is a directory; name a file in it, such as"),
        ("list --storage diary.db", "holds no studies: file is not a database; choose another"),
        ("--storage diary.db nap.py 1", "holds no studies: file is not a database; choose another"),
        ("--storage songs.db nap.py 1", "holds no studies: it is a database of another program"),
        ("--storage diary.log nap.py 1", "holds no studies: it is not a journal of Optuna's"),
        ("list --storage sqlite:///:memory:", "is only in memory"),
        ("list --storage sqlite://", "is only in memory"),
        ("list --storage nonsense://x", "give a file, or a URL such as postgresql://"),
        ("-- resume nosuch", "program 'resume' is not on PATH"),
        ("-q resume", "'resume' is a command of xtune: put it first"),
        ("resume", "there is no study in"),
        ("resume nosuch", "there is no study named 'nosuch'"),
        ("resume -q -v nosuch", "--quiet contradicts --verbose"),
        ("report nosuch", "there are none"),
        (
            "report --html -",
            "--html '-': a page goes to a file, not to standard output; write --html",
        ),
        ("report --html nap.py", "the name of a page ends in .html; write --html report.html"),
        ("report --html none/page.html", "{here}/none does not exist; create it first"),
        (
            "report --html d.html",
            "--html 'd.html' exists and is not a regular file; choose another",
        ),
        ("report --html pipe.html", "exists and is not a regular file; choose another name"),
        ("report --html nap.py/page.html", "{here}/nap.py does not exist; create it first"),
        ("export nosuch", "there is no study named 'nosuch'"),
        ("export --output=", "--output: the file's name is empty"),
        ("list --nosuch", "there is no option --nosuch"),
    ],
)
def test_one_line(desk: Desk, line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    desk.write("mine.toml", "title = 'mine'\n")
    for name in ("pipe", "pipe.html", "pipe.journal"):
        os.mkfifo(desk.directory / name)
    for name in ("state.d", "d.html"):
        (desk.directory / name).mkdir()
    for name in ("diary.db", "diary.log"):
        desk.write(name, "this is a diary\n")
    with contextlib.closing(sqlite3.connect("songs.db")) as songs:
        songs.execute("CREATE TABLE songs (name)")
    before = contents(desk.directory)
    code = main(line.split())
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("xtune: error: ")
    assert said.replace("{here}", str(desk.directory)) in err
    assert code == (127 if "is not on PATH" in said else 2)
    assert contents(desk.directory) == before


def test_an_empty_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("xtune: there is no study in sqlite:///")
    assert main(["list", "--json"]) == 0
    assert capsys.readouterr() == ("[]\n", "")


def contents(directory: Path) -> dict[str, bytes | None]:
    """What is in a directory; None for what is not a regular file."""
    return {it.name: it.read_bytes() if it.is_file() else None for it in directory.iterdir()}


BOTH = """
import json, sys
from xtune.cli import main
print([main(words) for words in json.loads(sys.argv[1])])
"""


@pytest.mark.parametrize(
    ("mode", "directory_mode", "said"),
    [
        (0o000, 0o700, "/kept/studies.db is not readable and writable"),
        (0o400, 0o700, "/kept/studies.db is not readable and writable"),
        (0o600, 0o500, "/kept is not writable, and locks are kept there"),
    ],
)
def test_storage_without_permission(
    desk: Desk, mode: int, directory_mode: int, said: str, needs: Needs
) -> None:
    capabilities = "-dac_override,-dac_read_search"
    as_user = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}"]
    needs(os.geteuid() != 0 or shutil.which("setpriv"), "setpriv (Debian: util-linux)")
    kept = desk.directory / "kept"
    kept.mkdir()
    (kept / "studies.db").touch(mode)
    kept.chmod(directory_mode)
    storage = ("--storage", "kept/studies.db")
    commands = json.dumps((("list", *storage), (*storage, "nap.py", "1")))
    both = (sys.executable, "-c", BOTH, commands)
    done = desk.run(*(as_user if os.geteuid() == 0 else ()), *both)
    assert done.out == "[2, 2]\n", done.err
    lines = done.err.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("xtune: error: ")
        assert said in line
    assert os.listdir(kept) == ["studies.db"]


def test_default_storage_that_cannot_be_made(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.write("diary.log", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.directory / "diary.log"))
    assert main(["nap.py", "1"]) == 2
    assert "diary.log/xtune: Not a directory; set XDG_STATE_HOME" in capsys.readouterr().err


@pytest.mark.machine
def test_wall_time_does_not_compare_layouts(
    capsys: pytest.CaptureFixture[str], needs: Needs
) -> None:
    from xlaunch.machine import read_machine
    from xlaunch.planning import Request, plan

    (alone,) = plan(Request.of("true", instances=1).layout, read_machine()).instances
    needs(alone.ncores > 1, "two cores")
    assert main(["--instances", "2", "nap.py", "1"]) == 2
    assert "wall time cannot compare 2 instances" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('mode = "latency"\ninstances = 2\n', "--mode"),
        ("instances = 100000\n", "100000 instances"),
        ("instnces = 4\n", "there is no option 'instnces'; did you mean instances?"),
        ("reserve-cores = 1\n", "none of its options is searched"),
        ("grace = 1e\n", "mine.toml"),
    ],
)
def test_presets_that_cannot_be_tried(
    desk: Desk, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.write("mine.toml", text)
    assert main(["--metric", "items/s", "--try", "mine.toml", "rate.py", "1"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert not (desk.directory / "state").exists()


def test_without_its_packages_xtune_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["nap.py"]) == 2
    said = "xtune: error: xtune needs optuna, which is not installed: pip install optuna\n"
    assert capsys.readouterr().err == said
    assert main(["--version"]) == 0
