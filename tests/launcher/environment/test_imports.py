# SPDX-License-Identifier: Apache-2.0
"""Whether a program loads torch, by its files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from xlaunch.environment.allocators import loads_torch
from xlaunch.environment.program import Program
from xlaunch.environment.python_environment import InstalledPackages

FILES = {
    "plain.py": "import json\nimport numpy as np, scipy.stats\ntorch = 'import torch'\n",
    "direct.py": "import numpy as np, torch.nn as nn\n",
    "late.py": "def main():\n    from torch.nn import (\n        Linear,\n    )\n",
    "beside.py": "import models\n",
    "models.py": "from torch import nn\n",
    "package/__init__.py": "",
    "package/__main__.py": "from .steps import train\n",
    "package/steps/__init__.py": "",
    "package/steps/train.py": "from ...package.net import Net\n",
    "package/net.py": "import torch\n",
    "package/light.py": "from . import words\n",
    "package/words.py": "import re\n",
    "service.py": "import beside\napp = None\n",
    "needs_it.py": "import trainer_kit\n",
    "extra.py": "import with_extra\n",
    "other_extra.py": "import other_kit\n",
    "circle.py": "import circle\nfrom . import circle\n",
    "tool": f"#!{sys.executable}\nimport torch\n",
    "data.csv": "import torch\n",
}
METADATA = {
    "trainer_kit": "Requires-Dist: numpy\nRequires-Dist: torch<3,>=2.1\n",
    "with_extra": 'Requires-Dist: torch>=2.4; extra == "torch"\n',
    "other_kit": 'Requires-Dist: torch; extra == "tests"\nRequires-Dist: torch-like\n',
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imports")
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    site = root / "env/lib/python{}.{}/site-packages".format(*sys.version_info[:2])
    for name, text in METADATA.items():
        (site / f"{name}-1.0.dist-info").mkdir(parents=True)
        (site / f"{name}-1.0.dist-info/METADATA").write_text(f"Name: {name}\n{text}")
    (root / "env/bin").mkdir()
    (root / "env/bin/python").symlink_to(sys.executable)
    return root


def answer(
    directory: Path, words: Sequence[str], variables: Mapping[str, str] = {}, torch: bool = True
) -> bool:
    interpreter = str(directory / "env/bin/python")
    command = tuple(interpreter if word == "python" else word for word in words)
    names = ["trainer-kit", "with-extra", "other-kit", *(["torch"] if torch else [])]
    installed = InstalledPackages(dict.fromkeys(names, "1.0"), sys.version_info[:2])
    prefix = str(directory / "env")
    program = Program(command[0], command, None, interpreter, prefix, installed, command=command)
    return loads_torch(program, variables)


@pytest.mark.parametrize(
    ("words", "loads"),
    [
        ("python plain.py", False),
        ("python direct.py", True),
        ("python -u late.py --lr 1", True),
        ("python beside.py", True),
        ("python -m package", True),
        ("python -m package.light", False),
        ("python package/light.py", False),
        ("python -m torch.distributed.run plain.py", True),
        ("python -m http.server", False),
        ("python plain.py data.csv", False),
        ("python needs_it.py", True),
        ("python extra.py", True),
        ("python other_extra.py", False),
        ("python circle.py", False),
        ("./tool", True),
        ("python -m uvicorn service:app", True),
        ("python -m cli launch direct.py", True),
        ("python absent.py", False),
    ],
)
def test_files_and_what_they_import(directory, words, loads, monkeypatch):
    monkeypatch.chdir(directory)
    assert answer(directory, words.split()) is loads
    assert answer(directory, words.split(), torch=False) is False


@pytest.mark.parametrize(("code", "loads"), [("import torch", True), ("import json", False)])
def test_code_on_the_command_line(directory, code, loads):
    assert answer(directory, ("python", "-c", code)) is loads


def test_modules_of_pythonpath_are_read(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ("python", "-m", "beside")
    assert answer(directory, words) is False
    assert answer(directory, words, {"PYTHONPATH": f"{os.sep}absent:{directory}"}) is True


def test_what_is_not_python_loads_none():
    assert loads_torch(Program("/bin/ls", ("ls",), command=("/bin/ls",)), {}) is False
