# SPDX-License-Identifier: Apache-2.0
"""docs/variables.md names every variable that an instance receives, and none that the code has not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.launcher.cli.commands import SHOW, ask, clean_environment, xlaunch
from tests.tiers import quick_first

from xlaunch.cache.table import CACHES, PROFILE_VARIABLE, VARIABLES
from xlaunch.cache.use import HEADERS_VARIABLE
from xlaunch.environment import allocators, openmp, threads
from xlaunch.machine import gpus

ROOT = Path(__file__).parents[2]
RECEIVED, SETTABLE = (ROOT / "docs" / "variables.md").read_text().split("## What you can set")
NAME = re.compile(r"`([A-Z][A-Z0-9_]+)`")
OWN_VARIABLES = re.compile(r"\"((?:XLAUNCH|XRUNTIME|XKERNELS|XTUNE)_[A-Z_]*[A-Z])\"")
OF_PACKAGES = {"XLAUNCH_CPU_FLAGS", "XLAUNCH_THREADS", "XLAUNCH_TORCH"}
"""Entries in the files of `compile_package`, which are no variables."""


def rows(text: str) -> set[str]:
    """The variables in the first column of the table."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in NAME.findall(cell)}


def sources() -> list[str]:
    found = [*(ROOT / "kernels" / "src").rglob("*.cpp")]
    for directory in ("launcher", "runtime_ext", "tuner"):
        found += (ROOT / directory).rglob("*.py")
    return [path.read_text() for path in found]


def test_every_variable_of_the_code_s_tables_has_a_row() -> None:
    names = {name for it in allocators.PROFILES.values() for name in it.variables}
    names |= {n for it in openmp.PROFILES.values() for n in (*it.settings, *it.passive)}
    names |= {row.name for row in threads.VARIABLES}
    names |= {*VARIABLES, PROFILE_VARIABLE, HEADERS_VARIABLE}
    names |= {*gpus.VARIABLES, *gpus.COUNTING}
    names |= {switch.name for cache in CACHES for switch in cache.switches}
    assert names - rows(RECEIVED) == set()


@pytest.mark.parametrize(
    "options",
    quick_first(
        [
            ("--instances", "2", "--oversubscribe", "--log-dir", "logs"),
            ("--allocator", "glibc-frugal", "--thp", "always", "--cache", "all", "--smt"),
            (),
            ("--supervise",),
            ("--metric", "x/s"),
        ],
        quick=2,
    ),
    ids=" ".join,
)
def test_every_variable_of_a_running_instance_has_a_row(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    before = clean_environment(MKL_NUM_THREADS="77")
    if "--log-dir" in options:
        done = xlaunch("-q", *options, SHOW, env=before, cwd=tmp_path)
        texts = [path.read_bytes() for path in (tmp_path / "logs").glob("*.out")]
        shown = done._replace(out=b"".join(texts)).shown()
    else:
        shown = xlaunch("-q", *options, SHOW, env=before, cwd=tmp_path).shown()
    for one in shown:
        changed = {name for name, value in one["env"].items() if before.get(name) != value}
        # Python may set the last one for itself.
        assert changed - rows(RECEIVED) - {"LC_CTYPE"} == set()
        assert "XLAUNCH_INSTANCE_INDEX" in changed


def test_every_variable_of_a_plan_for_optimizing_has_a_row() -> None:
    done = ask("plan", "--json", "--optimize", "auto", SHOW)
    (instance,) = json.loads(done.out)["instances"]
    assert "XLAUNCH_OPTIMIZE" in instance["environment"]
    assert instance["environment"].keys() - rows(RECEIVED) == set()


def test_no_row_is_made_up() -> None:
    texts = sources()
    prefixed = {name for name in rows(RECEIVED) if name.startswith("XLAUNCH_INSTANCE_")}
    for name in rows(RECEIVED) - prefixed | rows(SETTABLE):
        assert any(f'"{name}"' in text for text in texts), name
    for name in prefixed:
        ending = name.removeprefix("XLAUNCH_INSTANCE_")
        assert any(f"{{INSTANCE_PREFIX}}{ending}" in text for text in texts), name


def test_every_variable_of_the_project_s_own_is_on_the_page() -> None:
    named = {name for text in sources() for name in OWN_VARIABLES.findall(text)} - OF_PACKAGES
    assert named - {*NAME.findall(RECEIVED), *NAME.findall(SETTABLE)} == set()
