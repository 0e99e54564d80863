# SPDX-License-Identifier: Apache-2.0
"""Every code block of docs/ runs on a machine of two CPUs, as a reader would run it.

The blocks of a page run in its order, in one directory and one shell or one Python, with small
programs named as the pages name them, and searches and measurements are short. Two comments in a
page change this for the block that follows them:

    <!-- not run by the tests: REASON -->
    <!-- run inside: COMMAND -->               as a program of that command
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.captures import capture_path
from tests.libraries import find_library

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:<!-- (?P<note>[^>]*) -->\n+)?```(?P<language>\w*)\n(?P<text>.*?)```", re.DOTALL
)
PAGES = [
    path.name for path in sorted((ROOT / "docs").glob("*.md")) if BLOCK.search(path.read_text())
]
NOT_RUN, INSIDE = "not run by the tests: ", "run inside: "
TIMEOUT_S = 2400
NUMBER = re.compile(r"\d+(\.\d+)?")
SEARCH = re.compile(r"^xtune (?!list|report|export|compare)(?:resume )?", re.MULTILINE)
BUDGET = re.compile(r"--budget \S+ ?")
SHORTER = {
    re.compile(r"--seconds \d+"): "--seconds 1",
    re.compile(r" -d\d+ "): " -d1 ",
    re.compile(r"--load c=1\.\.\d+"): "--load c=1..2",
    re.compile(r"--warmup \S+"): "--warmup 0.2s",
}
"""Measurements, and what replaces them."""

PROGRAM = """\
for _ in range(12):
    print("125.0 images/s", flush=True)
"""
"""What a page calls infer.py or serve.py: takes any arguments and prints a rate."""
SLOW = ("tutorial.md",)
"""Pages that compile large models and search: tests of the tier `full`."""
LAUNCHERS = {"allocator.md": "xlaunch --allocator jemalloc "}
"""What the Python of a page runs under."""


PARSED_ELSEWHERE = ("yaml", "ini")
"""Manifests and units: see `test_manifests`."""


class Block(NamedTuple):
    language: str
    text: str
    note: str

    @property
    def script(self) -> str:
        """The text, its searches with a budget of 4 launches and its measurements of one second."""
        text = SEARCH.sub(r"\g<0>--budget 4 ", BUDGET.sub("", self.text))
        for measurement, short in SHORTER.items():
            text = measurement.sub(short, text)
        return text

    def command(self, command: str) -> str:
        """The shell's line for `command` as this block wants it to run."""
        inside = self.note.removeprefix(INSIDE) + " " if self.note.startswith(INSIDE) else ""
        return inside + command


@pytest.fixture
def shell(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Runs a script in bash in a directory of its own; returns what it printed.

    All pages share Inductor's cache, which also keeps the vector instructions that it has tried.
    """
    for name in ("infer.py", "serve.py"):
        (tmp_path / name).write_text(PROGRAM)
    # A search writes it where it finds a gain.
    (tmp_path / "best.toml").write_text("ncores = 1\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    home = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "STATE")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Precompiled headers take longer than the one compilation that uses them.
    compilation = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    compilation["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.getbasetemp() / "inductor")
    environment = {**os.environ, **home, **compilation, "PATH": path}

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout

    return run


@pytest.mark.timeout(2500)
@pytest.mark.parametrize(
    "page",
    [pytest.param(it, marks=pytest.mark.full if it in SLOW else pytest.mark.long) for it in PAGES],
)
def test_code_blocks_run(
    page: str, shell: Callable[[str], str], tmp_path: Path, needs: Callable[[object, str], None]
) -> None:
    blocks = list(blocks_of(page))
    if any("jemalloc" in block.text for block in blocks):
        needs(find_library("jemalloc", None, os.environ), "jemalloc (Debian: libjemalloc2)")
    if any("wrk" in block.text for block in blocks):
        needs(shutil.which("wrk"), "wrk (Debian: wrk)")
        needs(find_spec("uvicorn"), "uvicorn (the extra `examples`)")
    if any("curl" in block.text for block in blocks):
        needs(shutil.which("curl"), "curl (Debian: curl)")
    script = []
    for number, block in enumerate(blocks):
        if block.note.startswith(NOT_RUN):
            continue
        if block.language == "sh" and block.note:
            (tmp_path / f"{number}.sh").write_text(block.script)
            script.append(block.command(f"bash -eu {number}.sh"))
        elif block.language == "sh":
            # A block that replaces its shell is a script of its own.
            ends = re.search("^exec ", block.script, re.MULTILINE)
            script.append(f"({block.script})" if ends else block.script)
        elif block.language == "python" and block.note:
            (tmp_path / f"{number}.py").write_text(block.text)
            script.append(block.command(f"python {number}.py"))
        elif block.language == "console":
            script.append(f"{{ {commands_of(block.script)}\n}} > {number}.out 2>&1")
        elif block.language in PARSED_ELSEWHERE:
            continue
        elif block.language == "toml":
            check_preset(block.text, tmp_path / f"{number}.toml", shell)
        else:
            assert block.language == "python", f"{page}: a block of {block.language!r}"
    shell("\n".join(script))
    for number, block in enumerate(blocks):
        if block.language == "console" and not block.note.startswith(NOT_RUN):
            check_console(block.script, (tmp_path / f"{number}.out").read_text())
    together = "".join(b.text for b in blocks if b.language == "python" and not b.note)
    if together:
        (tmp_path / "page.py").write_text(together)
        shell(LAUNCHERS.get(page, "") + "python page.py")


def blocks_of(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer((ROOT / "docs" / page).read_text()):
        yield Block(found["language"], found["text"], found["note"] or "")


def commands_of(session: str) -> str:
    """The commands of a console session, one a line."""
    lines = session.splitlines()
    return "\n".join([line.removeprefix("$ ") for line in lines if line.startswith("$ ")])


def check_console(text: str, output: str) -> None:
    """What the commands print is what the page shows; numbers may differ, `...` is any lines."""
    shown = [line for line in text.splitlines() if not line.startswith("$ ")]
    pattern = ".*".join(
        re.escape(NUMBER.sub("N", " ".join(part.split())))
        for part in re.split(r"^\.\.\.$", "\n".join(shown), flags=re.MULTILINE)
    )
    printed = NUMBER.sub("N", " ".join(output.split()))
    assert re.search(pattern, printed, re.DOTALL), f"{pattern}\n{printed}"


def check_preset(text: str, path: Path, shell: Callable[[str], str]) -> None:
    """The preset can be planned with, for a machine large enough for it."""
    path.write_text(text)
    machine = capture_path("2-packages-2-nodes-smt")
    shell(f"xlaunch plan --preset {path} --sysroot {machine}")
