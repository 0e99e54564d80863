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
from tests.golden import Golden
from tests.tuner.cli.commands import Desk
from tests.tuner.conftest import Needs

from xtune.cli import main


@pytest.fixture(autouse=True)
def at_the_desk(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk.directory)
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.directory / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(desk.directory / "config"))


LINES = (
    "", "--bugdet 3 nap.py", "--budget ten nap.py 1", "--budget 1 nap.py 1", "--min-effect 5 nap.py 1",
    "--goal faster nap.py 1", "--work halved nap.py 1", "--metric loss nap.py 1", "--metric it(s nap.py 1",
    "--require p99=20 nap.py 1", "--require p99<=20ms nap.py 1", "--param n=1,2 nap.py 1",
    "--param ncores=1,2 nap.py {ncores}", "--param n nap.py {n}", "--only-params nap.py 1",
    "--only-params --param n=1 nap.py {n}", "--only-params --param n=1,2 --when m>1 nap.py {n}",
    "--only-params --param n=1,2 --when n>5 nap.py {n}", "--conf-file none.yaml nap.py 1",
    "--conf-file pipe nap.py 1", "list --storage pipe.journal", "list --storage journal:pipe.journal",
    "--try none.toml nap.py 1", "--metric x/s --metric x/s nap.py 1", "--study= nap.py 1",
    "--work shared -m --no-python x", "--ready {port} nap.py 1", "--measure wrk nap.py 1",
    "--measure wrk --ready {port} nap.py 1", "--load c=1..8 nap.py 1", "--warmup 2s nap.py 1",
    "--measure echo{c} --ready {port} --metric x/s --load c=1..8 nap.py 1",
    "--measure echo --ready {port} --metric x/s --require p99<=1s --load c=1..8 nap.py 1",
    "--measure no-wrk --ready {port} --metric x/s nap.py 1", "--prepare no-sql nap.py 1",
    "--cleanup ./nap.py nap.py 1", "--prepare= nap.py 1", "--measure= --ready 80 --metric x/s nap.py 1",
    "--storage= nap.py 1", "-q -v nap.py 1", "--save-preset best.txt nap.py 1",
    "--save-preset no/best.toml nap.py 1", "--save-preset mine.toml nap.py 1",
    "--only-params --param t=0.01,0.02 --storage none/studies.db nap.py {t}",
    "report --storage none/studies.db", "list --storage absent.db", "resume --storage sqlite:///absent.db",
    "export --storage state.d", "--storage state.d nap.py 1", "list --storage sqlite:///state.d",
    "list --storage diary.db", "--storage diary.db nap.py 1", "--storage songs.db nap.py 1",
    "--storage diary.log nap.py 1", "list --storage sqlite:///:memory:", "list --storage sqlite://",
    "list --storage nonsense://x", "-- resume nosuch", "-q resume", "resume", "resume nosuch",
    "resume -q -v nosuch", "report nosuch", "report --html -", "report --html nap.py",
    "report --html none/page.html", "report --html d.html", "report --html pipe.html",
    "report --html nap.py/page.html", "export nosuch", "export --output=", "list --nosuch",
)  # fmt: skip
"""Command lines; `test_bad_input.golden` has what is said of each."""


def test_one_line(golden: Golden, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
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
    said = []
    for line in LINES:
        code = main(line.split())
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), line
        assert err.startswith("xtune: error: "), line
        assert contents(desk.directory) == before, line
        said += [f"$ xtune {line}", f"{err.strip()} ({code})"]
    golden(said)


def test_more_instances_than_cores_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--instances", "1000000", "nap.py", "1"]) == 2
    assert "1000000" in capsys.readouterr().err


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


EACH = """
import json, sys
from xtune.cli import main
print([main(words) for words in json.loads(sys.argv[1])])
"""


def test_storage_without_permission(desk: Desk, needs: Needs) -> None:
    capabilities = "-dac_override,-dac_read_search"
    as_user = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}"]
    needs(os.geteuid() != 0 or shutil.which("setpriv"), "setpriv (Debian: util-linux)")
    commands, expected = [], []
    for mode, directory_mode, said in (
        (0o000, 0o700, "{}/studies.db is not readable and writable"),
        (0o400, 0o700, "{}/studies.db is not readable and writable"),
        (0o600, 0o500, "{} is not writable, and locks are kept there"),
    ):
        kept = desk.directory / f"{mode:o}"
        kept.mkdir()
        (kept / "studies.db").touch(mode)
        kept.chmod(directory_mode)
        storage = ("--storage", f"{kept.name}/studies.db")
        commands += [("list", *storage), (*storage, "nap.py", "1")]
        expected += [said.format(kept)] * 2
    each = (sys.executable, "-c", EACH, json.dumps(commands))
    done = desk.run(*(as_user if os.geteuid() == 0 else ()), *each)
    assert done.out == f"{[2] * 6}\n", done.err
    for line, said in zip(done.err.splitlines(), expected, strict=True):
        assert line.startswith("xtune: error: ")
        assert said in line
    assert all(os.listdir(kept) == ["studies.db"] for kept in desk.directory.glob("[0-9]*"))


def test_default_storage_that_cannot_be_made(
    golden: Golden, desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.write("diary.log", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.directory / "diary.log"))
    assert main(["nap.py", "1"]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.machine
def test_wall_time_does_not_compare_layouts(
    golden: Golden, capsys: pytest.CaptureFixture[str], needs: Needs
) -> None:
    from xlaunch.machine import read_machine
    from xlaunch.planning import Request, plan

    (alone,) = plan(Request.of("true", instances=1).layout, read_machine()).instances
    needs(alone.ncores > 1, "two cores")
    assert main(["--instances", "2", "nap.py", "1"]) == 2
    golden(capsys.readouterr().err)


def test_presets_that_cannot_be_tried(
    golden: Golden, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(text: str) -> str:
        desk.write("mine.toml", text)
        assert main(["--metric", "items/s", "--try", "mine.toml", "rate.py", "1"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        return err

    # What is wrong with layouts depends on the cores of this machine.
    assert "mode" in said('mode = "latency"\ninstances = 2\n')
    assert "instances" in said("instances = 100000\n")
    others = ("instnces = 4\n", "reserve-cores = 1\n", "grace = 1e\n")
    golden(*map(said, others), hide="(?<=is not TOML: ).*")
    assert not (desk.directory / "state").exists()


def test_without_its_packages_xtune_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["nap.py"]) == 2
    said = "xtune: error: xtune needs optuna, which is not installed: pip install optuna\n"
    assert capsys.readouterr().err == said
    assert main(["--version"]) == 0
