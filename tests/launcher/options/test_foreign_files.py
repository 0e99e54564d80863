# SPDX-License-Identifier: Apache-2.0
"""What a cloned repository's files choose is not run by a command that only answers, and named by a launch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment, program, run

LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void tell(void) { close(open(TOLD, O_CREAT | O_WRONLY, 0600)); }
int omp_get_max_threads(void) { return 1; }
"""

DRY = {
    "plan": ("plan",),
    "plan --json": ("plan", "--json"),
    "--dry-run": ("--dry-run",),
    "env": ("env",),
    "env docker": ("env", "--format", "docker"),
    "ranks": ("--dry-run", "--nproc-per-node", "2", "--synthetic", "core:4"),
}

CHOICES = {
    'allocator = "./evil.so"': "allocator ./evil.so",
    'omp = "./libgomp.so.1"': "omp ./libgomp.so.1",
    'python = "./python"': "python ./python",
    'python = "./python"\noptimize = "auto"': "python ./python",
    'env.LD_PRELOAD = "./evil.so"': "env LD_PRELOAD",
    'env.LD_PRELOAD = "./evil.so"\noptimize = "auto"': "env LD_PRELOAD",
    'env.LD_AUDIT = "./evil.so"\noptimize = "auto"': "env LD_AUDIT",
    'env.PYTHONPATH = "evil"\noptimize = "auto"': "env PYTHONPATH",
    'env.LD_LIBRARY_PATH = "."': "env LD_LIBRARY_PATH",
}
"""What the files set, and how that is named."""


class Clone:
    """A repository with files that leave a mark when anything of them runs."""

    def __init__(self, directory: Path, compiler: str) -> None:
        self.directory = directory / "clone"
        self.told = directory / "told"
        self.cache = directory / "cache"
        (self.directory / ".git").mkdir(parents=True)
        (self.directory / "evil").mkdir()
        text = f"open({str(self.told)!r}, 'w').close()\n"
        (self.directory / "evil" / "sitecustomize.py").write_text(text)
        program(self.directory / "python", f'#!/bin/sh\n>{self.told}\nexec {sys.executable} "$@"\n')
        (self.directory / "evil.c").write_text(LIBRARY)
        for name in ("evil.so", "libgomp.so.1"):
            words = ("-shared", "-fPIC", f"-Wl,-soname,{name}", f'-DTOLD="{self.told}"')
            command = (compiler, *words, "-o", name, "evil.c")
            subprocess.run(command, cwd=self.directory, check=True)
        (self.directory / "x.py").write_text("print('hello')\n")

    def xlaunch(self, *words: str) -> tuple[bool, str, str]:
        """Whether anything of the repository ran, standard output and error."""
        self.told.unlink(missing_ok=True)
        env = clean_environment(XDG_CACHE_HOME=str(self.cache))
        if words[:1] in DRY.values() or words in DRY.values():
            done = ask(*words, "x.py", cwd=self.directory, env=env)
        else:
            command = (sys.executable, "-P", "-m", "xlaunch", *words, "x.py")
            done = run(command, cwd=self.directory, env=env)
        assert done.code == 0, done.err
        return self.told.exists(), done.out.decode(), done.err


@pytest.fixture
def clone(tmp_path: Path, needs: Callable[[object, str], None]) -> Clone:
    compiler = shutil.which("gcc")
    needs(compiler, "gcc")
    return Clone(tmp_path, str(compiler))


@pytest.mark.parametrize("choice", CHOICES)
def test_commands_that_only_answer_run_nothing_of_a_project(
    golden: Golden, clone: Clone, choice: str
):
    (clone.directory / "pyproject.toml").write_text(f"[tool.xlaunch]\n{choice}\n")
    said: dict[str, list[str]] = {}
    for words in DRY.values():
        ran, out, err = clone.xlaunch(*words)
        assert not ran, words
        said.setdefault(err, []).append(" ".join(words))
        if "--json" in words and choice.startswith(("allocator", "omp")):
            assert any(it.endswith(" was not tried") for it in json.loads(out)["warnings"])
    golden(*[f"{', '.join(commands)}:\n{err}" for err, commands in said.items()])


@pytest.mark.parametrize("choice", [*CHOICES][:5])
def test_a_launch_names_the_file(clone: Clone, choice: str):
    (clone.directory / "pyproject.toml").write_text(f"[tool.xlaunch]\n{choice}\nquiet = true\n")
    said = f"xlaunch: note: project pyproject.toml chooses {CHOICES[choice]}\n"
    ran, out, err = clone.xlaunch()
    assert (ran, out, err.count(said)) == (True, "hello\n", 1)


def test_who_types_quiet_or_isolated_gets_no_note(clone: Clone):
    text = '[tool.xlaunch]\npython = "./python"\nquiet = true\n'
    (clone.directory / "pyproject.toml").write_text(text)
    said = "xlaunch: note: project pyproject.toml chooses python ./python\n"
    assert clone.xlaunch("cache", "warm")[2].count(said) == 1
    assert said not in clone.xlaunch("--quiet")[2]
    assert said not in clone.xlaunch("--isolated")[2]


def test_presets_are_such_files_and_typed_options_are_not(clone: Clone):
    (clone.directory / "best.toml").write_text('allocator = "./evil.so"\n')
    ran, _, err = clone.xlaunch("plan", "--preset", "./best.toml")
    assert (ran, "not tried: preset ./best.toml chooses allocator ./evil.so" in err) == (
        False,
        True,
    )
    ran, _, err = clone.xlaunch("plan", "--allocator", "./evil.so")
    assert (ran, "not tried" in err) == (True, False)


def test_what_chooses_no_code_is_not_named(clone: Clone):
    text = (
        '[tool.xlaunch]\nallocator = "glibc"\nomp = "none"\nenv.TOKENIZERS_PARALLELISM = "false"\n'
    )
    (clone.directory / "pyproject.toml").write_text(text)
    for words in (("plan",), ()):
        assert "chooses" not in clone.xlaunch(*words)[2]
