# SPDX-License-Identifier: Apache-2.0
"""The command over files and directories: what is read, selected, silenced and printed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.golden import Golden
from tests.launcher.cli.commands import ask, program, run

FAULT = "import torch\ntorch.set_num_threads(4)\n"
SLOW = "import torch\noptimizer = torch.optim.SGD(parameters)\n"


def write(directory: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (directory / f"{name}.py").write_text(text)
    return directory


def test_line_and_summary(golden: Golden, tmp_path: Path):
    write(tmp_path, a=FAULT, b="x = 1\n", c=SLOW)
    done = ask("doctor", ".", cwd=tmp_path)
    assert done.code == 1
    (line,) = done.out.decode().splitlines()
    assert line.startswith("./a.py:2:1: XL041 torch.set_num_threads(4) fixes")
    golden(done.err)
    done = ask("doctor", "--hints", ".", cwd=tmp_path)
    golden(done.err)
    assert ask("doctor", "b.py", cwd=tmp_path) == (0, b"", "0 findings in 1 file\n")


def test_file_that_does_not_parse_leaves_the_others(tmp_path: Path):
    write(tmp_path, a="def f(:\n", b=FAULT, c="x = '\xe9'\n")
    (tmp_path / "d.py").write_bytes(b"x = '\xff'\n")
    done = ask("doctor", "a.py", "b.py", "c.py", "d.py", cwd=tmp_path)
    first, second, third = done.out.decode().splitlines()
    assert first.startswith("a.py:1:7: XL000 not Python 3.")
    assert second.startswith("b.py:2:1: XL041 ")
    assert third.startswith("d.py:1:")
    assert " XL000 " in third


def test_what_is_skipped_is_counted(golden: Golden, tmp_path: Path):
    write(tmp_path, a=FAULT, large="#" * (1 << 20) + "\n", binary="\0")
    done = ask("doctor", ".", cwd=tmp_path)
    golden(done.err)


def test_directories(golden: Golden, tmp_path: Path):
    for name in (".hidden", "__pycache__", "build", "environment", "package/inner"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name, one=FAULT)
    (tmp_path / "environment/pyvenv.cfg").touch()
    program(tmp_path / "tool", f"#!/usr/bin/env python3\n{FAULT}")
    program(tmp_path / "other", f"#!/bin/sh\n{FAULT}")
    (tmp_path / "notebook.ipynb").write_text("{}")
    outside = tmp_path.parent / f"{tmp_path.name}-outside.py"
    outside.write_text(FAULT)
    (tmp_path / "link.py").symlink_to(outside)
    (tmp_path / "circle").symlink_to(tmp_path)
    done = ask("doctor", ".", "package/inner/one.py", cwd=tmp_path)
    assert [line.partition(":")[0] for line in done.out.decode().splitlines()] == [
        "./tool",
        "./package/inner/one.py",
    ]
    golden(done.err)


def test_notebooks(tmp_path: Path):
    """Findings name the cell, counted from 1 over all cells, and the line in it."""
    texts = [
        ("markdown", "# Training"),
        (
            "code",
            "%pip install torch\n!ls \\\n    -l\nimport argparse\nfiles = !ls\nif files:\n    !pwd",
        ),
        ("code", "%%bash\necho 'neither Python"),
        (
            "code",
            "parser = argparse.ArgumentParser()\nparser.add_argument('--x', type=bool)\nparser?",
        ),
        ("code", "print('%d'\n      % (1))\n%matplotlib inline\n%%timeit"),
    ]
    cells = [{"cell_type": kind, "source": text.splitlines(True)} for kind, text in texts]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"metadata": {}, "cells": cells}))
    done = ask("doctor", ".", cwd=tmp_path)
    assert done.out.decode().startswith("./train.ipynb:cell 4:2:33: XL001 type=bool")
    assert "1 finding in 1 file" in done.err
    done = ask("doctor", "--output-format", "github", "train.ipynb", cwd=tmp_path)
    assert done.out.decode().startswith("::error file=train.ipynb,line=2,")
    cells.append({"cell_type": "code", "source": "x = 1\ny = ("})
    path.write_text(json.dumps({"metadata": {}, "cells": cells}))
    assert (
        "train.ipynb:cell 6:2:5: XL000" in ask("doctor", "train.ipynb", cwd=tmp_path).out.decode()
    )


def test_bad_input(golden: Golden, tmp_path: Path):
    write(tmp_path, a=FAULT)
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    said = []
    for words in (
        "gone.py", "empty", "pipe", "--select XL777 a.py", "--ignore E501 a.py", "--select , a.py",
        "--select TOR101 a.py", "--output-format jason a.py", "--rule XL01",
    ):  # fmt: skip
        said += [f"$ xlaunch doctor {words}", ask("doctor", *words.split(), cwd=tmp_path).refused()]
    golden(said)


def test_comments(tmp_path: Path):
    for comment, silent in (
        ("# noqa", True),
        ("# noqa: XL041", True),
        ("#noqa:xl041", True),
        ("# noqa: E501, XL041", True),
        ("# noqa: XL040", False),
        ("# XL041", False),
    ):
        write(tmp_path, a=FAULT.rstrip() + f"  {comment}\n")
        assert ask("doctor", "a.py", cwd=tmp_path).code == (0 if silent else 1), comment


def test_selection(tmp_path: Path):
    write(tmp_path, a=FAULT + SLOW)

    def codes(*words: str) -> list[str]:
        out = ask("doctor", *words, "a.py", cwd=tmp_path).out.decode()
        return [line.split()[1] for line in out.splitlines()]

    assert codes() == ["XL041"]
    assert codes("--select", "XL04") == ["XL041"]
    assert codes("--select", "xl1, XL041") == ["XL041", "XL106"]
    assert codes("--ignore", "XL04") == []
    assert codes("--ignore", "XL04", "--hints") == ["XL106"]


def test_configuration(tmp_path: Path):
    inner = tmp_path / "inner"
    inner.mkdir()
    write(inner, a=FAULT)
    write(tmp_path, a=FAULT)
    (inner / "pyproject.toml").write_text("[tool.xlaunch]\n")
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.xlaunch.doctor]\nignore = ["XL04"]\n')
    assert ask("doctor", "inner", ".", cwd=tmp_path).code == 0
    assert ask("doctor", "--ignore", "XL05", ".", cwd=tmp_path).code == 1
    assert ask("plan", cwd=tmp_path).code == 0
    for text, told in (
        ("ignore = 3", 'ignore must be a list of codes such as ["XL030"]'),
        ("ignore = ['XL9']", "ignore: there is no rule 'XL9'"),
        ("omit = []", "there is no option 'omit'; there are select and ignore"),
        ("= 1", "is not TOML"),
    ):
        project.write_text(f"[tool.xlaunch.doctor]\n{text}\n")
        assert told in ask("doctor", "a.py", cwd=tmp_path).refused(2)
    for text in ("[tool]\nxlaunch = 1\n", "[tool.xlaunch]\ndoctor = 1\n"):
        project.write_text(text)
        assert "must be a table: [tool.xlaunch" in ask("doctor", "a.py", cwd=tmp_path).refused(2)


def test_json(tmp_path: Path):
    write(tmp_path, a=FAULT + "torch.é, torch.set_num_threads\n" + SLOW)
    done = ask("doctor", "--output-format", "json", "a.py", cwd=tmp_path)
    document = json.loads(done.out)
    assert document["schema_version"] == 1
    (finding,) = document["findings"]
    message = finding.pop("message")
    assert message.startswith("torch.set_num_threads(4) fixes")
    assert finding == {
        "path": "a.py",
        "line": 2,
        "column": 1,
        "end": {"line": 2, "column": 25},
        "code": "XL041",
        "name": "threads-fixed",
    }
    assert document["counts"] == {
        "files": 1,
        "findings": 1,
        "hints": 0,
        "hints_not_shown": 1,
        "skipped": {},
    }
    assert ask("doctor", "--json", "a.py", cwd=tmp_path).out == done.out


def test_columns_count_characters(tmp_path: Path):
    write(tmp_path, a="import torch\nx = 'é'; torch.set_num_threads(4)\n")
    assert ask("doctor", "a.py", cwd=tmp_path).out.startswith(b"a.py:2:10: XL041 ")


def test_github(tmp_path: Path):
    (tmp_path / "a,b:100%.py").write_text(FAULT)
    done = ask("doctor", "--output-format", "github", ".", cwd=tmp_path)
    assert done.out.decode().startswith(
        "::error file=./a%2Cb%3A100%25.py,line=2,col=1,endLine=2,endColumn=25,title=XL041::torch.set"
    )


def test_many_files_by_several_processes(golden: Golden, tmp_path: Path):
    write(tmp_path, **{f"file{number:03}": FAULT for number in range(200)})
    done = run((sys.executable, "-m", "xlaunch", "doctor", str(tmp_path)))
    lines = done.out.decode().splitlines()
    assert done.code == 1
    assert len(lines) == 200
    assert lines == sorted(lines)
    golden(done.err)


def test_without_modules_of_linux_and_without_torch(tmp_path: Path):
    write(tmp_path, a=FAULT)
    code = (
        "import sys\n"
        "for name in ('fcntl', 'pwd', 'grp', 'resource', 'torch', 'numpy', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from xlaunch.cli import main\n"
        "main(['doctor', 'a.py'])\n"
    )
    done = run((sys.executable, "-c", code), cwd=tmp_path)
    assert (done.code, done.err) == (1, "1 finding in 1 file\n")
