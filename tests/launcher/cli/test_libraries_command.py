# SPDX-License-Identifier: Apache-2.0
"""`xlaunch libraries`: what was found, what is chosen, what is refused and why."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment
from tests.launcher.environment.made_up import environment, library
from tests.libraries import find_library

from xlaunch.environment.libraries import NAMES


def listed(*options: str, **variables: str) -> dict[str, Any]:
    done = ask("libraries", "--json", *options, env=clean_environment(**variables))
    assert (done.code, done.err) == (0, "")
    told: dict[str, Any] = json.loads(done.out)
    return told


def test_real_libraries_are_listed_and_one_of_each_is_chosen(tmp_path: Path, needs):
    expected = {name: find_library(name, sys.prefix, os.environ) for name in NAMES}
    for name, found in expected.items():
        needs(found, f"{name}, of Debian or of pip")
    told = listed(XDG_CACHE_HOME=str(tmp_path))
    chosen = [one for one in told["libraries"] if one["chosen"]]
    assert {one["name"]: one["path"] for one in chosen} == {
        name: found.path for name, found in expected.items()
    }
    assert all(one["verdict"] == "chosen: the first that works" for one in chosen)
    assert told["prefix"] == sys.prefix


def test_refused_libraries_are_listed_with_the_reason(tmp_path: Path):
    tmp_path.chmod(0o755)
    hollow = library(tmp_path / "one/libomp.so.5")
    unsafe = library(tmp_path / "two/libomp.so.5")
    unsafe.chmod(0o666)
    path = f"{hollow.parent}:{unsafe.parent}"
    told = listed(LD_LIBRARY_PATH=path, XDG_CACHE_HOME=str(tmp_path))["libraries"]
    verdicts = {one["path"]: one["verdict"] for one in told}
    assert verdicts[str(hollow)].startswith("refused: ")
    assert "preload" in verdicts[str(hollow)]
    assert verdicts[str(unsafe)] == f"refused: every user may write {unsafe}"
    env = clean_environment(LD_LIBRARY_PATH=path, XDG_CACHE_HOME=str(tmp_path))
    table = ask("libraries", env=env).out.decode()
    rows = table.splitlines()
    verdict = f"llvm: refused: every user may write {unsafe}"
    assert rows[rows.index(verdict) + 1] == f"  {unsafe} (LD_LIBRARY_PATH)"


def test_python_option_and_active_environment(tmp_path: Path):
    environment(tmp_path)
    python = f"{tmp_path}/bin/python"
    for told in (
        listed("--python", python, XDG_CACHE_HOME=str(tmp_path)),
        listed(VIRTUAL_ENV=str(tmp_path), XDG_CACHE_HOME=str(tmp_path)),
    ):
        assert (told["interpreter"], told["prefix"]) == (python, str(tmp_path))
        places = [(entry["origin"], entry["place"]) for entry in told["searched"]]
        assert places[0] == ("the program's prefix", f"{tmp_path}/lib")


def test_table_begins_with_whose_libraries_they_are(tmp_path: Path):
    env = clean_environment(XDG_CACHE_HOME=str(tmp_path), LD_PRELOAD="")
    first, *rows = ask("libraries", env=env).out.decode().splitlines()
    assert first == f"for {sys.executable} (the interpreter that xlaunch runs on)"
    assert {row.split()[0].rstrip(":") for row in rows if not row.startswith(" ")} == set(NAMES)


def test_library_that_is_absent_comes_with_a_way_to_get_it(golden: Golden, monkeypatch, capsys):
    from xlaunch.cli import run
    from xlaunch.environment import libraries

    monkeypatch.setattr(libraries, "places", lambda *_, **__: ())
    assert run(["libraries"]) == 0
    lines = capsys.readouterr().out.splitlines()
    golden(lines[-3])
    assert len([line for line in lines if "to install it" in line]) == len(NAMES)


def test_inherited_preload_is_shown(tmp_path: Path, needs):
    jemalloc = find_library("jemalloc", None, {})
    needs(jemalloc, "Debian's libjemalloc2")
    env = clean_environment(LD_PRELOAD=jemalloc.path, XDG_CACHE_HOME=str(tmp_path))
    out = ask("libraries", env=env).out.decode()
    assert out.splitlines()[-1] == f"LD_PRELOAD: {jemalloc.path} (kept)"


def test_note_when_proofs_cannot_be_kept(needs):
    needs(find_library("gnu", sys.prefix, {}), "libgomp.so.1")
    done = ask("libraries", env=clean_environment(XDG_CACHE_HOME="/dev/null"))
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.startswith("note: whether a library can be preloaded is tried at every launch")


def test_mistakes_are_one_line():
    assert "--python" in ask("libraries", "--python", "/absent").refused()
    assert "unexpected" in ask("libraries", "jemalloc").refused().lower()
